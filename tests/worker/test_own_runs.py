"""An engine that serves no queue executes its own runs, and leaves everybody else's alone."""

from __future__ import annotations

import ironflow
from ironflow import Context, Engine


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
