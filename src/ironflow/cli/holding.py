"""Why a run does not move, as a person reads it: every hold for `why`, and the first one while somebody waits for it.

Promises that a command which is quoted in a hold can be copied: where the answer goes into a file or another program,
nothing is wrapped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final

from ironflow.cli import stdout, times
from ironflow.engine import views
from ironflow.errors import IronflowError
from ironflow.model import run as states

if TYPE_CHECKING:
    from rich.console import Console

    from ironflow.cli.follow import Progress
    from ironflow.engine.why import Hold

#: What the time of a hold is, before and after it; of the others, it is what their message calls "then".
UNTIL = {
    "EXECUTING": ("its lease ends {}, unless it is renewed", "its lease ended {}"),
    "STEP_RETRY": ("the next try is due {}", "the next try was due {}"),
    "WORKER_DEAD": ("it ends {}", "it ended {}"),
    "LEASE_EXPIRED": ("it ends {}", "{}"),
    "WAITING": ("due {}", "due {}"),
    "RESERVED": ("the promise ends {}", "the promise ended {}"),
}
#: How long a run may lie still before somebody who waits for it is told why, seconds; and how often it is asked then.
LOOK_S: Final = 1.0
#: What somebody who waits sees without being told: the run executes, its journal said until when it rests, or nothing
#: is in its way. And a deadline keeps no run from executing.
_SEEN: Final = frozenset(
    {"ENDED", "PAUSED", "EXECUTING", "STEP_EXECUTING", "STEP_RETRY", "WAITING", "WAKING", "RUN_RETRY", "QUEUED",
     "DEADLINE"}
)  # fmt: skip


def sentence(hold: Hold, now: int) -> str:
    """What a hold says, with the time at which it can lift."""
    if hold.until is None:
        return hold.message
    text = UNTIL.get(hold.code, ("{}", "{}"))[hold.until <= now]
    return f"{hold.message} ({text.format(f'{times.ago(hold.until, now)}, {views.iso(hold.until)}')})"


def show(screen: Console, found: list[Hold], now: int) -> None:
    """Print the answer of `why`."""
    from rich.table import Table
    from rich.text import Text

    if not stdout.stream().isatty():
        width = max(len(hold.code) for hold in found)
        for hold in found:
            line = Text.assemble("  ", (f"{hold.code:<{width}}", "bold"), f"  {sentence(hold, now)}")
            screen.print(line, soft_wrap=True)
        return
    made = Table.grid(padding=(0, 2))
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for hold in found:
        made.add_row(f"  {hold.code}", sentence(hold, now))
    screen.print(made)


def first(found: Iterable[Hold]) -> Hold | None:
    """The first hold that somebody who waits for the run does not see anyway."""
    return next((hold for hold in found if hold.code not in _SEEN), None)


async def watch(
    look: Callable[[], Awaitable[list[Hold]]], progress: Progress, tell: Callable[[Hold | None], None]
) -> None:
    """Tell what holds a run as often as it is asked, and None while it moves; for ever.

    Args:
        look: asks for its holds.
        progress: of the run.
        tell: takes what was found.
    """
    while True:
        await asyncio.sleep(LOOK_S)
        if progress.state not in states.QUEUED | states.SUSPENDED:
            tell(None)
            continue
        try:
            tell(first(await look()))
        except IronflowError:  # the database is away for a moment: this is more than was asked for
            continue
