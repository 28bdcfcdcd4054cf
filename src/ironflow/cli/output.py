"""What every command prints with: rows as JSON for programs, tables and colours for people.

JSON goes through `print`, never through rich, which would wrap it at the terminal's width. Field names
follow the columns; a time is there twice, `x_at_ms` for arithmetic and `x_at` for reading. Hashes of
tokens are left out: they help nobody, and what is never printed is never pasted into a ticket.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from ironflow import errors
from ironflow.cli.times import iso
from ironflow.cli.values import readable
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.journal import name_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ironflow.model.fold import StepView, Try
    from ironflow.model.journal import Event
    from ironflow.model.run import RunRow

_SECRET = frozenset({"lease_token_hash", "token_hash", "reservation_token"})
_TIMES = frozenset({"reserved_until", "suspect_since", "until"})
_JSON_TEXT = frozenset({"labels", "limits"})

_STYLES = {
    runs.PENDING: "blue",
    runs.RUNNING: "cyan",
    runs.RETRYING: "yellow",
    runs.SLEEPING: "blue",
    runs.WAITING: "blue",
    runs.AWAITING_APPROVAL: "magenta",
    runs.PAUSED: "yellow",
    runs.CANCELLING: "magenta",
    runs.COMPLETED: "green",
    runs.WARNING: "yellow",
    runs.FAILED: "red",
    runs.CANCELLED: "magenta",
    steps.INTERRUPTED: "yellow",
    steps.TIMED_OUT: "red",
    steps.SKIPPED: "dim",
}


# ---- JSON ------------------------------------------------------------------------------------------------


def emit(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def plain(row: Any) -> dict[str, Any]:
    """A row (of the model, or a dictionary of a list) as JSON data."""
    fields = asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row)
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _SECRET:
            continue
        if name.endswith("_at") or name == "at" or name in _TIMES:
            found[f"{name}_ms"], found[name] = value, iso(value)
        elif name in _JSON_TEXT and isinstance(value, str):
            found[name] = json.loads(value)
        else:
            found[name] = value
    return found


def step_json(step: StepView) -> dict[str, Any]:
    """A step with its tries as JSON data."""
    fields = plain(step)
    fields["tries"] = [plain(one) for one in step.tries]
    return fields


def event_json(event: Event) -> dict[str, Any]:
    """A journal event as JSON data; values of the user stay in their stored form."""
    return {
        "seq": event.seq,
        "kind": event.kind,
        "step_id": event.step_id,
        "execution_seq": event.execution_seq,
        "at_ms": event.at,
        "at": iso(event.at),
        "payload": event.data(),
    }


# ---- screens ---------------------------------------------------------------------------------------------


def screen(*, stderr: bool = False) -> Console:
    """A console. Not a terminal: wide, so that a table that is piped into another program loses no column.

    rich itself follows NO_COLOR, FORCE_COLOR, TERM=dumb and COLUMNS.
    """
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or os.environ.get("COLUMNS") else 200
    return Console(file=stream, width=width, highlight=False, emoji=False, markup=False, soft_wrap=False)


def style_of(state: str) -> str:
    """The colour of a state of a run or of a step."""
    return _STYLES.get(state, "")


def state_text(state: str, note: str = "") -> Text:
    """A state in its colour, with a remark behind it."""
    from rich.text import Text

    text = Text(state, style=style_of(state))
    return text.append(f" {note}", style="dim") if note else text


def table(*columns: str, shrink: Sequence[str] = ()) -> Table:
    """A table without lines. Columns in `shrink` give way where the terminal is narrow; the others are
    never cut.
    """
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for name in columns:
        if name in shrink:
            made.add_column(name, overflow="ellipsis", no_wrap=True, min_width=6)
        else:
            made.add_column(name, no_wrap=True)
    return made


def show(rows: Iterable[Any], *, as_json: bool, empty: str, draw: Any) -> None:
    """Print a list: one JSON array, or what `draw(console, rows)` makes of it, or a sentence when it is
    empty.
    """
    found = list(rows)
    if as_json:
        emit([plain(row) for row in found])
    elif not found:
        screen(stderr=True).print(empty, style="dim")
    else:
        draw(screen(), found)


def count(number: int, what: str) -> str:
    """A number of things: "1 run", "2 runs", "12,000 runs"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def error_text(error: dict[str, Any] | None) -> str:
    """A stored failure, with all lines of its message."""
    if not error:
        return ""
    name, message = str(error.get("type", "")).rpartition(".")[2], str(error.get("message", ""))
    return f"{name}: {message}" if name and message else name or message


def error_code(error: dict[str, Any] | None) -> str:
    """The code under which a failure of a run is looked up: that of Ironflow's own error, or that of any other."""
    module, _, name = str((error or {}).get("type", "")).rpartition(".")
    own = getattr(errors, name, None) if module == errors.__name__ else None
    return str(getattr(own, "code", errors.RunFailed.code))


def error_line(error: dict[str, Any] | None) -> str:
    """A stored failure in one line: what a table has room for."""
    return error_text(error).partition("\n")[0]


def undone_lines(undo_errors: Mapping[str, dict[str, Any]]) -> list[str]:
    """What a run that was undone left behind: one entry for each compensation that failed."""
    return [
        f"not undone: {name_of(step_id)} ({step_id.partition(':')[0]}) failed: {error_text(error)}"
        for step_id, error in undo_errors.items()
    ]


def result_text(value: Any) -> str:
    """A stored result as JSON a person can read."""
    return json.dumps(readable(value), ensure_ascii=False, indent=2, default=str)


def took(one: Try | RunRow, now: int) -> int | None:
    """How long a try or a run has taken (so far), ms; None before it started."""
    if one.started_at is None:
        return None
    return (one.ended_at if one.ended_at is not None else now) - one.started_at
