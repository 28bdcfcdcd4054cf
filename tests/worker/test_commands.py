"""What a person does to a run or a workflow, and what its workers can still make of it then."""

from __future__ import annotations

import asyncio

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, row, until
from tests.recovery.program import lines, open_gate
from tests.store.build import HOUR, answer, append, create, leave, start, timer

from ironflow import Engine
from ironflow.engine import commands
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.run import CANCELLING, STATES, TERMINAL
from ironflow.model.transition import APPLIED, STALE
from ironflow.store.base import Store


async def brought_to(store: Store, state: str) -> None:
    """A run in this state, which a worker has executed if any ever does there."""
    if state == "pending":
        assert await answer(store, create("r1")) == APPLIED
        return
    assert await answer(store, start("r1")) == APPLIED
    if state == "paused":
        assert await commands.pause(store, "r1", "ann")
    elif state != "running":
        waits = [timer("r1", store.now() + HOUR)] if state != "retrying" else []
        assert await answer(store, leave("r1", 4, state, waits=waits)) == APPLIED


@pytest.mark.parametrize("state", sorted(STATES - TERMINAL - {CANCELLING}))
async def test_g35_cancel_ends_a_live_run_and_refuses_what_its_worker_reports_later(store: Store, state: str) -> None:
    await brought_to(store, state)
    assert (await row(store)).state == state
    assert await commands.cancel(store, "r1", "ann")
    found, events = await row(store), await store.journal("r1")
    before = list(map(repr, events))
    assert (found.state, found.ended) == ("cancelled", True)
    assert (await store.leases(), await store.queue(), await store.waits("r1")) == ([], [], [])
    for report in (append("r1", len(events) + 1), leave("r1", len(events) + 1, "completed", facts=None)):
        assert await answer(store, report) == STALE
    assert list(map(repr, await store.journal("r1"))) == before
    assert [event.kind for event in events if event.kind in j.TERMINAL_KINDS] == [j.RUN_CANCELLED]
    assert (fold(events).breaches, (await row(store)).state) == ([], "cancelled")


@pytest.mark.usefixtures("folder")
async def test_r38_a_held_workflow_accepts_runs_and_none_of_them_begins_while_what_executes_goes_on(
    store_url: str,
) -> None:
    async with (
        Engine(store_url, workflows=program.WORKFLOWS, settings=quick()),
        Engine(store_url, worker=False) as client,
    ):
        running = await client.start(program.line, "x")
        await until(lambda: lines("x-2"))
        assert await client.store.pause_workflow("line", "ann")
        held = [await client.start(program.line, f"held{n}") for n in range(3)]
        open_gate("x-2")
        assert await running.result(timeout=20) == ["x-1", "x-2", "x-3"]
        younger = await client.start(program.short, "younger")  # whoever takes it has seen those before it in the queue
        assert await younger.result(timeout=20) == "younger"
        assert lines("held") == []
        assert [(await client.get(run.id)).state for run in held] == ["pending"] * 3
        for n in range(3):
            open_gate(f"held{n}-2")
        assert await client.store.resume_workflow("line", "ann")
        await asyncio.gather(*(run.result(timeout=20) for run in held))
