"""The next command for a run that nobody executes: a newcomer has made one, and sees nothing happen.

Said to people only: with a list of holds in its answer, else on stderr where that is a terminal. What is piped into
other programs stays as it is.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ironflow.address import redact_url
from ironflow.cli import output
from ironflow.errors import IronflowError

if TYPE_CHECKING:
    from ironflow.cli.backend import Backend, Where
    from ironflow.engine.why import Hold

#: The hold that lifts when any worker is started that has the code. (Where the wrong ones are connected, the hold says
#: what they lack.)
_UNSERVED = "NO_WORKER"


def worker_command(where: Where, target: str = "FILE") -> str:
    """The command that starts a worker there. A password in the address is left for the reader to fill in."""
    words = ["ironflow", "worker", target]
    if where.server is not None:
        words += ["--server", where.server]
    elif where.db is not None:
        shown = redact_url(where.db)
        return f"{shlex.join([*words, '--db'])} {shlex.quote(shown) if shown == where.db else 'URL'}"
    return shlex.join(words)


def next_command(where: Where, holds: Iterable[Hold], target: str = "FILE") -> str | None:
    """What to do about these holds; None where a worker would not change them."""
    found = next((hold for hold in holds if hold.code == _UNSERVED), None)
    return None if found is None else f"Start a worker that has its code: `{worker_command(where, target)}`"


async def tell(backend: Backend, where: Where, run_id: str, target: str = "FILE", *, as_json: bool) -> None:
    """Say on a terminal's stderr if a run waits for a worker that is not there. Costs nothing elsewhere."""
    if as_json or not sys.stderr.isatty():
        return
    try:
        holds = await backend.holds(run_id)
    except IronflowError:  # this is more than was asked for: a key may not see it, a server may be gone
        return
    text = next_command(where, holds, target)
    if text is not None:
        held = next(hold.message for hold in holds if hold.code == _UNSERVED)
        output.screen(stderr=True).print(f"{held}. {text}", style="dim", soft_wrap=True)
