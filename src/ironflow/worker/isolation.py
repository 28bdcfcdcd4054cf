"""Isolation: a run that was charged with two losses in a row is executed alone, in a child process.

Two workers died while they executed it. Perhaps it was innocent, perhaps it kills whatever executes it (a crash in C
code, more memory than there is); either way it must not take a third worker's other runs with it. The child is spawned,
not forked, limits its memory, has a session and a lock of its own, and executes this one run. If it dies, its parent
knows at once, and the loss is charged to this run alone, until its ceiling ends it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from ironflow.address import sqlite_path
from ironflow.context.workflows import Workflow
from ironflow.engine.definitions import WorkflowSpec
from ironflow.errors import OUTAGES
from ironflow.model import recovery
from ironflow.model.capacity import RunHead
from ironflow.tasks import begin
from ironflow.worker import evidence
from ironflow.worker.session import lock_folder, new_session_id

if TYPE_CHECKING:
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: At once, per worker: suspects are rare, and each costs an interpreter.
MOST = 2
#: How much longer than the drain limit a child may take to leave, seconds.
LEAVING_S = 3.0
#: What the child's interpreter executes. The request comes by its standard input, because it holds the database's
#: address, and arguments and environment of a process can be read by others.
BOOT = (
    "import importlib, json, sys; request = json.loads(sys.stdin.readline()); sys.path[:] = request['path']; "
    "sys.exit(importlib.import_module(request['main']).main(request))"
)
#: Exit codes of a child: it cannot load the workflow, and no other child will; or something else was in the way.
CANNOT, AGAIN = 78, 75


class Reach(NamedTuple):
    """How a child process reaches what its parent speaks to: the module that knows, and what that is told."""

    main: str
    facts: dict[str, Any]


def by_database(url: str) -> Reach:
    """Reach a database, from whatever folder."""
    # A relative path means something else once this process has changed its folder.
    path = sqlite_path(url)
    return Reach(
        "ironflow.worker.child",
        {"url": url if path is None else f"sqlite:///{quote(str(Path(path).absolute()))}"},
    )


class Child:
    """One child process and the run it was started for."""

    __slots__ = ("head", "process", "session_id", "stopped", "task")

    def __init__(self, head: RunHead, session_id: str) -> None:
        self.head = head
        self.session_id = session_id
        self.process: Process | None = None
        self.task: asyncio.Task[None] | None = None
        #: told to leave: its end is no loss
        self.stopped = False


class Isolation:
    """See the module's docstring.

    Args:
        worker: the parent.
        reach: how a child reaches what the parent speaks to; None switches isolation off (a child does not isolate).
    """

    def __init__(self, worker: Worker, reach: Callable[[Worker], Reach] | None) -> None:
        self.worker = worker
        self.children: dict[str, Child] = {}
        self._reach = reach
        self._refused: set[str] = set()

    def wanted(self, head: RunHead) -> bool:
        """Whether this run is a suspect that can be isolated from here."""
        return (
            head.charged_recoveries >= recovery.SUSPECT_AFTER
            and self._reach is not None
            and head.run_id not in self._refused
        )

    def has_room(self, head: RunHead) -> bool:
        """Whether a child may be started for it now."""
        return len(self.children) < MOST and head.run_id not in self.children

    def start(self, head: RunHead) -> None:
        """Start a child for a reserved run. The slot counts as taken until the child has ended."""
        child = self.children[head.run_id] = Child(head, new_session_id())
        child.task = begin(self._run(child))

    async def stop(self, patience: float) -> None:
        """Tell every child to leave within so many seconds; one that does not is ended, and its run given back."""
        children = list(self.children.values())
        for child in children:
            child.stopped = True
            self._tell(child, patience)
        tasks = [child.task for child in children if child.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience + LEAVING_S)
        for child in children:
            if child.process is not None and child.process.returncode is None:
                child.process.kill()
        if tasks:
            await asyncio.wait(tasks, timeout=LEAVING_S)

    # ---- one child ---------------------------------------------------------------------------------------------------

    async def _run(self, child: Child) -> None:
        head = child.head
        try:
            place = place_of(self.worker.registry.get(head.workflow))
            if place is None:
                await self._execute_here(child, f"workflow {head.workflow} cannot be imported by another process")
                return
            log.warning(
                "run %s lost %d workers in a row: it is executed alone, in a process of its own",
                head.run_id,
                head.charged_recoveries,
            )
            try:
                code = await self._spawn(child, place)
            except OSError as error:
                await self._execute_here(child, f"its process could not be started: {error}")
                return
            await self._ended(child, code)
        # Never a reason to execute a killer here: what it held expires, and it is a suspect all the same.
        except OUTAGES as error:
            log.warning("suspect run %s is left to the scanner: %s", head.run_id, error.message)
        except Exception:
            log.exception("suspect run %s is left to the scanner", head.run_id)
        finally:
            del self.children[head.run_id]
            self.worker.dispatcher.expect(0)  # whatever the child put to sleep was not told here
            self.worker.dispatcher.wake()

    async def _spawn(self, child: Child, place: tuple[str, str]) -> int:
        """Start the process, keep the run promised to it while it starts, and wait for its end."""
        child.process = process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", BOOT, stdin=PIPE, close_fds=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._request(child, place)).encode() + b"\n")
        keeping = begin(self._keep(child))
        try:
            return await process.wait()
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            process.stdin.close()

    def _request(self, child: Child, place: tuple[str, str]) -> dict[str, Any]:
        settings = dataclasses.replace(self.worker.settings, concurrency=1, parked_instances=0)
        assert self._reach is not None
        reach = self._reach(self.worker)
        return {
            **reach.facts,
            "main": reach.main,
            "path": sys.path,
            "settings": dataclasses.asdict(settings),
            "module": place[0],
            "name": place[1],
            "head": dataclasses.asdict(child.head),
            "session_id": child.session_id,
            "worker_id": self.worker.session.worker_id,
            "strict": self.worker.strict,
        }

    async def _keep(self, child: Child) -> None:
        """Prolong the reservation until the child has activated the run: imports may take longer than it lasts."""
        ttl, head = self.worker.settings.reservation_ttl_ms, child.head
        while True:
            await asyncio.sleep(ttl / 3000)
            try:
                if not await self.worker.port.keep(head.run_id, head.reservation or "", ttl):
                    return
            except Exception as error:
                log.warning("the reservation of run %s could not be prolonged: %s", head.run_id, error)

    async def _ended(self, child: Child, code: int) -> None:
        head = child.head
        if code == 0:
            return
        if child.stopped or code == AGAIN:
            await self._give_back(child)
            return
        if code == CANNOT:
            await self._execute_here(child, "its process could not load it")
            return
        log.error("the process of suspect run %s died (%s)", head.run_id, _how(code))
        opening = evidence.last_words(lock_folder(), child.session_id)
        await self.worker.session.died(child.session_id, opening)
        owner = await self.worker.port.owner(head.run_id)
        # Not from a report: the watcher of the child's lock may have been quicker, and then it is empty.
        if opening is None and owner is not None and owner.execution_seq == head.execution_seq:
            await self._execute_here(child, "its process died before it looked at the run")

    async def _execute_here(self, child: Child, why: str) -> None:
        """Better beside the others than never: the run goes back into the queue and is taken without a child."""
        head = child.head
        log.warning("run %s is a suspect and is executed in the worker all the same: %s", head.run_id, why)
        self._refused.add(head.run_id)
        if head.reservation is not None:
            await self.worker.port.unreserve([(head.run_id, head.reservation)])

    async def _give_back(self, child: Child) -> None:
        """The child left without its run (told to, or for an error that was not the run's): no loss is counted."""
        head = child.head
        await self.worker.port.give_back(head.run_id, child.session_id)
        if head.reservation is not None:
            await self.worker.port.unreserve([(head.run_id, head.reservation)])

    def _tell(self, child: Child, patience: float) -> None:
        process = child.process
        if process is not None and process.stdin is not None and process.returncode is None:
            process.stdin.write(f"{round(patience * 1000)}\n".encode())


def place_of(spec: WorkflowSpec) -> tuple[str, str] | None:
    """Where another process finds a workflow: module and name.

    None for one made inside a function, and for one of the script itself: importing a script again would start it.
    """
    module = spec.fn.__module__
    found = sys.modules.get(module)
    if module == "__main__" or found is None:
        return None
    for name, value in list(vars(found).items()):
        if isinstance(value, Workflow) and value.spec is spec:
            return module, name
    return None


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
