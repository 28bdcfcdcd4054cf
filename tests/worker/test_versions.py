"""While a new version is rolled out, a run goes to a worker whose code continues it, and waits where there is none."""

from __future__ import annotations

from tests.recovery.kit import quick, until

import ironflow
from ironflow import Context, Engine
from ironflow.engine.why import holds


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


def _other(client: Engine, workflow: ironflow.Workflow[int, str]) -> ironflow.Workflow[int, str]:
    """A client that starts runs of two versions knows one name twice; a program has only one of them."""
    client.registry = type(client.registry)([workflow.spec])
    return workflow
