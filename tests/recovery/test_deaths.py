"""Real processes that are killed, on both databases: nothing is done by hand, and nothing finished runs again.

Settings are the defaults (a lease lasts 20 s), so whatever goes on within a second or two was proven, not timed out.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import WORKFLOWS, lines, open_gate, workers

import ironflow
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.worker import evidence
from ironflow.worker.session import lock_folder

pytestmark = pytest.mark.usefixtures("folder")

#: Far above what proof takes on a busy machine, far below what any clock of the default settings allows, seconds.
PROVEN_S = 5.0


async def test_g3_g4_g5_g6_r3_r4_a_killed_workers_run_goes_on_elsewhere(store_url: str) -> None:
    """Killed twice: the first survivor, then its survivor, so that each of two that watch each other is seen to die."""
    with workers(store_url, 2) as started:
        async with ironflow.open(store_url, worker=False) as engine:
            run = await engine.start(program.line, "x")
            for deaths in (1, 2):
                told = await until(lambda n=deaths: len(lines("x-2")) == n and lines("x-2"))
                _, victim, _ = told[-1]
                dying = next(worker for worker in started if worker.pid == victim)
                killed = time.monotonic_ns()
                dying.kill()
                again = await until(lambda n=deaths: len(lines("x-2")) == n + 1 and lines("x-2"))
                assert again[-1][1] not in (victim, 0)
                assert (again[-1][2] - killed) / 1e9 < PROVEN_S
                if deaths == 1:
                    started.append(program.Worker(store_url).ready())
            open_gate("x-2")
            assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
            await _as_promised(engine, run.id)


async def _as_promised(engine: ironflow.Engine, run_id: str) -> None:
    assert Counter(told for told, _, _ in lines("x-")) == {"x-1": 1, "x-2": 3, "x-3": 1}
    events = [event async for event in engine.handle(run_id).journal()]
    view = fold(events)
    assert (view.breaches, view.lease_recoveries, view.retry_count) == ([], 2, 0)
    held = next(step for step in view.steps.values() if step.name == "hold")
    assert [(one.state) for one in held.tries] == ["interrupted", "interrupted", "completed"]
    assert [event.kind for event in events].count(j.STEP_INTERRUPTED) == 2
    assert [event.data()["reason"] for event in events if event.kind == j.RUN_RECOVERED] == ["the process is gone"] * 2
    row = (await engine.get(run_id)).row
    assert (row.state, row.lease_recoveries, row.retry_count) == ("completed", 2, 0)


async def test_two_processes_that_watch_each_other_both_go_on_watching(sqlite_url: str) -> None:
    """With record locks this is a deadlock to the kernel: the second to wait is refused, and sees no death at once."""
    async with ironflow.open(sqlite_url, workflows=WORKFLOWS) as engine:
        assert engine.worker is not None
        with workers(sqlite_url, 1) as (other,):  # it watches us by the time it is ready
            await engine.worker.session.look_around()
            (peer,) = engine.worker.session.peers
            assert peer.pid == other.pid
            names = {thread.name for thread in threading.enumerate()}
            assert f"ironflow-watch-{peer.session_id[:8]}" in names
            await asyncio.sleep(0.1)  # a refused watch has ended by now
            assert peer.session_id in evidence._watched
            other.kill()
            await until(lambda: peer.session_id not in evidence._watched)
            await until(lambda: engine.worker and not engine.worker.session.peers)


async def test_r17_a_finished_member_of_a_half_finished_wave_is_not_executed_again(store_url: str) -> None:
    with workers(store_url, 1) as started:
        async with ironflow.open(store_url, worker=False) as looking:
            run = await looking.start(program.wave, "x")
            view = await until(lambda: lines("x-b") and looking.get(run.id))
            await until(lambda: lines("x-a"))
            await until(lambda: _completed(looking, run.id, "x-a"))
            assert view is not None
        started[0].kill()
        open_gate("x-b")
        async with ironflow.open(store_url, workflows=WORKFLOWS) as engine:
            assert await engine.handle(run.id, program.wave).result(timeout=PROVEN_S) == ["x-a", "x-b", "x-c"]
    assert Counter(told for told, _, _ in lines("x-")) == {"x-a": 1, "x-b": 2, "x-c": 1}


async def _completed(engine: ironflow.Engine, run_id: str, result: str) -> bool:
    steps = (await engine.get(run_id)).steps.values()
    return any(step.state == "completed" and step.result == result for step in steps)


async def test_the_only_worker_restarted_goes_on_at_once_and_leaves_no_lock_file(store_url: str) -> None:
    locks = set(lock_folder().glob("*.lock"))
    with workers(store_url, 1) as started:
        async with ironflow.open(store_url, worker=False) as looking:
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            (session,) = await looking.store.sessions()
        started[0].kill()
        assert session.lock_path is not None
        assert Path(session.lock_path).exists()
        opened = time.monotonic_ns()
        async with ironflow.open(store_url, workflows=WORKFLOWS) as engine:
            again = await until(lambda: len(lines("x-2")) == 2 and lines("x-2")[-1])
            assert (again[2] - opened) / 1e9 < PROVEN_S
            open_gate("x-2")
            await engine.handle(run.id, program.line).result(timeout=20)
            await until(lambda: not Path(session.lock_path or "").exists())
    await until(lambda: not set(lock_folder().glob(f"{session.session_id}*")) - locks)


async def test_g13_p20_r10_a_thawed_worker_writes_nothing_stops_its_bodies_and_works_on(store_url: str) -> None:
    settings = quick(lease_ttl_ms=2_000, session_ttl_ms=2_000)
    with workers(store_url, 1, settings) as started:
        frozen = started[0]
        async with ironflow.open(store_url, worker=False) as looking:
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            await _freeze_outside_a_write(frozen, looking)
            async with ironflow.open(store_url, workflows=WORKFLOWS, settings=settings) as engine:
                await until(lambda: len(lines("x-2")) == 2)
                fence = (await engine.get(run.id)).row.execution_seq
                since = engine.store.now()
                frozen.thaw()
                await until(lambda: [line for line in lines("cancelled x-2") if line[1] == frozen.pid])
                await until(lambda: _works_again(engine, frozen.pid, since))
                row = (await engine.get(run.id)).row
                assert (row.state, row.execution_seq) == ("running", fence)
                open_gate("x-2")
                assert await engine.handle(run.id, program.line).result(timeout=20) == ["x-1", "x-2", "x-3"]
                assert fold(await engine.store.journal(run.id)).breaches == []
            # The other one has left: the thawed one is alone, and takes what comes.
            later = await looking.start(program.short, "later")
            assert await later.result(timeout=20) == "later"
            assert lines("later")[0][1] == frozen.pid
    counts = Counter(told for told, _, _ in lines("x-"))
    assert (counts["x-1"], counts["x-3"]) == (1, 1)
    assert [pid for _, pid, _ in lines("x-2")].count(frozen.pid) == 1


async def _freeze_outside_a_write(worker: program.Worker, looking: ironflow.Engine) -> None:
    """A process that is stopped while it writes to a SQLite file holds the file: then nobody can do anything."""
    while True:
        worker.freeze()
        try:
            await asyncio.wait_for(looking.store.resume_workflow("nobody", "test"), 1)
            return
        except TimeoutError:
            worker.thaw()


async def _works_again(engine: ironflow.Engine, pid: int, since: int) -> bool:
    """Under its old session, if only the lease was over yet, or under a new one."""
    return any(s.pid == pid and s.heartbeat_at > since for s in await engine.store.sessions())


async def test_a_worker_that_leaves_in_order_is_charged_to_nobody(store_url: str) -> None:
    """G40, without signals: what does not end within the drain limit is given back and goes on elsewhere."""
    with workers(store_url, 2, quick(lease_ttl_ms=20_000, session_ttl_ms=20_000)) as started:
        async with ironflow.open(store_url, worker=False) as looking:
            run = await looking.start(program.line, "x")
            (told,) = await until(lambda: lines("x-2"))
            leaving = next(worker for worker in started if worker.pid == told[1])
            assert leaving.leave() == 0
            again = await until(lambda: len(lines("x-2")) == 2 and lines("x-2")[-1])
            assert again[1] != leaving.pid
            assert [line[1] for line in lines("cancelled x-2")] == [leaving.pid]
            open_gate("x-2")
            await run.result(timeout=20)
            row = (await looking.get(run.id)).row
            assert (row.lease_recoveries, row.consecutive_recoveries, row.charged_recoveries) == (0, 0, 0)
