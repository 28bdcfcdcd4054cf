"""A client gives what the engine beside the database gives: the same types, the same values, the same errors."""

from __future__ import annotations

import asyncio
import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from tests.client import flows
from tests.client.conftest import Rig
from tests.client.flows import Order, Receipt
from tests.recovery.kit import until

from ironflow.client import Client
from ironflow.errors import (
    ConcurrencyConflict,
    IdempotencyKeyConflict,
    InvalidInput,
    InvalidPriority,
    InvalidTransition,
    KeyNotFound,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunPaused,
    WorkflowUnknown,
)
from ironflow.model import run as runs
from ironflow.store.reader import RunFilter

ORDER = Order(
    price=Decimal("1.50"),
    sizes=(1, 2, 3),
    tags={"a", "b"},
    days={1: "mon"},
    at=dt.datetime(2026, 1, 2, 3, 4, 5, 678, dt.UTC),
    label=b"\xff\x00",
)


async def held(client: Client, **options: Any) -> str:
    """A run that waits: it sleeps, and holds no worker."""
    run = await client.start(flows.sleeping, **options)
    await until(lambda: _is(client, run.id, runs.SLEEPING))
    return run.id


async def _is(client: Client, run_id: str, state: str) -> bool:
    return (await client.get(run_id)).state == state


# ---- starting and results


async def test_a_workflow_object_gives_its_typed_result(client: Client) -> None:
    assert await client.run(flows.double, 21) == 42


async def test_an_input_that_json_has_no_form_for_arrives_as_it_was(client: Client) -> None:
    assert await client.run(flows.buy, ORDER) == Receipt(Decimal("4.50"), ORDER)


@pytest.mark.parametrize("value", [{"$decimal": "1.5"}, [1, "a", None], {"a": {"$dict": []}}, (1, 2), 1e22])
async def test_an_input_without_a_type_arrives_as_it_was(client: Client, value: object) -> None:
    assert await client.run(flows.anything, value) == value
    assert await client.run("anything", value) == value


async def test_a_lane_that_depends_on_the_input_is_told_by_who_has_the_code(client: Client, both: Rig) -> None:
    run = await client.start(flows.in_turn, "ann", worker_tags=["nowhere"])
    beside = await both.engine.start(flows.in_turn, "ann", worker_tags=["nowhere"])
    limits = [(await client.get(one.id)).row.limits for one in (run, beside)]
    assert limits == ['{"workflow:in_turn:ann":2}'] * 2
    with pytest.raises(InvalidInput, match="the lane of workflow in_turn depends on the input"):
        await client.start("in_turn", "ann")


async def test_a_workflow_is_started_by_its_name_with_plain_json(client: Client) -> None:
    run = await client.start("double", 4)
    assert (run.created, await run.result()) == (True, 8)


async def test_a_failure_is_raised_from_the_original_error(client: Client) -> None:
    with pytest.raises(RunFailed, match="LookupError: no such thing") as caught:
        await client.run(flows.failing, "no such thing")
    assert isinstance(caught.value.__cause__, LookupError)
    assert caught.value.failure is not None


async def test_a_cancelled_and_a_paused_run_end_the_wait(client: Client) -> None:
    first, second = await held(client), await held(client)
    waiting = [asyncio.ensure_future(client.handle(one).result()) for one in (first, second)]
    await client.cancel(first)
    await client.pause(second)
    with pytest.raises(RunCancelled):
        await waiting[0]
    with pytest.raises(RunPaused, match="ironflow runs resume"):
        await waiting[1]
    with pytest.raises(TimeoutError):
        await client.handle(await held(client)).result(timeout=0.05)


async def test_a_run_that_was_opened_again_ends_with_its_last_result(client: Client) -> None:
    run = await client.start(flows.failing, "x")
    with pytest.raises(RunFailed):
        await run.result()
    assert await run.retry() is True
    with pytest.raises(RunFailed):
        await run.result()
    kinds = [event.kind async for event in client.events(run.id)]
    assert kinds.count("run_failed") == 2


async def test_what_cannot_be_started_is_refused_before_anything_is_sent(rig: Rig) -> None:
    async with rig.client(url="http://127.0.0.1:9", tries=1) as nowhere:
        with pytest.raises(InvalidInput, match="does not fit workflow double"):
            await nowhere.start(flows.double, "x")  # type: ignore[call-overload]
        with pytest.raises(InvalidPriority):
            await nowhere.start(flows.double, 1, priority=101)
        with pytest.raises(InvalidInput, match="no option 'idempotency_kee'"):
            await nowhere.start("double", 1, idempotency_kee="x")  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match="time zone"):
            await nowhere.start("double", 1, at=dt.datetime(2026, 1, 1))  # noqa: DTZ001 - what is refused


async def test_options_of_a_start_reach_the_run(client: Client, both: Rig) -> None:
    at = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(hours=1)
    run = await client.start(
        "double",
        1,
        id="chosen/one",
        priority=7,
        labels={"team": "a", "k": "v=w"},
        worker_tags=["gpu"],
        limits={"group": 3},
        concurrency_key="c",
        at=at,
        deadline=at + dt.timedelta(hours=1),
    )
    row = (await client.get("chosen/one")).row
    assert run.id == "chosen/one"
    assert (row.priority, row.labels, row.concurrency_key) == (7, '{"team":"a","k":"v=w"}', "c")
    assert row.scheduled_at == at.timestamp() * 1000
    assert row.deadline_at == row.scheduled_at + 3_600_000
    stored = await both.engine.store.run("chosen/one")
    assert stored is not None
    assert (stored.route, stored.limits) == (row.route, row.limits)


async def test_the_same_key_gives_the_same_run_and_another_input_a_conflict(client: Client, both: Rig) -> None:
    first = await client.start(flows.double, 1, idempotency_key="k")
    again = await client.start(flows.double, 1, idempotency_key="k")
    assert (first.id, first.created, again.created) == (again.id, True, False)
    with pytest.raises(IdempotencyKeyConflict, match="'k' belongs to run") as caught:
        await client.start(flows.double, 2, idempotency_key="k")
    with pytest.raises(IdempotencyKeyConflict) as here:
        await both.engine.start(flows.double, 2, idempotency_key="k")
    assert (caught.value.details, str(caught.value)) == (here.value.details, str(here.value))
    # Beside the database the key means the same run.
    assert (await both.engine.start(flows.double, 1, idempotency_key="k")).id == first.id


async def test_a_concurrency_key_and_an_unknown_workflow_are_refused_as_by_the_engine(client: Client) -> None:
    run_id = await held(client, concurrency_key="one")
    with pytest.raises(ConcurrencyConflict) as caught:
        await client.start(flows.sleeping, concurrency_key="one")
    assert caught.value.details == {"run_id": run_id, "concurrency_key": "one"}
    with pytest.raises(WorkflowUnknown, match="nobody"):
        await client.start("nobody")


# ---- reading


async def test_what_a_client_reads_is_what_the_engine_reads(client: Client, both: Rig) -> None:
    run = await client.start(flows.failing, "why", labels={"a": "b"})
    with pytest.raises(RunFailed):
        await run.result()
    engine = both.engine
    assert await client.get(run.id) == await engine.get(run.id)
    assert await client.steps(run.id) == (await engine.get(run.id)).steps
    assert await client.why(run.id) == await engine.why(run.id)
    here, there = await engine.journal(run.id), await client.journal(run.id)
    assert [repr(event) for event in there] == [repr(event) for event in here]
    assert [event.at for event in there] == [event.at for event in here]
    assert [event.seq for event in await client.journal(run.id, after=2)] == [event.seq for event in here[2:]]
    assert await client.list() == await engine.list()


async def test_a_list_is_filtered_and_read_over_as_many_pages_as_it_takes(
    client: Client, both: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.pause_workflow("double")
    ids = [(await client.start("double", n, labels={"n": str(n % 2)}, priority=n)).id for n in range(5)]
    monkeypatch.setattr("ironflow.client.connection.PAGE", 2)
    asked = []
    ask = client._connection.ask
    monkeypatch.setattr(client._connection, "ask", lambda *a, **more: (asked.append(more["query"]), ask(*a, **more))[1])
    assert [row.run_id for row in await client.list()] == ids[::-1]
    assert [query["limit"] for query in asked] == [2, 2, 2]
    assert [row.run_id for row in await client.list(RunFilter(limit=3))] == ids[:1:-1]
    for chosen, found in (
        (RunFilter(label=("n", "1")), [ids[3], ids[1]]),
        (RunFilter(states=["pending", "failed"], priority=2), [ids[2]]),
        (RunFilter(states=["failed"]), []),
        (RunFilter(workflow="buy"), []),
        (RunFilter(created_from=0, created_to=1), []),
    ):
        assert [row.run_id for row in await client.list(chosen)] == found
        assert [row.run_id for row in await both.engine.list(chosen)] == found
    with pytest.raises(InvalidInput, match="before"):
        await client.list(RunFilter(before=(1, "x")))


async def test_long_journals_come_whole(client: Client) -> None:
    run = await client.start(flows.long, 150)
    assert await run.result() == sum(range(150))
    assert [event.seq for event in await client.journal(run.id)] == list(range(1, 304))
    assert len(await client.steps(run.id)) == 150


async def test_a_queued_run_tells_which_workers_could_take_it(client: Client) -> None:
    run = await client.start("double", 1, worker_tags=["gpu"])
    assert (await client.get(run.id)).worker_routing == {
        "required_tags": ["gpu"], "workers_seen": 1, "workers_eligible": 0, "slots_free": 0,
    }  # fmt: skip


# ---- commands


async def test_a_run_is_paused_resumed_cancelled_reopened_and_deleted(client: Client) -> None:
    run_id = await held(client)
    assert [await client.pause(run_id), await client.pause(run_id)] == [True, False]
    assert (await client.why(run_id))[0].code == "PAUSED"
    assert await client.resume(run_id) is True
    with pytest.raises(InvalidTransition):
        await client.resume(run_id)
    assert [await client.cancel(run_id), await client.cancel(run_id)] == [True, False]
    assert await client.retry(run_id, restart=True) is True
    with pytest.raises(InvalidTransition):
        await client.delete(run_id)
    await client.cancel(run_id, force=True)
    await client.delete(run_id)
    with pytest.raises(RunNotFound):
        await client.get(run_id)


async def test_a_workflow_is_listed_explained_held_and_let_go(client: Client) -> None:
    names = {row["name"]: row for row in await client.workflows()}
    assert set(names) == {wf.name for wf in flows.ALL}
    assert names["double"]["paused_at"] is None
    assert isinstance(names["double"]["seen_at"], int)
    assert (await client.input_schema("double"))["type"] == "integer"
    assert [await client.pause_workflow("double"), await client.pause_workflow("double")] == [True, False]
    assert isinstance({row["name"]: row for row in await client.workflows()}["double"]["paused_at"], int)
    assert [await client.resume_workflow("double"), await client.resume_workflow("double")] == [True, False]


async def test_the_audit_log_names_who_did_what(client: Client, both: Rig) -> None:
    run_id = await held(client)
    await client.pause(run_id)
    [entry] = await client.audits(run_id=run_id)
    [row] = await both.engine.store.audits(run_id=run_id)
    assert entry == row
    assert (entry["action"], entry["actor"].startswith("test (")) == ("run.pause", True)
    assert len(await client.audits(limit=1)) == 1


async def test_keys_are_made_listed_and_taken_back(client: Client, both: Rig) -> None:
    row, secret = await client.create_key("robot", role="viewer")
    async with Client(both.url, secret) as robot:
        assert await robot.list() == []
        assert {one.name: one.role for one in await client.keys()}["robot"] == "viewer"
        assert all(one.key_hash == "" for one in await client.keys())
        await client.revoke_key(row.key_id)
        with pytest.raises(KeyNotFound):
            await client.revoke_key("nobody")


async def test_capacity_is_told_with_a_platform_key(both: Rig) -> None:
    run = await both.engine.start(flows.double, 1, worker_tags=["gpu"])
    async with both.client("platform") as platform:
        [session] = await platform.sessions()
        [own] = await both.engine.store.sessions()
        assert (session.session_id, session.routes, session.serves) == (own.session_id, own.routes, own.serves)
        assert await platform.leases() == []
        assert [row.run_id for row in await platform.queue()] == [run.id]
        assert await platform.lanes() == []
        assert [one["session_id"] for one in await platform.credits()] == [own.session_id]
        stats = await platform.stats()
        assert (stats["runs"]["pending"], stats["workers"]) == (1, 1)


# ---- scripts


async def test_a_script_uses_the_same_client_without_await(rig: Rig) -> None:
    def script() -> int:
        with rig.client() as client:
            run = client.wait(client.start(flows.double, 3))
            return client.wait(run.result())

    assert await asyncio.to_thread(script) == 6
