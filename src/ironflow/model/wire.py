"""What a worker and a server say to each other, as JSON: heads, events, and the changes a worker asks for.

Owns both directions of each form, so that the two sides cannot drift apart. What comes from the wire is checked here
for its shape and for what a worker may do at all; whether it may do it to this run is decided by the guard, on the
locked row. A token travels as it is and is stored as its hash: the server hashes what it receives, so that whoever
reads the database cannot write a journal. On the worker's side the fields named `token_hash` hold the token itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any, Final, TypeGuard

from ironflow.errors import InvalidInput
from ironflow.model import journal as j
from ironflow.model import payloads, telling
from ironflow.model import run as runs
from ironflow.model import transition as tr
from ironflow.model import wait as waits
from ironflow.model.capacity import DELAYED, READY, LeaseRow, QueueRow, RunHead
from ironflow.model.ids import LONGEST_NAME, LONGEST_STATUS, check_text, token_hash
from ironflow.model.journal import Event
from ironflow.model.moment import LATEST_MS
from ironflow.model.transition import Transition
from ironflow.model.wait import WaitRow

HEAD_FIELDS: Final = tuple(one.name for one in fields(RunHead))

#: How a worker may ask: as the owner, or as whoever was promised the run. A due wait is none of its business: the
#: server's waker puts such a run into the queue.
GUARDS: Final = frozenset({tr.GUARD_OWNER, tr.GUARD_QUEUED})
#: Kinds that only the server writes: they say what happened to a run from outside.
FROM_OUTSIDE: Final = frozenset({j.RUN_CREATED, j.RUN_RECOVERED, j.RUN_UNPAUSED, j.CANCEL_REQUESTED, j.RUN_REOPENED})
WRITTEN_BY_WORKERS: Final = frozenset(j.KINDS) - FROM_OUTSIDE
#: Columns of a run that its owner may change.
CHANGES: Final = frozenset(telling.TOLD_BY)
_COUNTS: Final = frozenset({"attempt", "compensations", "retry_count", "warnings"})
_LONGEST: Final = {"reason": LONGEST_NAME, "status_text": LONGEST_STATUS}
#: Why a run is undone is a worker's to say only where the run has failed under it.
_STATES: Final[dict[str, Collection[str]]] = {"compensating_for": (runs.FAILED,), "resume_state": runs.STATES}
#: The longest id of a step: some levels of scopes, each with a name.
_LONGEST_STEP: Final = 16 * LONGEST_NAME
_MOST: Final = 1 << 53
#: Events, or waits, that are read before others have their turn.
_PIECE: Final = 500
_QUEUE_FIELDS: Final = frozenset({"eligible_at", "status"})
#: What a worker's wait may be. Nothing but time ends one of these, and there are no others that anything would end.
_WAITS: Final = (waits.TIMER, waits.BACKOFF)

Item = dict[str, Any]


# ---- heads and events


def head_to_json(head: RunHead) -> dict[str, Any]:
    """A run as a poll hands it out."""
    return {name: getattr(head, name) for name in HEAD_FIELDS}


def head_from_json(found: dict[str, Any]) -> RunHead:
    """What `head_to_json` gave. A field that this release does not know is left out."""
    return RunHead(**{name: found[name] for name in HEAD_FIELDS if name in found})


def events_to_json(events: Iterable[Event]) -> list[list[Any]]:
    """A page of a journal."""
    return [[e.seq, e.kind, e.step_id, e.payload, e.execution_seq, e.at] for e in events]


def events_from_json(found: Iterable[Sequence[Any]]) -> list[Event]:
    """What `events_to_json` gave."""
    return [Event(*one) for one in found]


# ---- a change, on its way to the server


def item_of(change: Transition) -> Item:
    """A change as a worker asks for it; what has its usual value is left out."""
    item: Item = {"run_id": change.run_id, "guard": change.guard, "seq": change.execution_seq}
    for name, value in (
        ("token", change.token_hash),
        ("facts", change.facts),
        ("reservation", change.reservation),
        ("state", change.state),
        ("new_seq", change.new_execution_seq),
        ("new_token", change.new_token_hash),
    ):
        if value is not None:
            item[name] = value
    for name in _FLAGS:
        if getattr(change, name):
            item[name] = True
    if change.events:
        item["events"] = [[e.seq, e.kind, e.step_id, e.payload, e.execution_seq] for e in change.events]
    if change.changes:
        item["changes"] = change.changes
    if change.waits:
        item["waits"] = [[w.step_id, w.kind, w.status, w.due_at] for w in change.waits]
    if change.enqueue is not None:
        item["enqueue"] = {"eligible_at": change.enqueue.eligible_at, "status": change.enqueue.status}
    if change.lease is not None:
        item["lease"] = True
    return item


# ---- a change, as the server takes it in


def reading(item: object, session_id: str, lease_ttl_ms: int) -> Iterator[Transition | None]:
    """The change that an item asks for, read in pieces, for who shares a loop with others: None between two of them,
    and the change at last. Its queue row has no route yet: that is the run's, and the server knows it.

    Args:
        item: parsed JSON.
        session_id: who asks; a lease of the change becomes this session's.
        lease_ttl_ms: how long that lease lasts.

    Raises:
        InvalidInput: a field has the wrong type, does not exist, or says what a worker may not do.
    """
    if not isinstance(item, dict):
        raise InvalidInput("an item must be an object", hint="")
    change = _guarded(item)
    found, told = _list(item, "events"), list[dict[str, Any]]()
    for begin in range(0, len(found), _PIECE):
        if begin:
            yield None
        _events(change, found[begin : begin + _PIECE], told)
    for name in _FLAGS:
        if name in item:
            setattr(change, name, _flag(item, name))
    change.changes = _changes(item.get("changes"))
    if "waits" in item:
        found, seen = _list(item, "waits"), dict[str, WaitRow]()
        for begin in range(0, len(found), _PIECE):
            if begin:
                yield None
            _waits(change.run_id, found[begin : begin + _PIECE], seen)
        change.waits = list(seen.values())
    change.new_token_hash = _hashed(item, "new_token")
    change.enqueue = _queue_row(change, item.get("enqueue"))
    if _flag(item, "lease"):
        change.lease = LeaseRow(
            change.run_id, change.new_execution_seq or 0, change.new_token_hash or "", session_id, 0, lease_ttl_ms
        )
    _check(change)
    _check_waiting(change)
    telling.check(change, told)
    yield change


def _guarded(item: Item) -> Transition:
    """What of a change says who asks for it, and what must be true."""
    if not item.keys() <= _FIELDS:
        raise InvalidInput(f"an item has no field {min(item.keys() - _FIELDS)!r}", hint="")
    guard = item.get("guard", tr.GUARD_OWNER)
    if not isinstance(guard, str) or guard not in GUARDS:
        raise InvalidInput(f"a worker may not write under the guard {guard!r}", hint="")
    change = Transition(_text(item, "run_id"), guard, _count(item, "seq"), _hashed(item, "token"))
    change.facts = None if item.get("facts") is None else _count(item, "facts")
    change.reservation = None if item.get("reservation") is None else _text(item, "reservation")
    change.state = item.get("state")
    if item.get("new_seq") is not None:
        change.new_execution_seq = _count(item, "new_seq")
    return change


_FLAGS: Final = ("ended", "release", "progress", "clear_waits", "dequeue")
_FIELDS: Final = frozenset(
    {
        "again", "changes", "clear_waits", "dequeue", "ended", "enqueue", "events", "facts", "guard", "lease",
        "new_seq", "new_token", "progress", "release", "reservation", "run_id", "seq", "state", "token", "waits",
    }
)  # fmt: skip


def _check(change: Transition) -> None:
    """What belongs together: a run must not end up nowhere because half of a change was left out."""
    state: Any = change.state
    if state is not None and (not isinstance(state, str) or state not in runs.STATES):
        raise InvalidInput(f"{state!r} is no state of a run", hint="")
    if change.ended != (state in runs.TERMINAL):
        raise InvalidInput("`ended` and a terminal state go together", hint="")
    if (change.enqueue is not None) != (state in runs.QUEUED):
        raise InvalidInput("`enqueue` and the states pending and retrying go together", hint="")
    leaves = state is not None and state not in runs.OWNED
    if change.guard == tr.GUARD_OWNER:
        if change.token_hash is None:
            raise InvalidInput("an owner must show its token", hint="")
        if change.lease is not None or change.new_execution_seq is not None:
            raise InvalidInput("an owner has its lease already", hint="")
        if change.release != leaves:
            raise InvalidInput("`release` and a state in which nobody owns the run go together", hint="")
        return
    if change.reservation is None:
        raise InvalidInput("a run is taken with the reservation of the poll that handed it out", hint="")
    if change.new_execution_seq != change.execution_seq + 1 or state is None:
        raise InvalidInput("whoever takes a run raises its number by one and says its state", hint="")
    if (change.lease is None) != leaves or (change.lease is None) != (change.new_token_hash is None):
        raise InvalidInput("a run that is taken is leased with a token, unless it leaves at once", hint="")


def _check_waiting(change: Transition) -> None:
    """A run that waits is woken, by what it waits for or by what came meanwhile."""
    if change.state is None and not change.waits:
        return
    suspends = change.state in runs.SUSPENDED
    if suspends != bool(change.waits):
        suspended = ", ".join(sorted(runs.SUSPENDED))
        raise InvalidInput(f"`waits` go together with the states {suspended}: one at least wakes the run", hint="")
    if change.facts is None and (suspends or change.guard == tr.GUARD_QUEUED):
        hint = "They are in the head of the run: what came since then would be missed."
        raise InvalidInput("whoever takes a run, or lets it wait, must say its `facts`", hint=hint)


def _events(change: Transition, found: list[Any], told: list[dict[str, Any]]) -> None:
    """Put these behind the events of a change, and their data behind what was told. They are the next of the journal,
    written by whoever writes this change.
    """
    own = change.execution_seq if change.guard == tr.GUARD_OWNER else change.new_execution_seq
    events = change.events
    for index, one in enumerate(found, len(events)):
        event, data = _event(one, index)
        if event.execution_seq != own:
            problem = f"events[{index}] has the execution_seq {event.execution_seq}; who asks for this change has {own}"
            raise InvalidInput(problem, hint="")
        if index and event.seq != (events[0].seq + index if events[0].seq else 0):  # 0: the store gives the next number
            raise InvalidInput(f"events[{index}] has the seq {event.seq}: events are numbered without a gap", hint="")
        events.append(event)
        told.append(data)


def _event(found: object, index: int) -> tuple[Event, dict[str, Any]]:
    """An event, and its data. Called for each of a hundred thousand a second: its place is put into words only for who
    is refused.
    """
    if not isinstance(found, list) or len(found) != 5:
        raise InvalidInput(f"events[{index}]: an event is [seq, kind, step_id, payload, execution_seq]", hint="")
    seq, kind, step_id, payload, execution_seq = found
    if not isinstance(kind, str) or kind not in WRITTEN_BY_WORKERS:
        raise InvalidInput(f"events[{index}]: a worker cannot write an event of the kind {kind!r}", hint="")
    if step_id is not None and not (
        type(step_id) is str and 0 < len(step_id) <= LONGEST_NAME and step_id.isprintable()
    ):
        check_text(step_id, f"events[{index}].step_id", _LONGEST_STEP)
    if payload is not None and not (payload and _storable(payload)):
        raise InvalidInput(f"events[{index}].payload must be the text of a JSON object", hint="")
    data = payloads.check(kind, step_id, payload, index)
    if type(seq) is not int or not 0 <= seq < _MOST:
        _number(seq, f"events[{index}].seq")
    if type(execution_seq) is not int or not 0 <= execution_seq < _MOST:
        _number(execution_seq, f"events[{index}].execution_seq")
    return Event(seq, kind, step_id, payload, execution_seq), data


def _waits(run_id: str, found: list[Any], seen: dict[str, WaitRow]) -> None:
    """Put these behind the waits that were read, by their steps."""
    for index, one in enumerate(found, len(seen)):
        row = _wait(run_id, one, f"waits[{index}]")
        if row.step_id in seen:
            raise InvalidInput(f"waits[{index}].step_id is that of an earlier one: {row.step_id!r}", hint="")
        seen[row.step_id] = row


def _wait(run_id: str, found: object, place: str) -> WaitRow:
    if not isinstance(found, list) or len(found) != 4:
        raise InvalidInput(f"{place}: a wait is [step_id, kind, status, due_at]", hint="")
    step_id, kind, status, due_at = found
    check_text(step_id, f"{place}.step_id", _LONGEST_STEP)
    if kind not in _WAITS:
        raise InvalidInput(f"{place}.kind must be one of {', '.join(_WAITS)}: nothing ends another wait", hint="")
    if status not in waits.CLAIMABLE:
        raise InvalidInput(f"{place}: a wait cannot begin as {status!r}", hint="")
    if due_at is None:
        raise InvalidInput(f"{place}.due_at must be there: nothing else ends a wait", hint="")
    return WaitRow(run_id, step_id, kind, status, _time(due_at, f"{place}.due_at"))


def _queue_row(change: Transition, found: object) -> QueueRow | None:
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InvalidInput("`enqueue` must be an object", hint="")
    if not found.keys() <= _QUEUE_FIELDS:
        raise InvalidInput(f"`enqueue` has no field {min(found.keys() - _QUEUE_FIELDS)!r}", hint="")
    status = found.get("status", READY)
    if status not in (READY, DELAYED):
        raise InvalidInput(f"a run cannot be queued as {status!r}", hint="")
    seq = change.new_execution_seq if change.new_execution_seq is not None else change.execution_seq
    return QueueRow(change.run_id, "", 0, 0, _time(found.get("eligible_at", 0), "enqueue.eligible_at"), seq, status)


def _changes(found: object) -> dict[str, Any] | None:
    if not found:
        return None
    if not isinstance(found, dict) or not found.keys() <= CHANGES:
        raise InvalidInput(f"a worker may change {', '.join(sorted(CHANGES))} of a run, and nothing else", hint="")
    for name, value in found.items():
        if name in _COUNTS:
            if _number(value, name) > payloads.LARGEST:
                raise InvalidInput(f"{name} must be at most {payloads.LARGEST:,}", hint="")
        elif value is not None and not _storable(value, most := _LONGEST.get(name, LONGEST_NAME)):
            raise InvalidInput(f"{name} must be text of at most {most:,} characters, none of them a NUL", hint="")
        elif value is not None and value not in _STATES.get(name, (value,)):
            raise InvalidInput(f"{name} cannot be {value!r}", hint=f"It is one of {', '.join(sorted(_STATES[name]))}.")
    return found


def _storable(value: object, longest: int = _MOST) -> TypeGuard[str]:
    """Whether it is text that both databases can hold: PostgreSQL has no NUL."""
    return isinstance(value, str) and len(value) <= longest and "\0" not in value


def _text(item: Item, name: str) -> str:
    value = item.get(name)
    if not value or not _storable(value, LONGEST_NAME):
        raise InvalidInput(f"{name} must be text of 1 to {LONGEST_NAME} characters", hint="")
    return value


def _hashed(item: Item, name: str) -> str | None:
    return None if item.get(name) is None else token_hash(_text(item, name))


def _count(item: Item, name: str) -> int:
    return _number(item.get(name, 0), name)


def _number(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value < _MOST:  # not bool
        raise InvalidInput(f"{name} must be a whole number that is not negative", hint="")
    return value


def _time(value: object, name: str) -> int:
    at = _number(value, name)
    if at > LATEST_MS:
        raise InvalidInput(f"{name} must be a time in milliseconds since 1970, before the year 10000", hint="")
    return at


def _flag(item: Item, name: str) -> bool:
    value = item.get(name, False)
    if type(value) is not bool:
        raise InvalidInput(f"{name} must be true or false", hint="")
    return value


def _list(item: Item, name: str) -> list[Any]:
    value = item.get(name, [])
    if not isinstance(value, list):
        raise InvalidInput(f"{name} must be a list", hint="")
    return value
