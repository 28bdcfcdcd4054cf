"""`why` always has an answer, and the answer names who and what, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.store.build import EXPIRED, HOUR, answer, answers, changed, create, due_at_once, leave, session, start, timer

from ironflow.engine import commands
from ironflow.engine.ending import DEADLINE
from ironflow.engine.views import worker_routing
from ironflow.engine.why import CODES, Hold, holds
from ironflow.errors import RunNotFound
from ironflow.model.capacity import QueueRow
from ironflow.model.ids import route_of
from ironflow.model.journal import RUN_PAUSED, Event
from ironflow.model.routing import own_runs
from ironflow.model.transition import Locked, Transition
from ironflow.model.wait import WaitRow
from ironflow.store import connect
from ironflow.store.base import Store


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    opened = await connect(store_url)
    yield opened
    await opened.close()


async def codes(store: Store, run_id: str = "r1") -> dict[str, Hold]:
    found = await holds(store, run_id)
    assert found
    assert {hold.code for hold in found} <= CODES.keys()
    return {hold.code: hold for hold in found}


def requeued(status: str, **values: Any) -> Any:
    """A decision that puts the run into the queue like this."""

    def decide(locked: Locked) -> Transition:
        row = locked.row
        change = Transition(row.run_id, "locked", row.execution_seq)
        change.dequeue, change.release = locked.queue is not None, locked.lease is not None
        change.state = values.pop("state", row.state if locked.lease is None else "pending")
        eligible = values.pop("eligible_at", locked.now)
        change.enqueue = QueueRow(row.run_id, row.route, 0, 0, eligible, row.execution_seq, status, **values)
        return change

    return decide


async def test_a_run_behind_a_long_queue_is_explained(store: Store) -> None:
    await answers(store, *(create(f"a{n:04}", priority=1) for n in range(1_001)))
    await answer(store, create("r1"))
    assert (await codes(store)).keys() == {"NO_WORKER"}


async def test_a_lease_that_ran_out_and_awaits_its_sweep_is_named(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    found = await codes(store)
    assert found.keys() == {"LEASE_EXPIRED", "NO_WORKER"}
    assert "session s1" in found["LEASE_EXPIRED"].message


async def test_an_executing_run_names_its_worker_and_the_step_that_takes_so_long(store: Store) -> None:
    await store.open_session(session(store, worker_id="gpu-7"))
    await answer(store, start("r1"))
    found = await codes(store)
    assert found.keys() == {"EXECUTING", "STEP_EXECUTING"}
    assert "gpu-7" in found["EXECUTING"].message
    assert "0:a" in found["STEP_EXECUTING"].message


async def test_a_full_lane_names_its_limit_and_who_is_in_it(store: Store) -> None:
    await store.open_session(session(store))
    for run_id in ("r0", "r1"):
        change = start(run_id) if run_id == "r0" else create(run_id)
        change.lanes = [("group:api", 1)]
        await answer(store, change)
    await store.decide(["r1"], requeued("blocked", blocked_lane="group:api"))
    found = await codes(store)
    assert found.keys() == {"LANE_FULL"}
    assert "limit 1" in found["LANE_FULL"].message
    assert "r0" in found["LANE_FULL"].message


@pytest.mark.parametrize("credits", [8, 0])
async def test_a_full_lane_is_named_whether_or_not_a_worker_has_met_it(store: Store, credits: int) -> None:
    """A worker without a free slot tries no run, so nothing in the queue says that the lane is full."""
    await store.open_session(session(store, credits=credits))
    for change in (start("r0"), create("r1"), create("r2")):
        change.lanes = [("group:api", 1 if change.run_id != "r2" else 2), ("group:free", 5)]
        await answer(store, change)
    found = await codes(store)
    assert found.keys() == ({"LANE_FULL"} if credits else {"LANE_FULL", "WORKERS_BUSY"})
    assert "lane group:api is full (limit 1); held by r0" in found["LANE_FULL"].message
    assert "LANE_FULL" not in await codes(store, "r2"), "each run has its own limit"
    await store.decide(["r2"], requeued("blocked", blocked_lane="group:api"))
    assert "has a place again" in (await codes(store, "r2"))["LANE_FULL"].message


async def test_a_due_run_that_waits_for_its_lane_names_it(store: Store) -> None:
    await store.open_session(session(store))
    for change in (start("r0"), start("r1")):
        change.lanes = [("group:api", 1)] if change.run_id == "r0" else [("group:api", 2)]
        await answer(store, change)
    await answer(store, leave("r1", 4, "sleeping", waits=[timer("r1", store.now() - HOUR)]))
    assert "LANE_FULL" not in await codes(store)
    other = start("r2")
    other.lanes = [("group:api", 2)]
    await answer(store, other)
    assert (await codes(store)).keys() == {"WAITING", "LANE_FULL"}


async def test_a_scheduled_run_that_was_paused_and_resumed_has_lost_no_worker(store: Store) -> None:
    await store.open_session(session(store))
    at = store.now() + HOUR
    await answer(store, create("r1", scheduled_at=at, eligible_at=at))
    await commands.pause(store, "r1", "ann")
    await commands.resume(store, "r1", "ann")
    found = await codes(store)
    assert (found.keys(), found["SCHEDULED"].until) == ({"SCHEDULED"}, at)


async def test_of_a_paused_run_that_was_not_due_yet_it_is_said_what_it_waits_for_besides(store: Store) -> None:
    await store.open_session(session(store))
    at = store.now() + HOUR
    await answers(store, create("r1", scheduled_at=at, eligible_at=at), start("r2"), start("r3"))
    await store.decide(["r2"], requeued("delayed", state="retrying", eligible_at=at))
    await store.decide(["r3"], requeued("delayed", eligible_at=at))
    for run_id, code in (("r1", "SCHEDULED"), ("r2", "RUN_RETRY"), ("r3", "RECOVERY_GRACE")):
        await commands.pause(store, run_id, "ann")
        found = await codes(store, run_id)
        assert (found.keys(), found[code].until) == ({"PAUSED", code}, at)
    await store.decide(["r2"], due_at_once)
    assert (await codes(store, "r2")).keys() == {"PAUSED"}


async def test_what_a_worker_lacks_is_named(store: Store) -> None:
    await answer(store, create("r1", route=route_of("order", "2", ("big", "gpu"))))
    await store.open_session(session(store, routes="report"))
    assert "none with workflow order (tags big, gpu)" in (await codes(store))["NO_ELIGIBLE_WORKER"].message
    await store.open_session(session(store, "s2", routes=f"order\n{route_of('order', '1', ('gpu',))}"))
    assert "none that continues version 2" in (await codes(store))["NO_ELIGIBLE_WORKER"].message
    await store.open_session(session(store, "s3", routes=route_of("order", "2", ("gpu",))))
    assert "missing: big" in (await codes(store))["NO_ELIGIBLE_WORKER"].message


async def test_full_draining_and_silent_workers_are_no_workers_to_wait_for(store: Store) -> None:
    await answer(store, create("r1"))
    await store.open_session(session(store, "s1", ttl=EXPIRED))
    await store.open_session(session(store, "s2", draining=1))
    found = await codes(store)
    assert found.keys() == {"NO_WORKER"}
    assert found["NO_WORKER"].message == "1 worker is leaving and takes nothing new; no other is connected"
    await store.open_session(session(store, "s3", credits=0))
    assert (await codes(store)).keys() == {"WORKERS_BUSY"}
    await answer(store, start("r2", session="s2"))
    assert "which is leaving" in (await codes(store, "r2"))["EXECUTING"].message
    await store.open_session(session(store, "s4"))
    assert (await codes(store)).keys() == {"QUEUED"}


async def test_of_a_worker_that_was_cut_off_it_is_said_that_its_connection_broke(store: Store) -> None:
    await store.open_session(session(store))
    await answer(store, start("r1"))
    assert "broke" not in (await codes(store))["EXECUTING"].message
    assert await store.suspect("s1")
    assert (await codes(store))["EXECUTING"].message.endswith("whose connection broke")


async def test_each_kind_of_later_has_a_name_and_its_time(store: Store) -> None:
    await store.open_session(session(store))
    at = store.now() + HOUR
    await answers(store, create("r1", scheduled_at=at, eligible_at=at), start("r2"), start("r3"))
    await store.decide(["r2"], requeued("delayed", state="retrying", eligible_at=at))
    await store.decide(["r3"], requeued("delayed", eligible_at=at))
    for run_id, code in (("r1", "SCHEDULED"), ("r2", "RUN_RETRY"), ("r3", "RECOVERY_GRACE")):
        found = await codes(store, run_id)
        assert (found.keys(), found[code].until) == ({code}, at)


async def test_a_reservation_names_the_worker_that_has_not_begun(store: Store) -> None:
    await store.open_session(session(store, worker_id="slow-1"))
    await answer(store, create("r1"))
    assert [head.run_id for head in await store.reserve(["order"], 1, "s1", HOUR)] == ["r1"]
    message = (await codes(store))["RESERVED"].message
    assert "slow-1" in message
    assert "has not begun yet" in message
    until = store.now() - 1
    await store.decide(["r1"], requeued("reserved", reserved_by="s1", reservation_token="t", reserved_until=until))
    assert "the next sweep takes it back" in (await codes(store))["RESERVED"].message


async def test_a_worker_that_is_proven_to_be_gone_is_named_as_that_and_counts_for_nothing(store: Store) -> None:
    await store.open_session(session(store, worker_id="dead-1"))
    await answers(store, start("r1"), start("r2"), create("r4"))
    await answer(store, leave("r2", 4, "sleeping", waits=[timer("r2", store.now() - HOUR)]))
    await answer(store, create("r3"))
    await store.reserve(["order"], 1, "s1", HOUR)

    async def found(run_id: str) -> dict[str, Hold]:
        return {hold.code: hold for hold in await holds(store, run_id, lambda _: [])}

    assert {run_id: {*await found(run_id)} for run_id in ("r1", "r2", "r3", "r4")} == {
        "r1": {"WORKER_DEAD", "NO_WORKER"},
        "r2": {"WAITING", "NO_WORKER"},
        "r3": {"NO_WORKER"},
        "r4": {"RESERVED", "NO_WORKER"},
    }
    for run_id, code in (("r1", "WORKER_DEAD"), ("r4", "RESERVED")):
        message = (await found(run_id))[code].message
        assert "dead-1" in message
        assert "is gone" in message
    lease = (await store.leases())[0]
    await store.open_session(session(store, "s2"))
    (hold,) = await holds(store, "r1", lambda known: [one for one in known if one.session_id == "s2"])
    assert (hold.code, hold.until) == ("WORKER_DEAD", lease.expires_at)


async def test_a_suspended_run_names_each_wait_and_who_should_have_woken_it(store: Store) -> None:
    await answer(store, start("r1"))
    later, past = store.now() + HOUR, store.now() - HOUR
    waits = [timer("r1", later), WaitRow("r1", "0:pay", "retry_backoff", "retry_backoff", past)]
    await answer(store, leave("r1", 4, "sleeping", waits=waits))
    found = await codes(store)
    assert found.keys() == {"WAITING", "STEP_RETRY", "NO_WORKER"}
    assert (found["WAITING"].until, found["STEP_RETRY"].until) == (later, past)
    assert "step pay failed" in found["STEP_RETRY"].message
    assert [wait.step_id for wait in await store.claim_waits("node-1", 10)] == ["0:pay"]
    assert "node-1" in (await codes(store))["WAKING"].message


@pytest.mark.parametrize("left", [HOUR, -HOUR])
async def test_the_deadline_of_a_suspended_run_is_told_as_that_and_not_as_a_wait(store: Store, left: int) -> None:
    deadline = store.now() + left
    await answer(store, start("r1", deadline_at=deadline))
    waits = [timer("r1", store.now() + 2 * HOUR), timer("r1", deadline, step_id=DEADLINE)]
    await answer(store, leave("r1", 4, "sleeping", waits=waits))
    for _ in range(2):  # the second time as claimed by a node, if it is due
        told = [(hold.code, hold.until) for hold in await holds(store, "r1") if hold.code != "NO_WORKER"]
        assert told == [("WAITING", waits[0].due_at), ("DEADLINE", deadline)]
        await store.claim_waits("node-1", 10)


async def test_pause_of_run_and_workflow_and_a_deadline_are_told_together(store: Store) -> None:
    await answer(store, create("r1", deadline_at=store.now() + HOUR))
    await store.pause_workflow("order", "me")

    def hold(locked: Locked) -> Transition:
        change = changed(state="paused", reason="REPLAY_DIVERGENCE")(locked)
        change.events = [Event(0, RUN_PAUSED, None, '{"reason":"REPLAY_DIVERGENCE"}')]
        return change

    await store.decide(["r1"], hold)
    found = await codes(store)
    assert found.keys() == {"PAUSED", "WORKFLOW_PAUSED", "NO_WORKER", "DEADLINE"}
    assert "REPLAY_DIVERGENCE" in found["PAUSED"].message


async def test_a_run_that_has_no_place_anywhere_is_called_that(store: Store) -> None:
    await answer(store, start("r1"))

    def lose(locked: Locked) -> Transition:
        change = Transition("r1", "locked", locked.row.execution_seq)
        change.release = True
        return change

    await store.decide(["r1"], lose)
    assert (await codes(store)).keys() == {"UNOWNED"}


async def test_the_end_is_an_answer_and_a_run_that_never_was_is_an_error(store: Store) -> None:
    await answer(store, start("r1"))
    await answer(store, leave("r1", 4, "failed"))
    assert "runs retry r1" in (await codes(store))["ENDED"].message
    with pytest.raises(RunNotFound):
        await holds(store, "nobody")


async def test_a_process_that_executes_its_own_runs_alone_is_a_worker_for_these_and_for_no_other(store: Store) -> None:
    """`ironflow run` serves no queue: of its own run nobody may say that it has no worker."""
    await store.open_session(session(store, routes="", serves=own_runs({"r1"})))
    await answers(store, create("r1"), create("r2"), start("r3"))
    assert (await codes(store)).keys() == {"QUEUED"}
    told = (await codes(store, "r2"))["NO_WORKER"].message
    assert told == "no worker is connected (a process executes only other runs)"
    await answer(store, leave("r3", 4, "sleeping", waits=[timer("r3", store.now() - HOUR)]))
    assert (await codes(store, "r3")).keys() == {"WAITING", "NO_WORKER"}
    await store.open_session(session(store, "s2", routes="", credits=0, serves=own_runs({"r2", "r3"})))
    assert (await codes(store, "r2")).keys() == {"QUEUED"}
    assert (await codes(store, "r3")).keys() == {"WAITING"}
    await store.open_session(session(store, "s3", routes="report"))
    assert (await codes(store)).keys() == {"QUEUED"}


async def test_a_run_that_waits_for_its_own_process_has_an_eligible_worker(store: Store) -> None:
    await store.open_session(session(store, routes="", serves=own_runs({"r1"})))
    await answers(store, create("r1"), create("r2"))
    for run_id, able in (("r1", 1), ("r2", 0)):
        row = await store.run(run_id)
        assert row is not None
        routing = worker_routing(row, await store.sessions(), store.now())
        assert routing is not None
        assert (routing["workers_seen"], routing["workers_eligible"]) == (1, able)


async def test_a_run_of_a_paused_workflow_is_not_called_ready(store: Store) -> None:
    await store.open_session(session(store))
    await answer(store, create("r1"))
    assert (await codes(store)).keys() == {"QUEUED"}
    await store.pause_workflow("order", "ann")
    assert (await codes(store)).keys() == {"WORKFLOW_PAUSED"}
