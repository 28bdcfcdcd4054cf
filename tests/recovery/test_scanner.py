"""The capacity scanner on both databases: what it takes back, from whom, how often, and what it leaves alone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.recovery.kit import EXPIRED, Clock, audits, row, scanner
from tests.store.build import (
    HOUR,
    activate,
    answer,
    answers,
    append,
    changed,
    create,
    leave,
    peek_one,
    session,
    start,
    timer,
)
from tests.store.conftest import Open

from ironflow.config import SETTINGS
from ironflow.errors import StoreUnreachable
from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.transition import APPLIED, STALE
from ironflow.store.base import Store

# ---- leases


async def test_g9_an_expired_lease_is_deleted_and_its_segment_queued_with_the_next_fence(store: Store) -> None:
    lost, next_one = start("r1", ttl=EXPIRED), create("r2", limits='[{"group":"g","limit":1}]')
    lost.lanes = next_one.lanes = [("g", 1)]
    await answers(store, lost, next_one)
    before = await store.holdings("r1")
    assert before is not None
    assert before.lease is not None, "an expired one is there until it is swept"
    report = await (await scanner(store)).run_once()
    assert report.counts == {"recovered": 1}
    after = await store.holdings("r1")
    assert after is not None
    assert (after.lease, after.holders) == (None, [])
    assert after.queue is not None
    assert (after.queue.execution_seq, after.queue.status) == (2, "ready")
    assert (after.row.state, after.row.execution_seq) == ("pending", 2)
    assert await store.lanes() == [], "its place is free for either of the two"


async def test_r5_a_lost_lease_raises_lease_recoveries_and_leaves_the_retry_count_alone(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    await (await scanner(store)).run_once()
    found = await row(store)
    assert (found.lease_recoveries, found.consecutive_recoveries, found.charged_recoveries) == (1, 1, 1)
    assert (found.attempt, found.retry_count) == (1, 0)
    view = fold(await store.journal("r1"))
    assert (view.state, view.lease_recoveries, view.retry_count, view.breaches) == ("pending", 1, 0, [])
    assert view.steps["0:a"].state == "interrupted"
    assert view.steps["0:a"].error == {"message": "interrupted: worker lease lost"}


async def test_the_journal_says_on_which_evidence_a_run_was_taken(store: Store) -> None:
    await answers(store, start("r1", ttl=EXPIRED), start("r2", session="s2"))
    await store.open_session(session(store, "s2"))
    eye = await scanner(store)
    await eye.run_once()
    await eye.session_died("s2")
    told = {run_id: (await store.journal(run_id))[-1].data() for run_id in ("r1", "r2")}
    assert told["r1"] == {"reason": "lease expired", "charged": True, "session": "s1"}
    assert told["r2"] == {"reason": "the process is gone", "charged": True, "session": "s2"}


async def test_g10_a_recovered_segment_is_not_handed_out_before_its_grace_is_over(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    await (await scanner(store, recovery_grace_ms=HOUR)).run_once()
    (queued,) = await store.queue()
    assert queued.status == "delayed"
    assert queued.eligible_at > store.now() + HOUR // 2
    await store.promote()
    assert await store.peek(["order"], 10) == []
    assert await store.reserve(["order"], 10, "s2", 1_000) == []


async def test_g26_no_list_shows_a_lease_that_has_expired(store: Store) -> None:
    await answers(store, start("r1", ttl=EXPIRED), start("r2"))
    assert [lease.run_id for lease in await store.leases()] == ["r2"]


async def test_p15_only_runs_without_a_live_owner_are_found(store: Store) -> None:
    await answers(
        store,
        start("lost", ttl=EXPIRED), start("owned"), start("asleep"), start("ended"), create("queued"),
    )  # fmt: skip
    await answer(store, leave("asleep", 4, "sleeping", waits=[timer("asleep", store.now() + HOUR)]))
    await answer(store, leave("ended", 4, "completed"))
    report = await (await scanner(store)).run_once()
    assert report.run_ids == ["lost"]
    states = {run_id: (await row(store, run_id)).state for run_id in ("owned", "asleep", "ended", "queued")}
    assert states == {"owned": "running", "asleep": "sleeping", "ended": "completed", "queued": "pending"}


async def test_r33_a_lease_of_a_paused_run_only_gives_its_slot_back(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    await store.decide(["r1"], changed(state="paused"))
    report = await (await scanner(store)).run_once()
    assert report.counts == {"freed": 1}
    assert ((await row(store)).state, await store.queue()) == ("paused", [])


async def test_g12_p20_after_a_recovery_the_old_owner_writes_nothing(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    await (await scanner(store)).run_once()
    before = [event.seq for event in await store.journal("r1")]
    assert await answer(store, append("r1", 5)) == STALE
    assert await answer(store, leave("r1", 5, "completed")) == STALE
    assert await answer(store, append("r1", 5, fence=2)) == STALE  # the right fence with the wrong token
    assert [event.seq for event in await store.journal("r1")] == before
    assert (await row(store)).state == "pending"


# ---- reservations and sessions


async def test_g16_an_expired_reservation_frees_its_slot_and_uses_no_attempt(store: Store) -> None:
    await answer(store, create("r1"))
    assert len(await store.reserve(["order"], 1, "s1", EXPIRED)) == 1
    assert (await (await scanner(store)).run_once()).counts == {"reservations": 1}
    head = await peek_one(store)
    found = await row(store)
    assert (head.run_id, head.execution_seq, found.lease_recoveries, found.attempt) == ("r1", 0, 0, 1)


async def test_g16_the_place_of_an_expired_reservation_is_free_for_the_next_of_its_lane_at_once(store: Store) -> None:
    """A run that nobody here can execute must not keep another one waiting that its lane has room for."""
    for name in ("r1", "r2"):
        change = create(name, limits='[{"group":"g","limit":1}]', route=name)
        change.lanes = [("g", 1)]
        await answer(store, change)
    assert [head.run_id for head in await store.reserve(["r1", "r2"], 2, "s1", EXPIRED)] == ["r1"]
    assert {queued.run_id: queued.status for queued in await store.queue()} == {"r1": "reserved", "r2": "blocked"}
    assert (await (await scanner(store)).run_once()).counts == {"reservations": 1}
    assert {queued.run_id: queued.status for queued in await store.queue()} == {"r1": "ready", "r2": "ready"}
    assert [head.run_id for head in await store.reserve(["r2"], 1, "s2", HOUR)] == ["r2"]


async def test_g17_deleting_an_expired_session_requeues_nothing_by_itself(store: Store) -> None:
    await store.open_session(session(store, "s1", ttl=EXPIRED))
    await answer(store, start("r1"))
    assert await store.close_session("s1") == ["r1"]
    assert (await store.sessions(), await store.queue()) == ([], [])
    assert (await (await scanner(store)).run_once()).counts == {"recovered": 1}


async def test_g18_another_node_recovers_a_dead_nodes_session_and_leases(store: Store, open_store: Open,
                                                                        store_url: str) -> None:  # fmt: skip
    await store.open_session(session(store, "s1", ttl=EXPIRED))
    await answers(store, start("r1"), start("r2", session="s2"))
    other = await open_store(store_url)
    report = await (await scanner(other)).run_once()
    assert (report.counts, report.run_ids) == ({"sessions": 1, "recovered": 1}, ["r1"])
    assert (await row(store, "r2")).state == "running"


async def test_what_a_dead_session_had_reserved_is_free_at_once(store: Store) -> None:
    """kill -9 between reservation and activation must not hold a run for the reservation's whole time."""
    await answers(store, create("r1"), create("r2"))
    await store.open_session(session(store, "s1"))
    assert [h.run_id for h in await store.reserve(["order"], 1, "s1", HOUR)] == ["r1"]
    assert [h.run_id for h in await store.reserve(["order"], 1, "s2", HOUR)] == ["r2"]
    report = await (await scanner(store)).session_died("s1")
    assert report.counts == {"sessions": 1, "reservations": 1}
    assert [head.run_id for head in await store.peek(["order"], 10)] == ["r1"]


async def test_a_death_that_is_reported_twice_is_counted_once(store: Store) -> None:
    await store.open_session(session(store, "s1"))
    await answer(store, start("r1"))
    eye = await scanner(store)
    reports = await asyncio.gather(eye.session_died("s1"), eye.session_died("s1"))
    assert sum(report.counts.get("recovered", 0) for report in reports) == 1
    assert (await row(store)).lease_recoveries == 1


async def test_a_death_takes_no_lease_that_somebody_else_holds_by_now(store: Store) -> None:
    await store.open_session(session(store, "s1"))
    await answer(store, start("r1", session="s1"))
    await (await scanner(store)).session_died("s1")
    assert await answer(store, activate(await peek_one(store), 5, session="s2")) == APPLIED
    assert (await (await scanner(store)).session_died("s1")).run_ids == []
    assert (await row(store)).state == "running"


# ---- several at once


async def test_g19_r12_p17_two_scanners_recover_each_run_once_with_one_pair_of_audits(
    store: Store, open_store: Open, store_url: str
) -> None:
    names = [f"r{n:02}" for n in range(20)]
    await answers(store, *(start(name, ttl=EXPIRED) for name in names))
    eyes = [await scanner(store), await scanner(await open_store(store_url))]
    await asyncio.gather(*(eye.run_once() for eye in eyes))
    for eye in eyes:  # what one had locked was left by the other
        await eye.run_once()
    for name in names:
        assert (await row(store, name)).lease_recoveries == 1
        assert await audits(store, name) == ["capacity.lease.expired", "capacity.segment.recovered"]


async def test_g24_audits_of_a_recovery_are_written_whatever_else_is_switched_off(store: Store) -> None:
    off: dict[str, Any] = {setting.field: None for setting in SETTINGS if setting.kind == "optional"}
    off |= {setting.field: 0 for setting in SETTINGS if setting.kind == "count" and not setting.least}
    assert off.keys() >= {"suspect_after_ms", "run_retention_ms", "max_streams", "parked_instances"}
    eye = await scanner(store, **off, metrics_address=None, log_level="critical")
    logging.disable()
    try:
        await answer(store, start("r1", ttl=EXPIRED))
        await eye.run_once()
    finally:
        logging.disable(logging.NOTSET)
    assert await audits(store) == ["capacity.lease.expired", "capacity.segment.recovered"]


async def test_r13_p16_a_pass_recovers_at_most_its_batch_and_the_rest_follows(store: Store) -> None:
    await answers(store, *(start(f"r{n}", ttl=EXPIRED) for n in range(7)))
    eye = await scanner(store, recovery_batch=3)
    passes = [await eye.run_once() for _ in range(3)]
    assert [report.counts for report in passes] == [{"recovered": 3}, {"recovered": 3}, {"recovered": 1}]
    assert [report.more for report in passes] == [True, True, False]


async def test_a_page_of_runs_that_cannot_be_recovered_stops_no_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ironflow.model import recovery

    await answers(store, *(start(f"r{n}", ttl=EXPIRED) for n in range(4)))
    real = recovery.expired_lease

    def broken(locked: Any, *rest: Any, **named: Any) -> Any:
        if locked.row.run_id in ("r0", "r1"):
            raise RuntimeError("a bug of ours")
        return real(locked, *rest, **named)

    monkeypatch.setattr(recovery, "expired_lease", broken)
    eye = await scanner(store, recovery_batch=2)
    assert (await eye.run_once()).counts == {"errors": 2}
    assert (await eye.run_once()).run_ids == ["r2", "r3"]


async def test_p29_finish_cancel_and_recovery_at_once_leave_one_terminal_event(
    store: Store, open_store: Open, store_url: str
) -> None:
    from ironflow.engine import commands
    from ironflow.errors import InvalidTransition

    other = await open_store(store_url)
    for number in range(12):
        name = f"r{number}"
        await answer(store, start(name, ttl=EXPIRED))

        async def cancel(name: str = name) -> None:
            try:
                await commands.cancel(other, name, "me")
            except InvalidTransition:
                pass  # it had ended

        eye = await scanner(other)
        await asyncio.gather(answer(store, leave(name, 4, "completed")), cancel(), eye.run_once())
        events = await store.journal(name)
        assert sum(event.kind in j.TERMINAL_KINDS for event in events) == 1
        view, found = fold(events), await row(store, name)
        assert (view.breaches, view.state) == ([], found.state)


# ---- clocks that lie


async def test_a_scanner_that_has_just_begun_grants_one_renewal_before_it_trusts_clocks(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    await store.open_session(session(store, "s1", ttl=EXPIRED))
    eye = CapacityScanner(store, (await scanner(store, renewal_interval_ms=300)).settings, lambda: 0.0)
    assert (await eye.run_once()).counts == {}
    eye._grace_until = store.now()  # the renewal interval is over
    assert (await eye.run_once()).counts == {"sessions": 1, "recovered": 1}


async def test_a_scanner_that_was_late_grants_one_renewal_again(store: Store) -> None:
    """A laptop that was suspended: everybody's clocks are over, and everybody is alive."""
    clock = Clock()
    eye = await scanner(store, clock)
    await eye.run_once()
    await answer(store, start("r1", ttl=EXPIRED))
    clock.at += 60
    assert (await eye.run_once()).counts == {}
    assert eye._grace_until > store.now()
    clock.at += 1
    eye._grace_until = store.now()  # the renewal interval is over
    assert (await eye.run_once()).counts == {"recovered": 1}


async def test_proof_needs_no_clock_and_no_patience(store: Store) -> None:
    await answer(store, start("r1"))
    await store.open_session(session(store))
    eye = CapacityScanner(store, (await scanner(store)).settings, lambda: 0.0)
    assert (await eye.session_died("s1")).run_ids == ["r1"]


async def test_what_ran_out_while_nobody_could_renew_is_recovered_and_charged_to_no_run(store: Store) -> None:
    """Two outages of the database made a suspect of a run with a long step that did no harm."""
    clock = Clock()
    eye = await scanner(store, clock, lease_ttl_ms=20_000)
    for outage in (1, 2, 3):
        await eye.run_once()
        if outage == 1:
            await answer(store, start("r1", ttl=EXPIRED))
        else:
            head = await peek_one(store)
            await answer(store, activate(head, len(await store.journal("r1")) + 1, ttl=EXPIRED))
        clock.at += 30
        assert eye._last is not None
        eye._last = eye._last[0], store.now() - 30_000  # the database's own clock tells the same
        assert (await eye.run_once()).counts == {}
        clock.at += 1
        eye._grace_until = store.now()
        assert (await eye.run_once()).counts == {"recovered": 1}
        found = await row(store)
        assert (found.lease_recoveries, found.charged_recoveries, found.consecutive_recoveries) == (outage, 0, 0)


async def test_what_ran_out_in_a_gap_too_short_to_cost_a_lease_is_charged(store: Store) -> None:
    clock = Clock()
    eye = await scanner(store, clock, lease_ttl_ms=20_000)
    await eye.run_once()
    await answer(store, start("r1", ttl=EXPIRED))
    clock.at += 6
    assert (await eye.run_once()).counts == {}
    clock.at += 1
    eye._grace_until = store.now()
    assert (await eye.run_once()).counts == {"recovered": 1}
    assert (await row(store)).charged_recoveries == 1


async def test_a_database_that_cannot_be_reached_is_not_seen_however_often_it_is_looked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes that fail at once leave no gap between them; whoever could not renew is granted time all the same."""
    clock = Clock()
    eye = await scanner(store, clock)
    await eye.run_once()

    async def away(*arguments: Any) -> Any:
        raise StoreUnreachable("the network is cut")

    with monkeypatch.context() as patched:
        patched.setattr(store, "overdue", away)
        patched.setattr(store, "expired_reservations", away)
        for _ in range(10):
            clock.at += 1
            with pytest.raises(StoreUnreachable):
                await eye.run_once()
    eye._grace_until = store.now()
    await answer(store, start("r1", ttl=EXPIRED))
    clock.at += 1
    assert (await eye.run_once()).counts == {}, "one renewal interval is granted"
