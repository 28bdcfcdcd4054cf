"""A journal event as one line: when, what, of which step, and the one thing of its payload worth reading.

Owns the choice of that one thing for each kind. Promises one line per event, for any payload: also for a kind that a
newer release has written. It is of bounded length, but for an error: that is told whole, and once. One error is in the
events of every try that met it, of the step, and of the run, which only refer to it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ironflow.cli import times
from ironflow.cli.follow import state_of
from ironflow.cli.output import error_line, error_name, error_text, style_of, undone_lines
from ironflow.cli.values import readable
from ironflow.model import journal as j
from ironflow.model.journal import Event

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: The least width of the column of kinds, and that of the longest one: only one does not fit into the least.
KIND_WIDTH = 16
LONGEST_KIND = max(map(len, j.KINDS))
#: Columns of a screen that has room for the longest kind; on a narrower one it is cut, and nothing is pushed aside.
WIDE = 100
#: What the command that shows a run at work says once more when the run has ended, whole.
_SAID_AT_THE_END = frozenset({j.RUN_FAILED, j.RUN_COMPENSATING})
#: Longest remark on a line, in characters; the whole payload is in `--json`.
LONGEST = 200
#: Columns that the number of an event and the space behind it take.
SEQ_WIDTH = 7


class Printer:
    """Prints events, one below the other.

    Args:
        screen: where.
        seq: put the number of an event in front.
        width: of the column of kinds.
        brief: for a command that says at its end what the run failed with: an error is told in the one line of the
            step it comes from, cut, and of what the run failed with there is only the name.
    """

    def __init__(self, screen: Console, *, seq: bool = True, width: int = LONGEST_KIND, brief: bool = False) -> None:
        self._screen, self._seq, self._width, self._brief = screen, seq, width, brief
        self._told: set[str] = set()

    def show(self, event: Event) -> None:
        """Print an event: its line, and below it what of an error does not fit into one.

        A line that is too long for the terminal is cut, except of an error: that is left to the terminal to wrap.
        """
        error = _read(event).get("error")
        instead = self._instead(event, error)
        made = line(event, seq=self._seq, width=self._width, error=instead, whole=not self._brief)
        if error:
            self._screen.print(made, soft_wrap=True)
        else:  # said here once more: what rich prints is a copy of the text, without its own settings
            self._screen.print(made, no_wrap=True, overflow="ellipsis")
        for rest in [] if self._brief else below(event, again=instead is not None):
            self._screen.print(f"{'':>{SEQ_WIDTH if self._seq else 0}}{'':>14}{rest}", style="dim", soft_wrap=True)

    def _instead(self, event: Event, error: Any) -> str | None:
        """What is said in place of an error; None: it is told here."""
        if not error:
            return None
        text, name = error_text(error), error_name(error)
        if self._brief and event.kind in _SAID_AT_THE_END and name:
            return name
        above = f"{name}, as above" if name else "as above"
        if text in self._told and len(above) < len(text):
            return above
        self._told.add(text)
        return None


def line(
    event: Event, *, seq: bool = True, width: int = KIND_WIDTH, error: str | None = None, whole: bool = False
) -> Text:
    """An event as one line.

    Args:
        event: what to show.
        seq: put its number in front.
        width: of the column of kinds.
        error: said in place of the event's error.
        whole: do not cut the line of an error.
    """
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    if seq:
        text.append(f"{event.seq:>{SEQ_WIDTH - 2}}  ", style="dim")
    text.append(times.clock(event.at), style="dim")
    named = event.step_id is not None and ":" in event.step_id  # the places of notes and timers have no name
    note = remark(event, error=error, whole=whole)
    kind = event.kind if len(event.kind) <= width else f"{event.kind[: width - 1]}…"
    kind = f"{kind:<{width}}" if named or note else kind
    text.append(f"  {kind}", style=style_of(state_of(event)))
    if event.step_id and named:
        text.append(f"  {j.name_of(event.step_id)}")
        text.append(f"  {event.step_id.partition(':')[0]}", style="dim")
    if note:
        text.append(f"  {note}", style="dim" if event.step_id else "")
    return text


def kind_width(screen: Console, longest: int = LONGEST_KIND) -> int:
    """The width of the column of kinds on a screen. `longest`: the longest kind that will be shown there."""
    return max(KIND_WIDTH, longest) if screen.width >= WIDE else KIND_WIDTH


def below(event: Event, *, again: bool = False) -> list[str]:
    """The further lines of an event: of an error, those that are not in its line; and what a run that was undone left
    behind. `again`: the error was told before.
    """
    data = _read(event)
    lines = [] if again else error_text(data.get("error")).splitlines()
    undone = data.get("undo_errors") if event.kind in j.TERMINAL_KINDS else None
    more = [part for one in undone_lines(undone or {}) for part in one.splitlines()]
    return [*(lines[1:] if _REMARKS.get(event.kind) in (_error, _retry) else lines), *more]


def remark(event: Event, *, error: str | None = None, whole: bool = False) -> str:
    """The one thing in an event's payload that a reader of the line wants to know; arguments as of `line`."""
    data = _read(event)
    if data.keys() == {j.UNREADABLE}:
        found = f"cannot be read: {data[j.UNREADABLE]}"
    else:
        given = data if error is None else {**data, "error": error}
        found = _REMARKS.get(event.kind, _nothing)(given, event)
    return found if len(found) <= LONGEST or (whole and data.get("error")) else f"{found[: LONGEST - 1]}…"


def _read(event: Event) -> dict[str, Any]:
    return j.fitting(event.told())[0]


def _nothing(data: dict[str, Any], event: Event) -> str:
    return ""


def _value(name: str) -> Any:
    def show(data: dict[str, Any], event: Event) -> str:
        value = data.get(name)
        return "" if value is None else json.dumps(readable(value), ensure_ascii=False, default=str)

    return show


def _error(data: dict[str, Any], event: Event) -> str:
    return error_line(data.get("error"))


def _retry(data: dict[str, Any], event: Event) -> str:
    left = data["due"] - event.at if data.get("due") else 0
    again = f"in {_planned(left)}" if left > 0 else "at once"
    tried = f"{data.get('attempt', '?')} of {data.get('of', '?')}"
    return f"failed {tried}, again {again}: {error_line(data.get('error'))}"


def _planned(ms: int) -> str:
    """A wait that was planned some ms before it was recorded: a second is not shown as 999ms."""
    return times.span(round(ms, -1) if ms >= 100 else ms)


def _started(data: dict[str, Any], event: Event) -> str:
    number = data.get("try", 1)
    return f"try {number}" if number != 1 else ""


def _due(data: dict[str, Any], event: Event) -> str:
    """Until when, and not for how long: an event is written when the run suspends, or after an outage, and what is left
    then is not what was asked for.
    """
    due = data.get("due")
    state = f"{data['state']} " if "state" in data else ""
    return f"{state}until {times.moment(due, event.at)}" if due else state.strip()


def _by(data: dict[str, Any], event: Event) -> str:
    parts = [str(data[name]) for name in ("reason", "message") if data.get(name)]
    if data.get("by"):
        parts.append(f"by {data['by']}")
    return ": ".join(parts[:2]) if len(parts) > 1 and not data.get("by") else " ".join(parts)


def _worker(data: dict[str, Any], event: Event) -> str:
    return f"on {data['worker']}" if data.get("worker") else ""


def _text(data: dict[str, Any], event: Event) -> str:
    return str(data.get("text") or data.get("message") or "")


_REMARKS = {
    j.RUN_CREATED: _value("input"),
    j.RUN_STARTED: _worker,
    j.RUN_RESUMED: _worker,
    j.RUN_SUSPENDED: _due,
    j.RUN_RECOVERED: _by,
    j.RUN_PAUSED: _by,
    j.RUN_UNPAUSED: _by,
    j.RUN_RETRYING: _retry,
    j.CANCEL_REQUESTED: _by,
    j.RUN_REOPENED: _by,
    j.RUN_SUCCEEDED: _value("output"),
    j.RUN_COMPENSATING: _error,
    j.RUN_FAILED: _error,
    j.RUN_CANCELLED: _by,
    j.STEP_STARTED: _started,
    j.STEP_COMPLETED: _value("result"),
    j.STEP_FAILED: _error,
    j.STEP_RETRYING: _retry,
    j.TIMER_STARTED: _due,
    j.STATUS_SET: _text,
    j.WARNING: _text,
    j.OUTPUT_SET: _value("output"),
}
