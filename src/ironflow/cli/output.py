"""What every command prints with: rows as JSON for programs, tables and colours for people.

JSON goes through `print`, never through rich, which would wrap it at the terminal's width. Its names and forms are
those of `engine.views`, which the HTTP API shows, too. Tables are made in `listing`.
"""

from __future__ import annotations

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO, TYPE_CHECKING, Any, TypeVar

from ironflow import errors
from ironflow.cli import stdout
from ironflow.cli.values import readable
from ironflow.engine.views import plain
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.journal import name_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from ironflow.model.fold import Try
    from ironflow.model.run import RunRow

Row = TypeVar("Row")

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


# ---- what comes from outside -----------------------------------------------------------------------------

#: Controls that JSON does not escape by itself: the second half of them, to which terminals listen, too.
_JSON_ESCAPES = {code: f"\\u{code:04x}" for code in range(0x7F, 0xA0)}
#: Each control as a sign of its own: the pictures that Unicode has of the first half, one for all others, and for those
#: that turn the direction of writing around. Lines and tabs stay.
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)},
    0x7F: 0x2421,
    **dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD),
}


def visible(text: str) -> str:
    """A text with each control character as a sign that can be seen: what a worker or a run calls itself must not move
    the cursor, set a title, or write a line in Ironflow's name. `screen` does this with all that it prints.
    """
    return text.translate(_PICTURES)


# ---- JSON ------------------------------------------------------------------------------------------------


def emit(value: Any) -> None:
    """Print one JSON document on one line."""
    print(json_text(value), file=stdout.stream(), flush=True)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON as it is printed: readable in every language, and with no character that a terminal would obey."""
    return json.dumps(value, ensure_ascii=False, indent=indent, default=str).translate(_JSON_ESCAPES)


def tell(facts: Mapping[str, Any], text: str, *, as_json: bool) -> None:
    """Say what happens in a command that goes on: the facts as JSON, or the text to the screen of errors."""
    if as_json:
        emit(facts)
    else:
        screen(stderr=True).print(text, soft_wrap=True)


# ---- screens ---------------------------------------------------------------------------------------------


def screen(*, stderr: bool = False) -> Console:
    """A console. Not a terminal: wide, so that a table that is piped into another program loses no column, and without
    the blanks with which rich fills up a last column.

    rich itself follows FORCE_COLOR, TERM=dumb and COLUMNS. Of NO_COLOR it takes colours alone; who sets that wants
    plain text, so bold and dim go, too.
    """
    from rich.console import Console

    from ironflow.cli.visible import OnlySigns

    stream = sys.stderr if stderr else stdout.stream()
    width = None if stream.isatty() or os.environ.get("COLUMNS") else 200
    file: Any = stream if stream.isatty() else _Unpadded(stream)
    colours: Any = None if os.environ.get("NO_COLOR") else "auto"
    made = Console(file=file, width=width, color_system=colours, highlight=False, emoji=False, markup=False)
    made.push_render_hook(OnlySigns(visible))
    made.on_broken_pipe = _broken_pipe  # type: ignore[method-assign]
    return made


def _broken_pipe() -> None:
    """What nobody reads any more ends a table as it ends everything else; rich would end the process with 1."""
    raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class _Unpadded:
    """A stream on which no line ends in blanks."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write whole lines, as rich does."""
        self._stream.write(re.sub(r" +$", "", text, flags=re.MULTILINE) if "\n" in text else text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def style_of(state: str) -> str:
    """The colour of a state of a run or of a step."""
    return _STYLES.get(state, "")


def state_text(state: str, note: str = "") -> Text:
    """A state in its colour, with a remark behind it."""
    from rich.text import Text

    text = Text(state, style=style_of(state))
    return text.append(f" {note}", style="dim") if note else text


def show(rows: Iterable[Row], *, as_json: bool, empty: str, draw: Callable[[Console, list[Row]], None]) -> None:
    """Print a list: one JSON array, or what `draw` makes of it, or a sentence when it is empty."""
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


def error_text(error: Any) -> str:
    """A stored failure, with all lines of its message; of one that has not the form of a failure, what it is."""
    if not error:
        return ""
    if not isinstance(error, Mapping):
        return str(error)
    name, message = error_name(error), str(error.get("message", ""))
    return f"{name}: {message}" if name and message else name or message


def error_name(error: Mapping[str, Any]) -> str:
    """The class of a stored failure, without its module; "" where it does not say it."""
    return str(error.get("type", "")).rpartition(".")[2]


def error_code(error: dict[str, Any] | None) -> str:
    """The code under which a failure of a run is looked up: that of Ironflow's own error, or that of any other."""
    module, _, name = str((error or {}).get("type", "")).rpartition(".")
    own = getattr(errors, name, None) if module == errors.__name__ else None
    return str(getattr(own, "code", errors.RunFailed.code))


def error_line(error: Any) -> str:
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
    return json_text(readable(value), indent=2)


def took(one: Try | RunRow, now: int, since: int | None = None) -> int | None:
    """How long a try or a run has taken (so far), ms; None before it started. `since`: from then on, and not only from
    its own start.
    """
    start = one.started_at if since is None else since
    if start is None:
        return None
    return (one.ended_at if one.ended_at is not None else now) - start
