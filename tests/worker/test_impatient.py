"""A caller that is cancelled stops waiting, and no more: what it has submitted is followed by what follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate

import ironflow
from ironflow import Context, Engine
from ironflow.errors import PayloadTooLarge
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.transition import GUARD_FRESH, GUARD_QUEUED, Transition

pytestmark = pytest.mark.usefixtures("folder")


@ironflow.step(at_most_once=True)
async def once(name: str) -> str:
    return await program.mark.fn(name)


@ironflow.workflow
async def strictly_once(ctx: Context, name: str) -> str:
    return await once(name)


WORKFLOWS = [strictly_once, *program.WORKFLOWS]


class Gate:
    """In front of a store's answers of one kind: each is there, and is heard when the gate is opened."""

    def __init__(self, submit: Callable[[Transition], Any], guard: str) -> None:
        self._submit = submit
        self._guard = guard
        self.opened = asyncio.Event()
        #: the answers that wait behind it
        self.behind: list[str] = []

    def __call__(self, change: Transition) -> str | Awaitable[str]:
        answer = self._submit(change)
        return self._held(answer) if change.guard == self._guard else answer

    def _held(self, answer: Any) -> asyncio.Future[str]:
        # A future of its own, as the stores give one: whoever awaits it may cancel it.
        heard: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def hear() -> None:
            word = answer if isinstance(answer, str) else await answer
            self.behind.append(word)
            await self.opened.wait()
            if not heard.done():
                heard.set_result(word)

        self._task = asyncio.ensure_future(hear())
        return heard


def gate(one: Engine, guard: str, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Put a gate before a worker's activations."""
    assert one.worker is not None
    made = Gate(one.worker.port.submit, guard)
    monkeypatch.setattr(one.worker.port, "submit", made)
    return made


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def kinds(one: Engine, run_id: str) -> list[str]:
    return [event.kind for event in await one.store.journal(run_id)]


async def test_a_run_whose_start_was_cancelled_between_its_commit_and_the_answer_is_executed(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was leased, and nobody drove it: lost after its lease, charged, and ended as interrupted without a call."""
    async with Engine(store_url, workflows=WORKFLOWS, settings=quick()) as one:
        held = gate(one, GUARD_FRESH, monkeypatch)
        starting = asyncio.create_task(one.start(strictly_once, "x", id="x"))
        await until(lambda: held.behind)
        await cancelled(starting)
        held.opened.set()
        assert await one.handle("x", strictly_once).result(timeout=20) == "x"
        row = (await one.get("x")).row
        assert (row.execution_seq, row.lease_recoveries, row.state) == (1, 0, runs.COMPLETED)
        assert len(lines("x")) == 1
        assert one.worker is not None
        assert not one.worker.taking


async def test_what_a_cancelled_start_began_is_given_back_by_a_worker_that_leaves(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(store_url, workflows=WORKFLOWS, worker=False) as client:
        one = Engine(store_url, workflows=WORKFLOWS, settings=quick())
        async with one:
            worker = one.worker
            assert worker is not None
            held = gate(one, GUARD_FRESH, monkeypatch)
            starting = asyncio.create_task(one.start(program.line, "x", id="x"))
            await until(lambda: held.behind)
            await cancelled(starting)
            closing = asyncio.create_task(one.close())
            await until(lambda: worker.stopping)
            held.opened.set()
            await closing
        row = (await client.get("x")).row
        assert (row.state, row.lease_recoveries) == (runs.PENDING, 0)
        assert await client.store.leases() == []
        assert (await kinds(client, "x")).count(j.RUN_RELEASED) == 1


async def test_runs_whose_taking_was_cancelled_between_their_commit_and_the_answer_are_executed(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        Engine(store_url, workflows=WORKFLOWS, worker=False) as client,
        Engine(store_url, workflows=WORKFLOWS, settings=quick(concurrency=4)) as one,
    ):
        worker = one.worker
        assert worker is not None
        await worker.dispatcher._standing.stop()
        for name in ("x", "y"):
            await client.start(strictly_once, name, id=name)
        held = gate(one, GUARD_QUEUED, monkeypatch)
        taking = asyncio.create_task(worker.take(await one.store.peek(worker.session.routes, 4)))
        await until(lambda: len(held.behind) == 2)
        await cancelled(taking)
        assert worker.taking == {"x", "y"}, "they are on their way in, whoever waits for that"
        held.opened.set()
        for name in ("x", "y"):
            assert await client.handle(name, strictly_once).result(timeout=20) == name
            assert (await client.get(name)).row.execution_seq == 1
        assert not worker.taking


async def test_a_start_that_was_refused_says_why_and_leaves_nothing_behind(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(store_url, workflows=WORKFLOWS, settings=quick()) as one:
        worker = one.worker
        assert worker is not None

        def refuses(change: Transition) -> str:
            raise PayloadTooLarge("one commit of the run", 2, 1)

        monkeypatch.setattr(worker.port, "submit", refuses)
        with pytest.raises(PayloadTooLarge):
            await one.start(program.short, "x")
        assert (worker.free, worker.segments) == (worker.slots, {})


@pytest.mark.parametrize("command", ["cancel", "pause"])
async def test_a_command_that_was_cancelled_in_the_middle_is_told_to_whoever_executes_the_run(
    store_url: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = 600_000
    settings = quick(renewal_interval_ms=60_000, lease_ttl_ms=long, session_ttl_ms=long, stale_claim_threshold_ms=long)
    async with Engine(store_url, workflows=WORKFLOWS, settings=settings) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        decide, decided, opened = one.store.decide, asyncio.Event(), asyncio.Event()

        async def slowly(run_ids: Any, *rest: Any, **options: Any) -> Any:
            found = await decide(run_ids, *rest, **options)
            if list(run_ids) == [run.id]:
                decided.set()
                await opened.wait()
            return found

        monkeypatch.setattr(one.store, "decide", slowly)
        commanding = asyncio.create_task(getattr(run, command)())
        await decided.wait()
        await cancelled(commanding)
        opened.set()
        worker = one.worker
        assert worker is not None
        await until(lambda: run.id not in worker.segments, "the segment is told, and not first by its heartbeat")
        open_gate("x-2")


@pytest.mark.parametrize("executes", [True, False])
async def test_workers_are_told_of_a_queued_run_whose_start_was_cancelled(
    store_url: str, executes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(
        store_url, workflows=WORKFLOWS, worker=executes, settings=quick(concurrency=1)
    ) as one:
        if executes:  # its only slot is taken, so that the second run is queued
            await one.start(program.line, "busy")
        submit = one.store.submit
        held = Gate(submit, GUARD_FRESH)
        monkeypatch.setattr(one.store, "submit", held)
        told: list[str] = []
        monkeypatch.setattr(one, "_enqueued", lambda row, *, new: told.append(row.run_id))
        starting = asyncio.create_task(one.start(program.short, "x", id="x"))
        await until(lambda: held.behind)
        await cancelled(starting)
        assert told == []
        held.opened.set()
        await until(lambda: told)
        assert told == ["x"]
        assert (await one.get("x")).state == runs.PENDING
