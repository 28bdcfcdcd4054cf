"""Runs that kill whatever executes them: found out, put apart, ended; and their neighbours never notice."""

from __future__ import annotations

import os

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import WORKFLOWS, lines, open_gate, workers
from tests.store.build import changed

import ironflow
from ironflow import RunFailed
from ironflow.model.fold import fold

pytestmark = pytest.mark.usefixtures("folder")


async def suspect(url: str, workflow: ironflow.Workflow, name: str) -> str:
    """A run in the queue that was charged with two losses in a row."""
    async with ironflow.open(url, worker=False) as looking:
        run = await looking.start(workflow, name)
        charged = {"lease_recoveries": 2, "consecutive_recoveries": 2, "charged_recoveries": 2}
        await looking.store.decide([run.id], changed(**charged))
        return run.id


async def test_a_suspect_that_kills_its_process_takes_no_neighbour_with_it(store_url: str) -> None:
    """A poison-pill guard: its absence is a fault that a product of this kind shipped."""
    run_id = await suspect(store_url, program.pill, "pill")
    async with ironflow.open(store_url, workflows=WORKFLOWS, settings=quick(recovery_ceiling=3)) as engine:
        neighbour = await engine.start(program.line, "n")
        with pytest.raises(RunFailed) as failed:
            await engine.handle(run_id, program.pill).result(timeout=30)
        assert failed.value.failure["code"] == "EXECUTION_RECOVERY_EXHAUSTED"
        open_gate("n-2")
        assert await neighbour.result(timeout=20) == ["n-1", "n-2", "n-3"]
        pids = [pid for _, pid, _ in lines("pill")]
        assert len(pids) == len(set(pids)) == 2
        assert os.getpid() not in pids
        assert {pid for _, pid, _ in lines("n-")} == {os.getpid()}
        view = fold(await engine.store.journal(run_id))
        assert (view.breaches, view.state) == ([], "failed")


async def test_an_innocent_suspect_completes_in_its_process_and_is_known_by_its_session(store_url: str) -> None:
    run_id = await suspect(store_url, program.line, "x")
    async with ironflow.open(store_url, workflows=WORKFLOWS, settings=quick()) as engine:
        assert engine.worker is not None
        free = engine.worker.free
        ((_, pid, _),) = await until(lambda: lines("x-2"))
        assert pid != os.getpid()
        assert engine.worker.free == free - 1
        assert pid in {session.pid for session in await engine.store.sessions()}
        open_gate("x-2")
        assert await engine.handle(run_id, program.line).result(timeout=20) == ["x-1", "x-2", "x-3"]
        row = (await engine.get(run_id)).row
        assert (row.charged_recoveries, row.consecutive_recoveries) == (0, 0)
        await until(lambda: engine.worker and engine.worker.free == free)


async def test_a_suspect_that_wants_all_memory_gets_an_error_and_not_the_host(sqlite_url: str) -> None:
    run_id = await suspect(sqlite_url, program.glutton, "g")
    async with ironflow.open(sqlite_url, workflows=WORKFLOWS, settings=quick()) as engine:
        with pytest.raises(RunFailed, match="MemoryError"):
            await engine.handle(run_id, program.glutton).result(timeout=20)
        assert os.getpid() not in {pid for _, pid, _ in lines("g")}


async def test_a_worker_that_leaves_takes_its_suspects_child_along(sqlite_url: str) -> None:
    run_id = await suspect(sqlite_url, program.line, "x")
    async with ironflow.open(sqlite_url, workflows=WORKFLOWS, settings=quick()) as engine:
        ((_, pid, _),) = await until(lambda: lines("x-2"))
        await engine.close(drain_ms=0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    async with ironflow.open(sqlite_url, worker=False) as looking:
        row = (await looking.get(run_id)).row
        assert (row.state, row.lease_recoveries) == ("pending", 2)
        assert await looking.store.sessions() == []


async def test_a_suspect_that_no_other_process_can_import_is_executed_all_the_same(sqlite_url: str) -> None:
    @ironflow.workflow
    async def local(ctx: ironflow.Context, name: str) -> str:
        return await program.mark(name)

    run_id = await suspect(sqlite_url, local, "x")
    async with ironflow.open(sqlite_url, workflows=[local], settings=quick()) as engine:
        assert await engine.handle(run_id, local).result(timeout=20) == "x"
        assert [pid for _, pid, _ in lines("x")] == [os.getpid()]


async def test_code_that_kills_the_process_that_opens_it_is_found_out(store_url: str) -> None:
    """Its run never gets as far as a lease: only the black box in the dead process's lock file tells."""
    settings = quick(recovery_ceiling=3, lease_ttl_ms=20_000, session_ttl_ms=20_000)
    async with ironflow.open(store_url, worker=False) as looking:
        run = await looking.start(program.poison, "poison")
        with workers(store_url, 0, settings) as started:
            for deaths in (1, 2):
                victim = program.Worker(store_url, settings)
                started.append(victim)
                assert victim.process.wait(20) == -9
                assert len(lines("poison")) == deaths
        async with ironflow.open(store_url, workflows=WORKFLOWS, settings=settings) as engine:
            with pytest.raises(RunFailed, match="lost in a row"):
                await engine.handle(run.id, program.poison).result(timeout=30)
        assert os.getpid() not in {pid for _, pid, _ in lines("poison")}
        assert fold(await looking.store.journal(run.id)).breaches == []
