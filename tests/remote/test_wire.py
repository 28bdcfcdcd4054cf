"""What travels between worker and server comes back as it was, and what no worker may ask for is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.model.build import LEASE_TTL_MS, change_of

from ironflow.errors import InvalidInput, PayloadTooLarge
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import wait as waits
from ironflow.model import wire
from ironflow.model.capacity import LeaseRow, QueueRow, RunHead
from ironflow.model.ids import token_hash
from ironflow.model.journal import Event
from ironflow.model.moment import LATEST_MS
from ironflow.model.transition import GUARD_OWNER, GUARD_QUEUED, Transition
from ironflow.model.wait import WaitRow
from ironflow.remote.parts import in_parts

TOKEN = "0123456789abcdef"
_UNPRINTABLE = ("Cs", "Cc", "Cf", "Cn", "Co", "Zs", "Zl", "Zp")
names = st.text(st.characters(blacklist_categories=_UNPRINTABLE), min_size=1, max_size=40)
counts = st.integers(0, 1 << 50)
#: What a column that counts is given: never less than the change itself tells of.
numbers = st.integers(10, (1 << 31) - 1)
times = st.integers(0, LATEST_MS)
#: Besides what somebody goes by, which is to have its form.
others = st.dictionaries(names.map("x {}".format), st.integers() | names, max_size=3)
NEEDED: dict[str, dict[str, Any]] = {
    j.STEP_FAILED: {"error": {"message": "m"}}, j.TIMER_STARTED: {"due": 1}, j.RUN_SUSPENDED: {"state": runs.SLEEPING},
    j.RUN_RESUMED: {"cancelling": True},
}  # fmt: skip
#: What stands in its own place of a change only.
PLACED = frozenset({j.RUN_STARTED, j.RUN_RESUMED, j.RUN_COMPENSATING, j.RUN_RELEASED}) | j.TERMINAL_KINDS
#: The columns that a change gives beside an event.
SHOWN: dict[str, dict[str, Any]] = {
    j.COMPENSATION_REGISTERED: {"compensations": numbers}, j.WARNING: {"warnings": numbers},
    j.STATUS_SET: {"status_text": st.none() | names}, j.RUN_COMPENSATING: {"compensating_for": st.just("failed")},
    j.RUN_PAUSED: {"reason": names, "resume_state": st.just("pending")},
    j.RUN_RETRYING: {"attempt": numbers, "retry_count": numbers},
}  # fmt: skip
LAST = {
    "ends": j.RUN_SUCCEEDED, "sleeps": j.RUN_SUSPENDED, "pauses": j.RUN_PAUSED, "is tried again": j.RUN_RETRYING,
}  # fmt: skip


@st.composite
def events(draw: Any, fence: int, *begin: str, last: str | None) -> list[Event]:
    kinds = sorted(set(j.KINDS) - wire.FROM_OUTSIDE - set(LAST.values()) - PLACED)
    first = draw(st.integers(1, 1_000))
    within = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=6))
    found = [*begin, *within, *([last] if last else [])]
    return [
        Event(first + n, kind, draw(names), json.dumps({**draw(others), **NEEDED.get(kind, {})}), fence)
        for n, kind in enumerate(found)
    ]


@st.composite
def changes(draw: Any) -> Transition:
    """Any change that a worker makes: as the owner or as who takes the run; going on, or leaving in some way."""
    takes = draw(st.booleans())
    seq = draw(counts)
    change = Transition(draw(names), GUARD_QUEUED if takes else GUARD_OWNER, seq, None if takes else TOKEN)
    fence = seq
    if takes:
        change.new_execution_seq = fence = seq + 1
        change.facts, change.reservation, change.dequeue = draw(counts), TOKEN, True
    way = draw(st.sampled_from(["goes on", "ends", "sleeps", "pauses", "is tried again"]))
    if way == "goes on":
        change.state = draw(st.sampled_from([runs.RUNNING if takes else None, runs.CANCELLING]))
        if takes:
            change.new_token_hash = TOKEN
            change.lease = LeaseRow(change.run_id, fence, TOKEN, "s", 0, LEASE_TTL_MS)
    else:
        change.release = not takes
        change.state = {"ends": runs.COMPLETED, "sleeps": runs.SLEEPING, "pauses": runs.PAUSED}.get(way, runs.RETRYING)
        change.ended = way == "ends"
    if way == "sleeps":
        change.facts = draw(counts)
        change.waits = [WaitRow(change.run_id, draw(names), waits.TIMER, waits.SLEEPING, draw(times))]
    if way == "is tried again":
        change.enqueue = QueueRow(change.run_id, "", 0, 0, draw(times), fence)
    begin = [j.RUN_COMPENSATING] if change.state == runs.CANCELLING else []
    if change.lease is not None:
        begin = [j.RUN_RESUMED if change.state == runs.CANCELLING and draw(st.booleans()) else j.RUN_STARTED, *begin]
    change.events = draw(events(fence, *begin, last=LAST.get(way)))
    kinds = {event.kind for event in change.events}
    if change.ended and j.WARNING in kinds:
        change.state = runs.WARNING
    change.progress, change.clear_waits = draw(st.booleans()), draw(st.booleans())
    shown = {name: value for kind in sorted(kinds & SHOWN.keys()) for name, value in SHOWN[kind].items()}
    change.changes = draw(st.fixed_dictionaries(shown)) if shown else None
    return change


def told(change: Transition) -> dict[str, Any]:
    """Every field, so that one that is added later is not left out on the way."""
    found = {name: getattr(change, name) for name in Transition.__slots__}
    found["events"] = [(e.seq, e.kind, e.step_id, e.payload, e.execution_seq) for e in change.events]
    return found | {"waits": list(change.waits), "lanes": list(change.lanes), "audit": list(change.audit)}


@given(changes())
def test_a_change_arrives_as_it_was_sent_with_its_tokens_hashed(change: Transition) -> None:
    arrived = change_of(json.loads(json.dumps(wire.item_of(change))))
    for name in ("token_hash", "new_token_hash"):
        value = getattr(change, name)
        setattr(change, name, None if value is None else token_hash(value))
    if change.lease is not None:
        change.lease.token_hash = token_hash(change.lease.token_hash)
    assert told(arrived) == told(change)


@given(st.data())
def test_what_is_bent_is_refused_or_still_a_change(data: st.DataObject) -> None:
    """Whatever stands in a field, the answer is a change or a refusal, and never another error."""
    item = wire.item_of(data.draw(changes()))
    name = data.draw(st.sampled_from([*item, "again", "lease", "enqueue", "org"]))
    item[name] = data.draw(
        st.none() | st.booleans() | counts | names | st.lists(counts | names | st.none(), max_size=5)
    )
    try:
        change_of(item)
    except InvalidInput:
        return


@given(st.builds(RunHead, *[names] * 6, *[counts] * 7, st.none() | names, st.none() | counts, counts))
def test_a_head_arrives_as_it_was_sent(head: RunHead) -> None:
    assert wire.head_from_json(json.loads(json.dumps(wire.head_to_json(head)))) == head


@pytest.mark.parametrize("kind", sorted(wire.FROM_OUTSIDE))
def test_a_worker_cannot_write_what_happens_to_a_run_from_outside(kind: str) -> None:
    item = {"run_id": "r", "guard": GUARD_OWNER, "seq": 1, "token": TOKEN, "events": [[2, kind, None, "{}", 1]]}
    with pytest.raises(InvalidInput, match=kind):
        change_of(item)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"status_text": "x" * 1_001}, "status_text must be text of at most 1,000 characters"),
        ({"reason": "x" * 201}, "reason must be text of at most 200 characters"),
        ({"reason": "a\x00b"}, "reason must be text"),
        ({"resume_state": "asleep"}, "resume_state cannot be 'asleep'"),
        ({"compensating_for": "running"}, "compensating_for cannot be 'running'. It is one of failed"),
    ],
)
def test_what_a_worker_writes_into_lists_is_bounded_and_one_of_what_there_is(
    changes: dict[str, str], named: str
) -> None:
    item = {"run_id": "r", "guard": GUARD_OWNER, "seq": 1, "token": TOKEN, "events": [], "changes": changes}
    with pytest.raises(InvalidInput) as refused:
        change_of(item)
    assert str(refused.value).startswith(named)


def test_parts_of_a_change_are_its_events_in_order_and_its_end_last() -> None:
    change = Transition("r", GUARD_OWNER, 1, TOKEN)
    change.events = [Event(n, j.STEP_COMPLETED, "s", '{"result":"' + "x" * 4_000 + '"}', 1) for n in range(5, 15)]
    change.events.append(Event(15, j.RUN_SUCCEEDED, None, "{}", 1))
    change.state, change.ended, change.release, change.progress = runs.COMPLETED, True, True, True
    whole = list(change.events)
    parts = in_parts(change, 20_000)
    assert [event for part in parts for event in part.events] == whole
    assert len(parts) > 3
    assert all(part.is_plain_append for part in parts[:-1])
    assert (parts[-1].state, parts[-1].ended, parts[-1].release, parts[-1].progress) == ("completed", True, True, True)


def large(kind: str, fence: int, *kinds: str) -> list[Event]:
    """These, with so much of the other kind between each two that they come into different parts."""
    each = [one for kind_ in kinds for one in (kind_, *[kind] * 6)]
    text = json.dumps({"error": {"message": "x" * 4_000}})
    return [Event(n, one, "s", text, fence) for n, one in enumerate(each, 5)]


@pytest.mark.parametrize("taken", [False, True])
def test_each_part_of_a_change_says_of_the_row_what_its_events_tell_and_none_is_refused(taken: bool) -> None:
    notes = (j.WARNING, j.WARNING, j.COMPENSATION_REGISTERED, j.STATUS_SET, j.RUN_COMPENSATING, j.STATUS_SET)
    change = Transition("r", GUARD_QUEUED, 1) if taken else Transition("r", GUARD_OWNER, 2, TOKEN)
    if taken:
        change.new_execution_seq, change.new_token_hash, change.dequeue, change.facts = 2, TOKEN, True, 0
        change.reservation, change.lease = TOKEN, LeaseRow("r", 2, TOKEN, "s", 0, LEASE_TTL_MS)
    change.state = runs.CANCELLING
    change.changes = {"warnings": 5, "compensations": 3, "status_text": "b", "compensating_for": "failed"}
    change.events = large(j.STEP_FAILED, 2, *([j.RUN_STARTED] if taken else []), *notes, j.STEP_STARTED)
    parts = in_parts(change, 20_000)
    counts = [part.changes["warnings"] for part in parts if part.changes and "warnings" in part.changes]
    assert (counts[-1], len(counts)) == (5, len({*counts}))
    states = [part.state for part in parts if part.state is not None]
    assert states == ([runs.RUNNING] if taken else []) + [runs.CANCELLING]
    row: dict[str, Any] = {}
    for part in parts:
        arrived = change_of(json.loads(json.dumps(wire.item_of(part))))
        row |= arrived.changes or {}
    assert row == {"warnings": 5, "compensations": 3, "status_text": "b", "compensating_for": "failed"}


def test_a_restart_in_parts_forgets_with_its_last_one() -> None:
    change = Transition("r", GUARD_OWNER, 2, TOKEN)
    change.state, change.release, change.enqueue = runs.RETRYING, True, QueueRow("r", "", 0, 0, 9, 2)
    change.changes = {"attempt": 2, "retry_count": 1, "warnings": 0, "compensations": 0}
    change.events = large(j.STEP_FAILED, 2, j.WARNING, j.STEP_STARTED)
    change.events.append(Event(change.events[-1].seq + 1, j.RUN_RETRYING, None, '{"mode":"restart"}', 2))
    first, *_, last = in_parts(change, 20_000)
    assert (first.changes, last.changes) == ({"warnings": 1}, change.changes)
    for part in (first, last):
        assert change_of(wire.item_of(part))


def test_the_first_part_of_a_taken_run_takes_it() -> None:
    change = Transition("r", GUARD_QUEUED, 1)
    change.new_execution_seq, change.new_token_hash, change.state, change.dequeue = 2, TOKEN, runs.RUNNING, True
    change.lease = LeaseRow("r", 2, TOKEN, "s", 0, LEASE_TTL_MS)
    change.events = [Event(n, j.STEP_STARTED, "s", '{"x":"' + "x" * 4_000 + '"}', 2) for n in range(5, 15)]
    first, *rest = in_parts(change, 20_000)
    assert first.lease is not None
    assert {(part.guard, part.execution_seq, part.token_hash) for part in rest} == {(GUARD_OWNER, 2, TOKEN)}
    assert PayloadTooLarge("x", 2, 1).status == 413
