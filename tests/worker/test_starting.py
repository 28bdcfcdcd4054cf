"""Starting what is already there: the same run, or a refusal that names it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import ironflow
from ironflow.engine import starting
from ironflow.engine.declared import Declared
from ironflow.errors import IdempotencyKeyConflict, InvalidInput, RunFailed, WorkflowNameTaken
from ironflow.runtime import Engine


@ironflow.step
async def key_of_this_call(fail: bool) -> tuple[str, str]:
    info = ironflow.step_info()
    keys.append((info.idempotency_key, info.call_key))
    if fail and info.attempt == 1:
        raise ValueError("once")
    return keys[-1]


keys: list[tuple[str, str]] = []


@ironflow.workflow
async def double(ctx: ironflow.Context, n: int) -> int:
    return 2 * n


@ironflow.workflow
async def counted(ctx: ironflow.Context, given: dict[Any, Any]) -> int:
    return len(given)


@ironflow.workflow
async def other(ctx: ironflow.Context, n: int) -> int:
    return n


@ironflow.workflow
async def twice(ctx: ironflow.Context) -> None:
    await key_of_this_call.using(retry=ironflow.Retry(2, backoff="1ms"))(True)
    await key_of_this_call(False)


async def test_a_run_id_gives_the_run_that_has_it_and_refuses_another_input(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[double, other]) as engine:
        assert await engine.run(double, 4, id="mine") == 8
        again = await engine.start(double, 4, id="mine")
        assert (again.created, await again.result(timeout=20)) == (False, 8)
        with pytest.raises(IdempotencyKeyConflict, match="another input"):
            await engine.start(double, 5, id="mine")
        with pytest.raises(InvalidInput, match="a run of double"):
            await engine.start(other, 4, id="mine")


async def test_the_order_of_the_keys_of_an_input_makes_no_other_input(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[counted]) as engine:
        for name in ("id", "idempotency_key"):
            first = await engine.start(counted, {"a": 1, 2: {"b": 3, "c": 4}}, **{name: name})
            again = await engine.start(counted, {2: {"c": 4, "b": 3}, "a": 1}, **{name: name})
            assert (again.id, again.created) == (first.id, False)
            with pytest.raises(IdempotencyKeyConflict, match="another input"):
                await engine.start(counted, {2: {"c": 3, "b": 4}, "a": 1}, **{name: name})


@pytest.mark.parametrize("worker", [True, False])
async def test_a_key_whose_holder_ends_while_a_start_looks_for_it_is_taken_then(
    store_url: str, worker: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ironflow.open(store_url, workflows=[double], worker=worker) as engine:
        later = datetime.now(UTC) + timedelta(hours=1)
        held = await engine.start(double, 4, concurrency_key="c", at=later)
        real = engine.store.find_key

        async def ends_meanwhile(*asked: Any) -> Any:
            monkeypatch.setattr(engine.store, "find_key", real)
            assert await held.cancel()
            return await real(*asked)

        monkeypatch.setattr(engine.store, "find_key", ends_meanwhile)
        started = await engine.start(double, 5, concurrency_key="c")
        assert (started.created, started.id != held.id) == (True, True)
        assert (await engine.get(started.id)).row.concurrency_key == "c"
        if worker:
            assert await started.result(timeout=20) == 10


async def test_a_worker_whose_name_nobody_could_read_does_not_begin(sqlite_url: str) -> None:
    for name, said in (("x" * 201, "worker_id is 201 characters"), ("a\nb", "worker_id 'a.*not printable")):
        with pytest.raises(InvalidInput, match=said):
            async with Engine(sqlite_url, workflows=[double], worker_id=name):
                pass


async def test_a_new_try_has_a_new_idempotency_key_and_the_same_call_key(store_url: str) -> None:
    keys.clear()
    async with ironflow.open(store_url, workflows=[twice]) as engine:
        await engine.run(twice)
    (first, call), (second, same_call), (_, another_call) = keys
    assert first != second
    assert call == same_call
    assert call != another_call


reached: list[object] = []


@ironflow.step(retry=ironflow.Retry(3, backoff="1ms"))
async def long_copy() -> int:
    info = ironflow.step_info()
    reached.append(info.last_heartbeat)
    if info.attempt < 3:
        info.heartbeat({"copied": 10 * info.attempt})
        raise ConnectionError("cut")
    return 30


@ironflow.workflow
async def copying(ctx: ironflow.Context) -> int:
    return await long_copy()


async def test_a_further_try_hears_how_far_the_last_one_came(store_url: str) -> None:
    reached.clear()
    async with ironflow.open(store_url, workflows=[copying]) as engine:
        assert await engine.run(copying) == 30
    assert reached == [None, {"copied": 10}, {"copied": 20}]


async def test_a_run_of_a_held_workflow_is_created_and_waits_until_it_is_let_go(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[double]) as engine:
        assert await engine.store.pause_workflow(double.name, "tests")
        run = await engine.start(double, 1)
        assert (await engine.get(run.id)).state == "pending"
        assert "WORKFLOW_PAUSED" in [hold.code for hold in await engine.why(run.id)]
        assert await engine.store.resume_workflow(double.name, "tests")
        assert await run.result(timeout=20) == 2


@dataclass
class Parcel:
    to: str
    grams: int


@ironflow.workflow
async def send(ctx: ironflow.Context, parcel: Parcel) -> None:
    pass


@ironflow.workflow
async def par(ctx: ironflow.Context, n: int = 12) -> int:
    return n


async def test_an_input_that_its_worker_cannot_read_is_told_as_an_input(store_url: str) -> None:
    by_name = Declared({"name": "send", "version": "1", "worker_tags": "", "definition": None})
    async with ironflow.open(store_url, workflows=[send]) as engine:
        row, _ = await starting.create(engine.store, by_name, {"to": "me"}, {}, 1 << 20)
        with pytest.raises(RunFailed) as failed:
            await engine.handle(row.run_id, send).result(timeout=20)
    assert failed.value.failure is not None
    assert failed.value.failure["type"] == "ironflow.errors.InvalidInput"
    assert "Annotate" not in str(failed.value)
    assert "the input does not fit workflow send: input.grams: field required" in str(failed.value)
    assert 'Expected: {"to": string, "grams": integer}' in str(failed.value)


async def test_a_start_without_an_input_takes_the_default_of_the_signature(store_url: str) -> None:
    async with ironflow.open(store_url, workflows=[par]) as engine:
        assert await engine.run(par) == 12  # type: ignore[arg-type,call-overload,misc]
        assert await engine.run(par, 0) == 0


@pytest.mark.parametrize(
    ("given", "hint"),
    [(Parcel("me", "much"), 'Expected: {"to": string, "grams": integer}'), (float("nan"), None)],  # type: ignore[arg-type]
)
async def test_a_refused_input_has_one_hint_and_it_is_about_the_input(given: Any, hint: str, sqlite_url: str) -> None:
    async with ironflow.open(sqlite_url, worker=False) as engine:
        with pytest.raises(InvalidInput) as refused:
            await engine.start(send, given)
        assert "Annotate the function" not in str(refused.value)
        assert "signature asks" not in str(refused.value)
        assert hint is None or refused.value.hint == hint
        with pytest.raises(InvalidInput) as refused:
            await engine.start(twice, given)
        assert refused.value.hint == "Start it without one."

@ironflow.workflow(name="sums")
async def another(ctx: ironflow.Context, n: int) -> int:
    return n + 1


@ironflow.workflow(name="sums")
async def one(ctx: ironflow.Context, n: int) -> int:
    return n


async def test_a_name_that_another_function_has_is_refused_where_it_is_started(sqlite_url: str) -> None:
    async with ironflow.open(sqlite_url, workflows=[one]) as engine:
        assert await engine.run(one, 1) == 1
        with pytest.raises(WorkflowNameTaken, match="two workflows are called 'sums'"):
            await engine.run(another, 1)


async def test_what_is_no_workflow_is_refused_by_name(sqlite_url: str) -> None:
    async with ironflow.open(sqlite_url, workflows=[one]) as engine:
        with pytest.raises(InvalidInput, match="'sums' is none"):
            await engine.run("sums", 1)  # type: ignore[call-overload]


def test_what_is_no_workflow_is_refused_where_workflows_are_listed(sqlite_url: str) -> None:
    def plain(ctx: ironflow.Context) -> None: ...

    with pytest.raises(InvalidInput, match="is none"):
        ironflow.open(sqlite_url, workflows=[one, plain])  # type: ignore[list-item]
    with pytest.raises(InvalidInput, match="is none"):
        ironflow.run(plain, url=sqlite_url)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="one workflow, not several") as refused:
        ironflow.open(sqlite_url, workflows=one)  # type: ignore[arg-type]
    assert "list" in (refused.value.hint or "")
