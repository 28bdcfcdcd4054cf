"""The child process that executes one suspect run; see `isolation`.

It limits itself before any of the author's code is imported, takes the run it was given, and leaves when the run has
left it, when it is told to (a line with its patience in ms on standard input), or when its parent is gone.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ironflow.config import Settings
from ironflow.context.workflows import Workflow
from ironflow.engine.registry import Registry
from ironflow.model.capacity import RunHead
from ironflow.observe.observation import Observation
from ironflow.store import connect
from ironflow.worker.isolation import AGAIN, CANNOT
from ironflow.worker.local import embedded
from ironflow.worker.results import Results
from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: The part of the memory of host or container that a suspect may use.
MEMORY_SHARE = 0.5
#: The memory limit of the container, if there is one (control groups, version 2).
_CONTAINER_LIMIT = Path(os.sep, "sys", "fs", "cgroup", "memory.max")
#: To the kernel's out-of-memory killer: this process first.
_KILL_FIRST = Path(os.sep, "proc", "self", "oom_score_adj")


#: Makes the worker of this process.
Opened = Callable[[dict[str, Any], Registry, Settings], Awaitable[Worker]]


def main(request: dict[str, Any]) -> int:
    """Execute one run; returns the exit code: 0 when the run has left, `CANNOT` or `AGAIN` when it could not be taken.

    Args:
        request: what `Isolation` sends: database, settings, where the workflow is, the run's head, the session's id.
    """
    return execute(request, _opened)


async def _opened(request: dict[str, Any], registry: Registry, settings: Settings) -> Worker:
    store = await connect(request["url"])
    return embedded(
        store,
        registry,
        settings,
        Results(),
        worker_id=request["worker_id"],
        strict=request["strict"],
        session_id=request["session_id"],
    )


def execute(request: dict[str, Any], opened: Opened) -> int:
    """Execute one run in a worker that `opened` makes; see `main`."""
    _limit()
    try:
        workflow = getattr(importlib.import_module(request["module"]), request["name"])
        if not isinstance(workflow, Workflow):
            raise TypeError(f"{request['module']}.{request['name']} is no workflow")
    except (Exception, SystemExit):
        log.exception("workflow %s of %s could not be imported", request["name"], request["module"])
        return CANNOT
    try:
        code = asyncio.run(_execute(request, workflow, opened))
    except Exception:  # the database, most likely: the run is not to blame
        log.exception("run %s could not be executed alone", request["head"]["run_id"])
        code = AGAIN
    sys.stdout.flush()
    sys.stderr.flush()
    if any(thread.name.startswith("ironflow-step") for thread in threading.enumerate()):
        os._exit(code)  # a cancelled step still runs in a thread, and Python would wait for it
    return code


async def _execute(request: dict[str, Any], workflow: Workflow[Any, Any], opened: Opened) -> int:
    worker = await opened(request, Registry([workflow.spec]), Settings(**request["settings"]))
    observation = Observation(worker.port.now)
    worker.observer = observation.observer
    told = _told()
    try:
        await worker.session.open()
        await worker.take([RunHead(**request["head"])])
        patience_ms = await _until_left(worker, told)
        await worker.stop(drain_ms=patience_ms)
    finally:
        await worker.port.close()
        await observation.close()
    return 0


async def _until_left(worker: Worker, told: asyncio.Future[int | None]) -> int | None:
    """Wait until the run has left this process. Returns how long it may take to leave, where it is told to, in ms."""
    while worker.segments and not told.done():
        waited: list[asyncio.Future[Any]] = [s.task for s in worker.segments.values() if s.task is not None]
        await asyncio.wait([*waited, told], return_when=asyncio.FIRST_COMPLETED)
    return told.result() if told.done() else 0


def _told() -> asyncio.Future[int | None]:
    """Done when this process is to leave: by a signal, by its parent's word, or because its parent is gone."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int | None] = loop.create_future()

    def leave(patience_ms: int | None) -> None:
        if not told.done():
            told.set_result(patience_ms)

    def listen() -> None:
        line = sys.stdin.readline().strip()
        try:
            loop.call_soon_threadsafe(leave, int(line) if line else None)
        except (RuntimeError, ValueError):  # the loop has closed: it leaves already
            return

    # Signals reach a whole process group, and the parent answers them in order: this one does the same.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # what `nohup` has switched off stays so
            loop.add_signal_handler(number, leave, None)
    threading.Thread(target=listen, name="ironflow-parent", daemon=True).start()
    return told


def _limit() -> None:
    """Bound what a runaway run can do to its host. Each limit is an extra: where one cannot be set, it goes on."""
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    for limit, most in ((kind, int(_memory() * MEMORY_SHARE)), (resource.RLIMIT_CORE, 0)):
        try:
            _, hard = resource.getrlimit(limit)
            soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(limit, (soft, hard))
        except (OSError, ValueError):
            continue
    try:
        _KILL_FIRST.write_text("1000")
    except OSError:
        return


def _memory() -> int:
    """Bytes of memory that this process could have at most."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CONTAINER_LIMIT.read_text().strip()
    except OSError:
        return most
    return min(most, int(limit)) if limit.isdecimal() else most
