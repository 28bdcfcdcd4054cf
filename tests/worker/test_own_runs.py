"""An engine that serves no queue executes its own runs, and leaves everybody else's alone."""

from __future__ import annotations

from tests.recovery.kit import until
from tests.store.build import due_at_once

import ironflow
from ironflow import Context, Engine
from ironflow.engine.why import holds
from ironflow.model.routing import has_own


@ironflow.step
async def note(text: str) -> str:
    noted.append(text)
    return text


noted: list[str] = []


@ironflow.workflow
async def nap(ctx: Context, text: str) -> str:
    await note(text)
    await ctx.sleep("20ms")
    return await note(f"{text} again")


async def test_only_its_own_runs_are_taken_from_start_to_end(store_url: str) -> None:
    noted.clear()
    async with Engine(store_url, worker=False) as client:
        other = await client.start(nap, "other")
        async with Engine(store_url, workflows=[nap], own_only=True) as engine:
            assert await engine.run(nap, "mine") == "mine again"
        assert (await client.get(other.id)).state == "pending"
        assert noted == ["mine", "mine again"]


async def test_a_run_that_is_taken_on_goes_on_here(store_url: str) -> None:
    noted.clear()
    async with Engine(store_url, worker=False) as client:
        run = await client.start(nap, "queued")
        async with Engine(store_url, workflows=[nap], own_only=True) as engine:
            engine.take_on(run.id)
            assert await engine.handle(run.id, nap).result(timeout=20) == "queued again"
    assert noted == ["queued", "queued again"]


@ironflow.workflow
async def long_nap(ctx: Context) -> None:
    await ctx.sleep(3600)


async def test_while_it_rests_everybody_sees_who_goes_on_with_it(store_url: str) -> None:
    """Between the end of a timer and the next activation a run belongs to nobody; `why` must not call that a hold."""
    async with Engine(store_url, worker=False) as other, Engine(store_url, own_only=True) as engine:
        run = await engine.start(long_nap)

        async def rests() -> bool:
            return any(has_own(session, run.id) for session in await other.store.sessions())

        await until(rests)
        await other.store.decide([run.id], due_at_once)
        for _ in range(20):
            found = {hold.code for hold in await holds(other.store, run.id)}
            assert not found & {"NO_WORKER", "NO_ELIGIBLE_WORKER", "WORKERS_BUSY"}, found


async def test_a_run_of_a_paused_workflow_waits_for_that_alone(store_url: str) -> None:
    async with Engine(store_url, worker=False) as other, Engine(store_url, own_only=True) as engine:
        await other.store.pause_workflow("nap", "ann")
        run = await engine.start(nap, "held")

        async def held_by_that_alone() -> bool:
            return {hold.code for hold in await holds(other.store, run.id)} == {"WORKFLOW_PAUSED"}

        await until(held_by_that_alone)
        await other.store.resume_workflow("nap", "ann")
