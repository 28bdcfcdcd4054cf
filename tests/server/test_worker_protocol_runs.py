"""The worker protocol spoken by hand: runs that are taken, executed and given back, and what is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.recovery.kit import row, until
from tests.server.kit import Refused, Served, append, ending, taking

from ironflow.model import wire
from ironflow.model.run import COMPLETED, RUNNING
from ironflow.model.scope import Scope

OTHER = Scope("acme", "prod")


# ---- executing


async def test_a_run_is_taken_executed_and_ended(here: Served) -> None:
    worker = await here.worker()
    run = await here.start(value={"n": 7})
    answer = await worker.ask("POST", "/poll", {"session_id": worker.session_id, "credits": 5, "wait_ms": 0})
    [assignment] = answer["assignments"]
    assert assignment["more"] is False
    [created] = wire.events_from_json(assignment["journal"])
    assert json.loads(created.payload or "")["input"] == {"n": 7}
    head = wire.head_from_json(assignment["head"])
    assert await worker.take(head) == "applied"
    head.execution_seq += 1
    found = await row(here.store, run.run_id)
    assert (found.state, found.execution_seq) == (RUNNING, 1)
    assert found.lease_token_hash not in (None, "token")  # hashed: reading it gives no right to write
    [lease] = await here.store.leases()
    assert lease.session_id == worker.session_id
    assert await worker.transitions(wire.item_of(append(head, 3)), wire.item_of(append(head, 4))) == ["applied"] * 2
    assert await worker.transitions(wire.item_of(ending(head, 5))) == ["applied"]
    assert (await row(here.store, run.run_id)).state == COMPLETED
    assert await here.store.leases() == []
    owner = await worker.ask("GET", f"/runs/{run.run_id}/owner", session_id=worker.session_id, since=0)
    assert (owner["execution_seq"], owner["state"]) == (1, COMPLETED)
    assert owner["kinds"] == ["run_started", "run_succeeded", "step_completed"]


async def test_a_promise_whose_answer_was_lost_is_given_anew_and_one_that_arrived_is_kept(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    [first] = await worker.poll(1)
    asked = {"session_id": worker.session_id, "credits": 1, "wait_ms": 0, "again": True}
    assert (await worker.ask("POST", "/poll", {**asked, "holding": [first.run_id]}))["assignments"] == []
    [assignment] = (await worker.ask("POST", "/poll", {**asked, "holding": []}))["assignments"]
    second = wire.head_from_json(assignment["head"])
    assert second.run_id == first.run_id
    assert await worker.take(first) == "lost"
    assert await worker.take(second) == "applied"


async def test_a_run_that_was_not_handed_out_cannot_be_taken(here: Served) -> None:
    worker, thief = await here.worker(), await here.worker()
    await here.start()
    [head] = await worker.poll(1)
    reservation, head.reservation = head.reservation, None
    [refused] = await thief.transitions(wire.item_of(taking(head)))
    assert refused["error"]["code"] == "INVALID_INPUT"
    head.reservation = "guessed"
    assert await thief.take(head) == "lost"
    head.reservation = reservation
    assert await worker.take(head) == "applied"


async def test_a_session_that_is_gone_takes_no_run_but_ends_the_one_it_has(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    await here.start()
    owned = await worker.took()
    [head] = await worker.poll(1)
    await here.store.drain(worker.session_id)
    worker.session_id = "never-registered"
    assert await worker.take(head) == "lost"
    assert await worker.transitions(wire.item_of(ending(owned, 3))) == ["applied"]


async def test_g11_g12_r9_who_is_not_the_owner_changes_and_renews_nothing(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start()
    head = await worker.took("right")
    before = [lease.expires_at for lease in await here.store.leases()]
    old = wire.item_of(append(head, 3, "right"))
    for seq in (0, 2):  # an owner before, and one that never was
        events = [[*event[:4], seq] for event in old["events"]]
        assert await worker.transitions({**old, "seq": seq, "events": events}) == ["stale"]
    assert await worker.transitions({**old, "token": "wrong"}) == ["stale"]
    for one in (worker, other):
        assert (await one.heartbeat((run.run_id, 1, "wrong")))["verdicts"] == [[run.run_id, 1, "stale"]]
    assert (await other.heartbeat((run.run_id, 1, "right")))["verdicts"] == [[run.run_id, 1, "stale"]]
    assert (await worker.heartbeat((run.run_id, 0, "right")))["verdicts"] == [[run.run_id, 0, "stale"]]
    assert (
        await worker.ask("POST", "/release", {"session_id": worker.session_id, "runs": [[run.run_id, 1, "wrong"]]})
    )["released"] == []
    assert [event.seq for event in await here.store.journal(run.run_id)] == [1, 2]
    assert [lease.expires_at for lease in await here.store.leases()] == before
    assert (await row(here.store, run.run_id)).state == RUNNING


async def test_g7_a_heartbeat_renews_the_leases_it_names_and_no_other(here: Served) -> None:
    worker = await here.worker()
    for _ in range(2):
        await here.start()
    named, unnamed = [await worker.took() for _ in range(2)]
    before = {lease.run_id: lease.expires_at for lease in await here.store.leases()}
    await until(lambda: here.store.now() > max(before.values()) - 60_000 + 20)
    answer = await worker.heartbeat((named.run_id, 1, "token"))
    assert answer["verdicts"] == [[named.run_id, 1, "refreshed"]]
    after = {lease.run_id: lease.expires_at for lease in await here.store.leases()}
    assert after[named.run_id] > before[named.run_id]
    assert after[unnamed.run_id] == before[unnamed.run_id]


async def test_a_repeated_change_whose_answer_was_lost_is_applied_once_and_answered_so(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    [head] = await worker.poll(1)
    take = wire.item_of(taking(head))
    assert await worker.transitions(take) == ["applied"]
    assert await worker.transitions({**take, "again": True}) == ["applied"]
    assert await worker.transitions({**take, "new_token": "another", "again": True}) == ["lost"]
    head.execution_seq += 1
    step, end = wire.item_of(append(head, 3)), wire.item_of(ending(head, 4))
    assert await worker.transitions(step) == ["applied"]
    assert await worker.transitions({**step, "again": True}, end) == ["applied", "applied"]
    assert await worker.transitions({**end, "again": True}) == ["applied"]
    assert await worker.transitions({**step, "again": True}) == ["stale"]  # it has left: nothing may begin any more
    other = {**step, "events": [[3, "step_completed", "3:a", '{"result":2}', 1]], "again": True}
    assert await worker.transitions(other, step) == ["stale", "stale"]
    assert [event.seq for event in await here.store.journal(run.run_id)] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "broken",
    [
        7,
        {"run_id": "r", "surprise": 1},
        {"run_id": "r", "guard": "locked"},
        {"run_id": "r", "guard": "suspended", "token": "t"},
        {"run_id": "r", "token": "t", "events": [[1, "run_recovered", None, None, 1]]},
        {"run_id": "r", "token": "t", "events": [[1, "no_such_kind", None, None, 1]]},
        {"run_id": "r", "token": "t", "events": [[1, "step_started", None, "no object", 1]]},
        {"run_id": "r", "token": "t", "state": "no_such_state"},
        {"run_id": "r", "token": "t", "state": "completed", "ended": True},
        {"run_id": "r", "token": "t", "state": "completed", "release": True},
        {"run_id": "r", "token": "t", "state": "pending", "release": True},
        {"run_id": "r", "token": "t", "changes": {"org": "acme"}},
        {"run_id": "r", "token": "t", "changes": {"warnings": "many"}},
        {"run_id": "r", "token": "t", "waits": [["s", "timer", "resolved", 1]]},
        {"run_id": "r", "token": "t", "waits": [["s\0", "timer", "sleeping", 1]]},
        {"run_id": "r", "token": "t", "waits": [["s" * 10_000, "timer", "sleeping", 1]]},
        {"run_id": "r", "token": "t", "changes": {"status_text": "a\0b"}},
        {"run_id": "r", "token": "t", "events": [[4, "step_started", "4:\0", None, 1]]},
        {"run_id": "r", "token": "t", "events": [[4, "step_started", "4:a", '{"a":"\0"}', 1]]},
        {"run_id": "r", "token": "t", "seq": True},
        {"run_id": "r"},
    ],
)
async def test_a_change_that_no_worker_may_ask_for_is_refused_and_harms_no_neighbour(
    on_sqlite: Served, broken: Any
) -> None:
    worker = await on_sqlite.worker()
    run = await on_sqlite.start()
    head = await worker.took()
    if isinstance(broken, dict):
        broken = {"seq": 1, **broken, "run_id": run.run_id}
        broken = {**broken, "token": "token"} if "token" in broken else broken
    answers = await worker.transitions(wire.item_of(append(head, 3)), broken, wire.item_of(append(head, 4)))
    assert (answers[0], answers[2]) == ("applied", "applied")
    assert answers[1]["error"]["code"] == "INVALID_INPUT"
    assert [event.seq for event in await on_sqlite.store.journal(run.run_id)] == [1, 2, 3, 4]


async def test_a_run_given_back_is_queued_at_once_and_nothing_is_counted(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start()
    head = await worker.took()
    poll = asyncio.ensure_future(other.poll(1, 5_000))
    await until(lambda: here.node.hub.waiting == 1)
    body = {"session_id": worker.session_id, "runs": [[run.run_id, head.execution_seq, "token"]]}
    assert (await worker.ask("POST", "/release", body))["released"] == [run.run_id]
    assert [one.run_id for one in await asyncio.wait_for(poll, 1)] == [run.run_id]
    found = await row(here.store, run.run_id)
    assert (found.lease_recoveries, found.attempt, found.execution_seq) == (0, 1, 2)


async def test_what_a_worker_does_not_take_after_all_goes_to_the_next(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start()
    [head] = await worker.poll(1)
    poll = asyncio.ensure_future(other.poll(1, 5_000))
    await until(lambda: here.node.hub.waiting == 1)
    body = {"session_id": worker.session_id, "reservations": [[head.run_id, head.reservation]]}
    await worker.ask("POST", "/unreserve", body)
    assert [one.run_id for one in await asyncio.wait_for(poll, 1)] == [run.run_id]


async def test_goodbye_gives_back_what_was_left_and_the_session_is_unknown(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start()
    await worker.took()
    await worker.ask("DELETE", f"/sessions/{worker.session_id}")
    with pytest.raises(Refused) as refused:
        await worker.poll()
    assert refused.value.code == "SESSION_UNKNOWN"
    assert [one.run_id for one in await other.poll(1, 10_000)] == [run.run_id]
