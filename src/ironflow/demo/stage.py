"""The demo's course: two workers, one run, one kill, and then nothing but watching.

Promises that the kill hits the process that holds the run's lease while at least one body is known, from its
own line in the effects file, to have begun and not to have been recorded. Should the body end in the moment
between that look and the signal, the evidence says so, and every claim is still checked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from ironflow.demo.ingest import Source, Summary, ingest
from ironflow.demo.proof import Effect, read_effects
from ironflow.demo.view import Scene, View
from ironflow.demo.workers import WorkerProcess
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.fold import StepView, fold
from ironflow.model.journal import Event
from ironflow.runtime import Engine, Run

NAMES = ("demo-A", "demo-B")
FILES = 300
#: Seconds a body takes besides its work. Long against the commit after it, so that a kill lands inside a
#: body.
DELAY_S = 0.03
REST_S = 1.0
#: The share of the files after which the worker is killed.
KILL_AT = 0.4
_TICK_S = 0.04
_PATIENCE_S = 60.0


class DemoFailed(Exception):
    """The demo could not be played: a worker did not start, or the run did not move in time."""


@dataclass(slots=True)
class Evidence:
    """All that remains of a performance; what is claimed later is computed from this alone.

    Times are milliseconds since 1970 of the database's clock; `effects` are already on it.
    """

    run_id: str
    store: str
    state: str
    summary: Summary
    out: Path
    root: Path
    files: int
    killed: str
    killed_pid: int
    survivor: str
    survivor_pid: int
    killed_at: int
    events: list[Event] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    @property
    def recovery_ms(self) -> int | None:
        """From the kill to the first body that began on the survivor; None if none did."""
        after = [e.at_ms for e in self.effects if e.pid == self.survivor_pid and e.at_ms >= self.killed_at]
        return min(after) - self.killed_at if after else None


class Stage:
    """One performance.

    Args:
        engine: an open engine without a worker: it starts and watches, and executes nothing.
        url: the database's address, for the workers.
        folder: a folder of the demo's own, for the run's files and the workers' output.
        view: where to report to.
    """

    def __init__(self, engine: Engine, url: str, folder: Path, view: View) -> None:
        self.engine, self.url, self.folder, self.view = engine, url, folder, view
        self.out = folder / "out"
        self.workers: list[WorkerProcess] = []
        self.scene = Scene(workers=self.workers)
        self.events: list[Event] = []
        self.steps: dict[str, StepView] = {}
        self._began = time.monotonic()

    async def perform(self) -> Evidence:
        """Play it to the end.

        Raises:
            DemoFailed: a worker did not start, or the run did not move in time.
            RunFailed: the run failed, which it should not.
        """
        try:
            await self._start_workers()
            source = Source(out=str(self.out), limit=FILES, delay=DELAY_S, rest=REST_S)
            run = await self.engine.start(ingest, source)
            self.view.say(f"run {run.id} started: {ingest.name}, up to {FILES} files of the standard library")
            victim, killed_at = await self._kill_owner(run)
            summary = await self._watch_to_end(run)
            return await self._evidence(run, victim, killed_at, summary)
        finally:
            for worker in self.workers:
                worker.stop()

    async def _start_workers(self) -> None:
        for name in NAMES:
            self.workers.append(WorkerProcess(name, self.url, self.folder))

        async def ready() -> bool:
            for worker in self.workers:
                if not worker.alive:
                    raise DemoFailed(f"worker {worker.name} did not start:\n{worker.output()}")
            pids = {session.pid for session in await self.engine.store.sessions()}
            return all(worker.pid in pids for worker in self.workers)

        await self._until(ready, "the workers to register")
        for worker in self.workers:
            self.view.say(f"worker {worker.name} is up, pid {worker.pid}")

    async def _kill_owner(self, run: Run[Summary]) -> tuple[WorkerProcess, int]:
        owner: list[WorkerProcess] = []

        async def in_a_step() -> bool:
            await self._look(run)
            if self.scene.state in runs.TERMINAL:
                raise DemoFailed("the run ended before it could be interrupted")
            if not self.scene.total or self.scene.done < KILL_AT * self.scene.total:
                return False
            owner[:] = [worker for worker in self.workers if worker.name == self.scene.owner]
            return bool(owner) and self._body_under_way(run.id)

        await self._until(in_a_step, "the run to be in the middle of its work")
        victim = owner[0]
        killed_at = self.engine.store.now()
        victim.kill()
        done = f"{self.scene.done} of {self.scene.total} files were done"
        self.view.say(f"kill -9 {victim.pid}: {victim.name} is gone, {done}")
        return victim, killed_at

    def _body_under_way(self, run_id: str) -> bool:
        begun = {effect.step_id for effect in read_effects(self.out / "effects.log", run_id)}
        return any(view.state == steps.RUNNING and step_id in begun for step_id, view in self.steps.items())

    async def _watch_to_end(self, run: Run[Summary]) -> Summary:
        announced = False

        async def ended() -> bool:
            nonlocal announced
            before = self.scene.status
            await self._look(run)
            if not announced and self.scene.owner and any(e.kind == j.RUN_RECOVERED for e in self.events):
                announced = True
                self.view.say(f"worker {self.scene.owner} took the run over; nothing was started by hand")
            if announced and self.scene.status != before:
                self.view.say(f"  {self.scene.status}")
            survivor = next(worker for worker in self.workers if not worker.killed)
            if not survivor.alive:
                raise DemoFailed(f"worker {survivor.name} ended:\n{survivor.output()}")
            return self.scene.state in runs.TERMINAL or self.scene.state == runs.PAUSED

        await self._until(ended, "the run to end")
        return await run.result(timeout=_PATIENCE_S)

    async def _evidence(self, run: Run[Summary], victim: WorkerProcess, killed_at: int, summary: Summary) -> Evidence:
        await self._look(run)
        store = self.engine.store
        survivor = next(worker for worker in self.workers if worker is not victim)
        job = next(view.result for view in self.steps.values() if view.name == "survey")
        # Bodies wrote their host's clock; a database elsewhere has another one.
        ahead = store.now() - time.time_ns() // 1_000_000
        effects = [
            Effect(e.step_id, e.attempt, e.pid, e.at_ms + ahead, e.run_id)
            for e in read_effects(self.out / "effects.log", run.id)
        ]
        return Evidence(
            run.id, store.dialect, self.scene.state, summary, self.out, Path(job["root"]), len(job["files"]),
            victim.name, victim.pid, survivor.name, survivor.pid, killed_at, self.events, effects,
        )  # fmt: skip

    async def _look(self, run: Run[Summary]) -> None:
        """Bring scene, journal and steps up to date."""
        store, scene = self.engine.store, self.scene
        self.events += await store.journal(run.id, after=len(self.events))
        folded = fold(self.events)
        self.steps = folded.steps
        files = [view for view in folded.steps.values() if view.name == "index_file"]
        survey = next((view.result for view in folded.steps.values() if view.name == "survey"), None)
        scene.state, scene.status = folded.state, folded.status_text or ""
        scene.total = len(survey["files"]) if survey else 0
        scene.done = sum(1 for view in files if view.state == steps.COMPLETED)
        scene.executing = sum(1 for view in folded.steps.values() if view.state == steps.RUNNING)
        scene.owner = await self._owner(run.id)

    async def _owner(self, run_id: str) -> str | None:
        store = self.engine.store
        lease = next((lease for lease in await store.leases() if lease.run_id == run_id), None)
        if lease is None:
            return None
        pids = [session.pid for session in await store.sessions() if session.session_id == lease.session_id]
        return next((worker.name for worker in self.workers if worker.pid in pids), None)

    async def _until(self, done: Callable[[], Awaitable[bool]], what: str) -> None:
        """Look every few hundredths of a second until `done`, showing the scene."""
        deadline = time.monotonic() + _PATIENCE_S
        while not await done():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{worker.name}: {worker.output()}" for worker in self.workers)
                raise DemoFailed(f"waited {_PATIENCE_S:.0f} s for {what}\n{logs}")
            self.scene.elapsed_s = time.monotonic() - self._began
            self.view.update(self.scene)
            await asyncio.sleep(_TICK_S)
