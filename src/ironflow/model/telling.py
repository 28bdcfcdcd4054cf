"""What a worker's change tells of its run, twice: in the run's row, which lists show, and in the journal.

The two must tell one story: doctor compares them, whoever follows the journal waits for the event that says how a run
ended, and the next owner goes by it. So what moves in the row has its event beside it, and no such event comes alone.
What only the locked row can answer (is this run being undone? has it been warned of?) is left to `run.may_become`, and
what only the row can answer, which changes by its owner's hand alone while somebody owns it, to `check_row`.

Called for each change that a worker sends: a plain append is let through by one look at its kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ironflow.errors import InvalidInput
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.run import RunRow
from ironflow.model.transition import GUARD_OWNER, Transition

#: The event that says of a run that it left, by the state it left for: the last of its change.
_CLOSING: Final[dict[str, str]] = {
    runs.PENDING: j.RUN_RELEASED,
    runs.RETRYING: j.RUN_RETRYING,
    runs.SLEEPING: j.RUN_SUSPENDED,
    runs.WAITING: j.RUN_SUSPENDED,
    runs.AWAITING_APPROVAL: j.RUN_SUSPENDED,
    runs.PAUSED: j.RUN_PAUSED,
    runs.COMPLETED: j.RUN_SUCCEEDED,
    runs.WARNING: j.RUN_SUCCEEDED,
    runs.FAILED: j.RUN_FAILED,
    runs.CANCELLED: j.RUN_CANCELLED,
}
_CLOSES: Final = frozenset(_CLOSING.values())
_OPENS: Final = frozenset({j.RUN_STARTED, j.RUN_RESUMED})
#: The columns of a run that its owner may change, and the event that tells of each.
TOLD_BY: Final[dict[str, str]] = {
    "attempt": j.RUN_RETRYING,
    "compensating_for": j.RUN_COMPENSATING,
    "compensations": j.COMPENSATION_REGISTERED,
    "reason": j.RUN_PAUSED,
    "resume_state": j.RUN_PAUSED,
    "retry_count": j.RUN_RETRYING,
    "status_text": j.STATUS_SET,
    "warnings": j.WARNING,
}
#: Of these, those that must be there where the event is: what the server decides by, and what doctor compares.
_NEEDED: Final = ("attempt", "compensating_for", "compensations", "retry_count", "warnings")
#: Of these, those that the row has one more of with each event.
_COUNTED: Final = ("attempt", "compensations", "retry_count", "warnings")
#: What a restart forgets.
_FORGOTTEN: Final = ("compensations", "warnings")
_SHOWN: Final = frozenset(TOLD_BY.values())
_SPEAKING: Final = _CLOSES | _OPENS | _SHOWN


def check(change: Transition, told: Sequence[dict[str, Any]]) -> None:
    """Refuse a change whose events and whose row would tell two stories.

    Args:
        change: its fields are in their form, each by itself.
        told: the data of its events.

    Raises:
        InvalidInput: the message names the event, the column or the state.
    """
    kinds = [event.kind for event in change.events]
    if change.state is None and not change.changes and _SPEAKING.isdisjoint(kinds):
        return
    _check_opening(change, kinds)
    _check_leaving(change, kinds, told)
    _check_undoing(change, kinds, told)
    if change.changes or not _SHOWN.isdisjoint(kinds):
        _check_columns(change, kinds, told)


def needs_row(change: Transition) -> bool:
    """Whether `check_row` has something to say of a change."""
    return change.state == runs.CANCELLED or not (change.changes or {}).keys().isdisjoint(_COUNTED)


def check_row(change: Transition, row: RunRow) -> None:
    """Refuse a change by whoever owns a run, or may take it, that does not go on from the run's row.

    Args:
        change: it has passed `check`. A number of events that is too low is corrected: a change that is sent in parts
            knows none but its last one.
        row: before the change, and in the segment from which the change comes.

    Raises:
        InvalidInput: the message names the column or the state.
    """
    if change.state == runs.CANCELLED and (row.state, row.compensating_for) != (runs.CANCELLING, runs.CANCELLED):
        problem = f"nobody has asked for an end of run {row.run_id}, and its worker cannot cancel it"
        raise InvalidInput(problem, hint="Whoever wants it cancelled asks the server. A worker lets it end as failed.")
    changes = change.changes or {}
    for name in changes.keys() & _COUNTED:
        told = sum(event.kind == TOLD_BY[name] for event in change.events)
        has, says = getattr(row, name), changes[name]
        by_restart = name in _FORGOTTEN and change.state == runs.RETRYING and says == 0
        if by_restart or says == has + told:
            continue
        if says > has + told or TOLD_BY[name] == j.RUN_RETRYING:
            problem = f"changes.{name} is {says}: the run has {has}, and the events here make that {has + told}"
            raise InvalidInput(problem, hint="")
        changes[name] = has + told


def _check_opening(change: Transition, kinds: list[str]) -> None:
    """A segment begins once: with the change that takes the run."""
    takes = change.guard != GUARD_OWNER
    if change.lease is not None and (not kinds or kinds[0] not in _OPENS):
        words = " or ".join(sorted(_OPENS))
        raise InvalidInput(f"events[0] of a change that takes a run and keeps it must be {words}", hint="")
    for index, kind in enumerate(kinds):
        if kind in _OPENS and not (takes and index == 0):
            problem = f"events[{index}] is {kind}: it is the first event of a change that takes a run, and of no other"
            raise InvalidInput(problem, hint="")


def _check_leaving(change: Transition, kinds: list[str], told: Sequence[dict[str, Any]]) -> None:
    """A run that leaves says so in the journal, last, and with the same state."""
    state = change.state
    wanted = None if state is None else _CLOSING.get(state)
    if wanted is not None and (not kinds or kinds[-1] != wanted):
        raise InvalidInput(f"the last event of a change to the state {state} must be {wanted}", hint="")
    for index, kind in enumerate(kinds[: -1 if wanted is not None else None]):
        if kind in _CLOSES:
            problem = f"events[{index}] is {kind}: it must be the last one, and its state be said beside it"
            raise InvalidInput(problem, hint="")
    if state in runs.SUSPENDED and told[-1].get("state") != state:
        place = f"events[{len(kinds) - 1}].payload.state"
        raise InvalidInput(f"{place} is {told[-1].get('state')!r} where the state is {state!r}", hint="")
    if state == runs.COMPLETED and j.WARNING in kinds:
        raise InvalidInput("a run that was warned of ends in the state warning, not completed", hint="")


def _check_undoing(change: Transition, kinds: list[str], told: Sequence[dict[str, Any]]) -> None:
    """A run is in `cancelling` by an event: the one that begins it, or the one by which a segment takes it on."""
    begins = j.RUN_COMPENSATING in kinds
    undoing = begins or (kinds[:1] == [j.RUN_RESUMED] and told[0].get("cancelling") is True)
    if undoing and change.state not in runs.UNDOING:
        words = ", ".join(sorted(runs.UNDOING))
        what = j.RUN_COMPENSATING if begins else f"{j.RUN_RESUMED} with cancelling"
        raise InvalidInput(f"{what} goes with one of the states {words}, not with {change.state}", hint="")
    if change.state == runs.CANCELLING and not undoing:
        hint = f"{j.RUN_COMPENSATING} begins it, {j.RUN_RESUMED} with `cancelling` true takes it on."
        raise InvalidInput("no event of this change says that the run is cancelling", hint=hint)


def _check_columns(change: Transition, kinds: list[str], told: Sequence[dict[str, Any]]) -> None:
    changes = change.changes or {}
    restarts = kinds[-1:] == [j.RUN_RETRYING] and told[-1].get("mode") == "restart"
    for name, kind in TOLD_BY.items():
        value, forgotten = changes.get(name), restarts and name in _FORGOTTEN
        if name in changes and kind not in kinds and not forgotten:
            raise InvalidInput(f"changes.{name} goes with an event {kind}, which is not there", hint="")
        if value is None and name in _NEEDED and (forgotten or kind in kinds):
            raise InvalidInput(f"{j.RUN_RETRYING if forgotten else kind} goes with changes.{name}", hint="")
        if forgotten and value != 0:
            raise InvalidInput(f"changes.{name} is 0 after a restart", hint="")
        if not forgotten and isinstance(value, int) and value < kinds.count(kind):
            raise InvalidInput(f"changes.{name} is {value}, and this change alone has {kinds.count(kind)}", hint="")
