"""While a new version is rolled out, a run goes to a worker whose code continues it, and waits where there is none."""

from __future__ import annotations

import pytest
from tests.recovery.kit import quick, row, until
from tests.recovery.program import hold, lines, mark

import ironflow
from ironflow import Context, Engine
from ironflow.engine.why import holds
from ironflow.model import journal as j

pytestmark = pytest.mark.usefixtures("folder")

#: The inputs with which the code of version 2 was begun, live or in a replay.
begun: list[str] = []


@ironflow.workflow(name="order", version="1")
async def first(ctx: Context, n: int) -> str:
    await ctx.sleep("50ms")
    return f"first {n}"


@ironflow.workflow(name="order", version="2")
async def second(ctx: Context, n: int) -> str:
    await ctx.sleep("50ms")
    return f"second {n}"


@ironflow.workflow(name="order", version="3", compatible=("1", "2"))
async def third(ctx: Context, n: int) -> str:
    await ctx.sleep("50ms")
    return f"third {n}"


@ironflow.workflow(name="order", version="1")
async def two_steps(ctx: Context, name: str) -> str:
    return await mark(f"{name}-1") + await hold(f"{name}-2")


@ironflow.workflow(name="order", version="2")
async def two_steps_of_the_next_version(ctx: Context, name: str) -> str:
    """Fits the journal of the first to a hair, and does not say so."""
    begun.append(name)
    return await mark(f"{name}-1") + await hold(f"{name}-2")


async def test_each_run_is_executed_by_a_worker_of_its_version(store_url: str) -> None:
    async with (
        Engine(store_url, workflows=[first], settings=quick()),
        Engine(store_url, workflows=[second], settings=quick()),
        Engine(store_url, worker=False) as client,
    ):
        old = [await client.start(first, n) for n in range(4)]
        new = [await Engine.start(client, _other(client, second), n) for n in range(4)]
        assert [await run.result(timeout=20) for run in old] == [f"first {n}" for n in range(4)]
        assert [await run.result(timeout=20) for run in new] == [f"second {n}" for n in range(4)]


async def test_a_run_without_a_fitting_worker_waits_and_why_says_for_what(store_url: str) -> None:
    async with Engine(store_url, worker=False) as client:
        run = await client.start(first, 7)
        async with Engine(store_url, workflows=[second], settings=quick()) as engine:
            await until(lambda: bool(engine.worker and engine.worker.session.registered))
            (hold,) = await holds(client.store, run.id)
            assert (hold.code, "continues version 1" in hold.message) == ("NO_ELIGIBLE_WORKER", True)
            assert (await client.get(run.id)).state == "pending"
        async with Engine(store_url, workflows=[third], settings=quick()):
            assert await run.result(timeout=20) == "third 7"


async def test_r21_a_run_that_got_past_routing_fails_at_the_door_before_anything_of_it_is_replayed(
    store_url: str,
) -> None:
    """Handler version compatibility was not enforced on every way in: a fault that a product of this kind shipped."""
    async with Engine(store_url, workflows=[two_steps], settings=quick()) as engine:
        run = await engine.start(two_steps, "x")
        await until(lambda: lines("x-2"))
    before = lines()
    async with Engine(store_url, workflows=[two_steps_of_the_next_version], settings=quick()) as engine:
        store, worker = engine.store, engine.worker
        assert worker is not None
        await until(lambda: worker.session.registered)
        begun.clear()
        found, told = await row(store, run.id), await store.journal(run.id)
        (head,) = await store.peek([found.route], 1)
        assert head.route not in worker.session.routes, "routing keeps it away"
        await worker.take([head])
        assert (await row(store, run.id)).state == "failed"
        (end,) = (await store.journal(run.id))[len(told) :]
        assert (end.kind, end.data()["error"]["type"]) == (j.RUN_FAILED, "ironflow.errors.HandlerVersionMismatch")
        assert (begun, lines()) == ([], before), "neither its code nor a step was executed"
        assert (await store.leases(), await store.queue(), worker.segments) == ([], [], {})


def _other(client: Engine, workflow: ironflow.Workflow[int, str]) -> ironflow.Workflow[int, str]:
    """A client that starts runs of two versions knows one name twice; a program has only one of them."""
    client.registry = type(client.registry)([workflow.spec])
    return workflow
