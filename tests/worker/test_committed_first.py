"""First the commit, then the effect: as long as a plan cannot be committed, nothing that it says has happened."""

from __future__ import annotations

import asyncio

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import hold, lines, mark, open_gate
from tests.worker.foreign import locked

import ironflow
from ironflow import Context, Engine
from ironflow.model import journal as j

pytestmark = pytest.mark.usefixtures("folder")


@ironflow.workflow
async def in_company(ctx: Context, name: str) -> list[str]:
    """The steps of `program.line`, while another one executes beside them all the time."""

    async def line() -> str:
        return await mark(f"{name}-1") + await hold(f"{name}-2") + await mark(f"{name}-3")

    return list(await ctx.parallel([line(), hold(f"{name}-beside")]))


@pytest.mark.parametrize("workflow", [program.line, in_company], ids=["alone", "in company"])
async def test_p2_no_body_begins_while_the_commit_that_journals_its_start_waits(
    store_url: str, workflow: ironflow.Workflow[str, list[str]]
) -> None:
    """The end of the only body is committed where it ends, that of one among others by the segment's own task."""
    async with Engine(store_url, workflows=[workflow], settings=quick(lease_ttl_ms=20_000)) as engine:
        assert engine.worker is not None
        run = await engine.start(workflow, "x")
        await until(lambda: lines("x-2"))
        if workflow is in_company:
            await until(lambda: lines("x-beside"))
        segment = engine.worker.segments[run.id]
        async with locked(store_url, run.id):
            open_gate("x-2")
            await until(lambda: segment.writing)
            for _ in range(100):  # whatever may begin now has every opportunity to
                await asyncio.sleep(0)
            assert lines("x-3") == []
            assert segment.writing, "the commit still waits"
            started = [event.step_id for event in await engine.store.journal(run.id) if event.kind == j.STEP_STARTED]
            assert len(started) == len(lines("x-")), "the journal knows of every body that has begun, and of no other"
        await until(lambda: lines("x-3"))
        open_gate("x-beside")
        assert (await run.result(timeout=20))[-1] in ("x-3", "x-beside")
        assert len(lines("x-3")) == 1
