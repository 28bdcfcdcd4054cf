"""Who asks on the host of a dead worker hears of its death before any clock does, and asking changes nothing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.recovery import program
from tests.recovery.kit import until
from tests.recovery.program import WORKFLOWS, lines, open_gate, workers

import ironflow
from ironflow.engine.why import Hold
from ironflow.model import journal as j
from ironflow.worker.evidence import living

pytestmark = pytest.mark.usefixtures("folder")

#: Asks for the lock of a file as a stranger; ends with 1 where somebody holds it.
STRANGER = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"


async def told(engine: ironflow.Engine, run_id: str) -> dict[str, Hold]:
    return {hold.code: hold for hold in await engine.why(run_id)}


async def test_a_worker_that_was_killed_is_called_dead_at_once_and_counts_for_nothing(store_url: str) -> None:
    with workers(store_url, 1) as (worker,):
        async with ironflow.open(store_url, worker=False) as looking:
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            assert (await told(looking, run.id)).keys() == {"EXECUTING", "STEP_EXECUTING"}
            worker.kill()
            found = await told(looking, run.id)
            assert found.keys() == {"WORKER_DEAD", "NO_WORKER"}
            assert f"(pid {worker.pid} on " in found["WORKER_DEAD"].message
            (lease,) = await looking.store.leases()
            assert found["WORKER_DEAD"].until == lease.expires_at
            other = await looking.start(program.short, "y")
            assert (await told(looking, other.id)).keys() == {"NO_WORKER"}
            routing = (await looking.get(other.id)).worker_routing
            assert routing is not None
            assert (routing["workers_seen"], routing["slots_free"]) == (0, 0)
            assert len(await looking.store.sessions()) == 1, "asking is no recovery"
            open_gate("x-2")
            async with ironflow.open(store_url, workflows=WORKFLOWS) as engine:
                assert await engine.handle(run.id, program.line).result(timeout=20) == ["x-1", "x-2", "x-3"]
                events = await engine.store.journal(run.id)
    reasons = [event.data()["reason"] for event in events if event.kind == j.RUN_RECOVERED]
    assert reasons == ["the process is gone"], "the proof is still there for who acts on it"


async def test_asking_leaves_the_locks_of_the_living_as_they_are(sqlite_url: str) -> None:
    """A record lock is gone when its own process closes any descriptor of the file."""
    with workers(sqlite_url, 1):
        async with ironflow.open(sqlite_url, workflows=WORKFLOWS) as engine:
            sessions = await engine.store.sessions()
            assert len(sessions) == 2
            assert living(sessions) == sessions
            for session in sessions:
                assert session.lock_path is not None
                done = subprocess.run(
                    [sys.executable, "-c", STRANGER, session.lock_path], check=False, stderr=subprocess.DEVNULL
                )
                assert done.returncode == 1, "it is held"


async def test_what_cannot_be_seen_from_here_is_no_proof(sqlite_url: str) -> None:
    with workers(sqlite_url, 1) as (worker,):
        async with ironflow.open(sqlite_url, worker=False) as looking:
            (session,) = await looking.store.sessions()
            worker.kill()
            assert living([session]) == []
            strange = [
                replace(session, host="elsewhere"),
                replace(session, boot_id="another"),
                replace(session, lock_inode=0),
                replace(session, lock_path=f"{session.lock_path}.gone"),
                replace(session, lock_path=None),
            ]
            assert living(strange) == strange
