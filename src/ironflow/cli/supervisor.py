"""The supervisor of `ironflow worker --processes N`: starts the children, replaces dead ones, passes signals on.

It executes nothing itself, so that nothing an author's step does can take it down. A child that dies is
replaced after a pause that doubles while deaths follow one another quickly: a worker that cannot start must
not keep the machine busy. Each child runs in a process group of its own, since Ctrl-C would otherwise reach
it twice, from the terminal and from here, and the second signal means "now". And each holds the read end of
a pipe: when the supervisor dies in whatever way, the pipe ends and the children leave in order.

A worker of a server tells on another pipe under which session it is known there. When it dies, that is reported: the
parent of a process knows that it is gone, and what it held goes on elsewhere at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ironflow.cli import exits, output, times
from ironflow.cli.stopping import Signals
from ironflow.config import Settings

if TYPE_CHECKING:
    from ironflow.remote.session import Supervised

PIPE_VARIABLE: Final = "IRONFLOW_SUPERVISOR_PIPE"
#: In a child: the descriptor on which it tells the id of each session it opens.
SESSIONS_VARIABLE: Final = "IRONFLOW_SESSIONS_PIPE"
#: How a child ends that was asked to leave, by somebody other than its supervisor: it is not replaced.
LEFT_ON_REQUEST: Final = 79
#: How long a report of a death may keep a supervisor that ends, seconds.
REPORT_S: Final = 2.0
#: Pause before a dead child is replaced, seconds: the first, and the longest.
BACKOFF = (0.2, 30.0)
#: A child that lived this long was healthy: its death is not part of a series, seconds.
HEALTHY = 5.0
#: Beyond the drain limit, before a child that does not leave is killed, seconds.
PATIENCE = 2.0


def watch_supervisor(gone: Callable[[], None]) -> bool:
    """In a child: call `gone` once the supervisor is dead. Returns False in a process that has none."""
    text = os.environ.pop(PIPE_VARIABLE, "")
    if not text.isdigit():
        return False
    pipe, loop = int(text), asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(pipe)
        gone()

    loop.add_reader(pipe, ended)
    return True


def supervised() -> Supervised | None:
    """In a child: who supervises it, and how it tells its sessions. None in a process that has no supervisor."""
    from ironflow.remote.session import Supervised

    text = os.environ.pop(SESSIONS_VARIABLE, "")  # not for processes that an author's step may start
    if not text.isdigit():
        return None

    pipe = int(text)
    os.set_blocking(pipe, False)

    def announce(session_id: str) -> None:
        try:
            os.write(pipe, f"{session_id}\n".encode())
        except OSError:  # the supervisor is gone, and this process leaves; or the pipe is full, and a clock will tell
            return

    return Supervised(f"{socket.gethostname()}-{os.getppid()}", announce)


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where deaths of children are reported, and with which key."""

    servers: Sequence[str]
    key: str = field(repr=False)


async def supervise(
    arguments: Sequence[str],
    count: int,
    worker_id: str | None,
    settings: Settings,
    *,
    as_json: bool,
    reporting: Reporting | None = None,
) -> int:
    """Keep `count` workers running until a signal comes; then drain them.

    Args:
        arguments: what each child's `ironflow worker` is given: targets and options.
        count: how many children.
        worker_id: children are named `worker_id-1`, `worker_id-2`, …; None lets each name itself.
        settings: for the drain limit.
        as_json: tell what happens as JSON.
        reporting: where the children's deaths are reported; None for workers on a database, who watch each other.

    Returns:
        the exit code: 0 if every child left in order.
    """
    read, write = os.pipe()
    obituary = _Obituary(reporting) if reporting is not None else None
    try:
        with Signals() as signals:
            children = [
                _Child([*arguments, *_metrics(settings, n)], n, worker_id, read, as_json, obituary)
                for n in range(1, count + 1)
            ]
            await asyncio.gather(*(child.start() for child in children))
            if obituary is not None:
                await obituary.open()
            keepers = [asyncio.ensure_future(child.keep()) for child in children]
            told, all_left = asyncio.ensure_future(signals.wait(1)), asyncio.gather(*keepers, return_exceptions=True)
            waiting: set[asyncio.Future[Any]] = {told, all_left}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in (told, *keepers):
                one.cancel()
            await asyncio.gather(told, all_left, return_exceptions=True)
            limit = settings.drain_timeout_ms / 1000 + PATIENCE
            # One that has died and was not replaced yet has been told of; it does not spoil the end of the others.
            codes = await _drain([child for child in children if child.alive], signals, limit)
            if obituary is not None:
                await obituary.close(children)
    finally:
        os.close(read)
        os.close(write)
    return exits.OK if not set(codes) - {exits.OK, LEFT_ON_REQUEST} else exits.INTERRUPTED


def _metrics(settings: Settings, number: int) -> list[str]:
    """The option by which each child shows its metrics on a port of its own: the one asked for, and those behind it."""
    if settings.metrics_address is None:
        return []
    from ironflow.observe.listener import address_of

    host, port = address_of(settings.metrics_address)
    host = f"[{host}]" if ":" in host else host
    return ["--metrics-address", f"{host}:{port + number - 1 if port else 0}"]


async def _drain(children: list[_Child], signals: Signals, limit: float) -> list[int]:
    """Ask all to leave; pass a second signal on; kill what has not left within `limit` seconds."""
    for child in children:
        child.send(signal.SIGTERM)
    leaving: asyncio.Future[list[int]] = asyncio.gather(*(child.ended() for child in children))
    second: asyncio.Future[None] = asyncio.ensure_future(signals.wait(2))
    deadline = asyncio.get_running_loop().time() + limit
    both: set[asyncio.Future[Any]] = {leaving, second}
    await asyncio.wait(both, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    if not leaving.done():
        for child in children:
            child.send(signal.SIGTERM)
        left = max(PATIENCE, deadline - asyncio.get_running_loop().time()) if second.done() else PATIENCE
        await asyncio.wait({leaving}, timeout=left)
    second.cancel()
    if not leaving.done():
        for child in children:
            child.send(signal.SIGKILL)
    return list(await leaving)


class _Obituary:
    """Reports deaths, each in a task: a server that is away must not keep a child from being replaced."""

    def __init__(self, reporting: Reporting) -> None:
        from ironflow.remote.deaths import Deaths

        self._deaths = Deaths(reporting.servers, reporting.key)
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Be ready to report: a death is no time to load a library."""
        await self._deaths.open()

    def report(self, session_id: str) -> None:
        """The process of this session has ended, and not in order."""
        task = asyncio.get_running_loop().create_task(self._deaths.tell(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, children: Sequence[_Child]) -> None:
        """At the end: report who did not leave in order, and wait a moment for what is under way."""
        for child in children:
            child.report()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=REPORT_S)
        for task in [*self._tasks]:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._deaths.close()


class _Child:
    """One worker process and its successors."""

    def __init__(
        self,
        arguments: Sequence[str],
        number: int,
        worker_id: str | None,
        pipe: int,
        as_json: bool,
        obituary: _Obituary | None,
    ) -> None:
        named = ["--worker-id", f"{worker_id}-{number}"] if worker_id is not None else []
        self.command = [sys.executable, "-m", "ironflow", "worker", *arguments, *named]
        self.number = number
        self.pipe = pipe
        self.as_json = as_json
        self.obituary = obituary
        #: the pipe on which the child tells its sessions
        self.sessions: int | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.pause = BACKOFF[0]

    async def start(self) -> None:
        """Start the process."""
        # With the seed already fixed the child does not have to start itself again.
        environment = {**os.environ, PIPE_VARIABLE: str(self.pipe), "PYTHONHASHSEED": "0"}
        passed = [self.pipe]
        tells: int | None = None
        if self.obituary is not None:
            self.sessions, tells = os.pipe()
            os.set_blocking(self.sessions, False)
            environment[SESSIONS_VARIABLE] = str(tells)
            passed.append(tells)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env=environment,
                pass_fds=passed,
                process_group=0,
                stdin=asyncio.subprocess.DEVNULL,
            )
        finally:
            if tells is not None:
                os.close(tells)

    def report(self) -> None:
        """Report every session of the process that has ended, if it did not leave in order."""
        pipe, self.sessions = self.sessions, None
        if pipe is None:
            return
        told = b""
        try:
            while part := os.read(pipe, 1 << 16):
                told += part
        except BlockingIOError:  # somebody whom the child started holds the other end; it has nothing to say
            pass
        finally:
            os.close(pipe)
        code = self.process.returncode if self.process is not None else 0
        if self.obituary is not None and code not in (exits.OK, LEFT_ON_REQUEST):
            for session_id in told.decode("ascii", "replace").split():
                self.obituary.report(session_id)

    async def keep(self) -> None:
        """Replace the process each time it ends, until one was asked to leave by somebody else."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self.ended()
            self.report()
            if code == LEFT_ON_REQUEST:
                return
            if loop.time() - started >= HEALTHY:
                self.pause = BACKOFF[0]
            pid = self.process.pid if self.process is not None else 0
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            text = f"worker {self.number} (pid {pid}) {how}; the next starts in {times.span(round(self.pause * 1000))}"
            facts = {
                "event": "died",
                "number": self.number,
                "pid": pid,
                "code": code,
                "pause_ms": round(self.pause * 1000),
            }
            output.tell(facts, text, as_json=self.as_json)
            await asyncio.sleep(self.pause)
            self.pause = min(self.pause * 2, BACKOFF[1])
            await self.start()

    @property
    def alive(self) -> bool:
        """Whether its process has not ended."""
        return self.process is not None and self.process.returncode is None

    async def ended(self) -> int:
        """Wait for the process; its exit code, negative for a signal."""
        return await self.process.wait() if self.process is not None else 0

    def send(self, number: int) -> None:
        """Send it a signal, if it still lives."""
        if self.process is not None and self.process.returncode is None:
            try:
                self.process.send_signal(number)
            except ProcessLookupError:
                return
