"""The supervisor of `ironflow worker --processes N`: starts the children, replaces dead ones, passes signals on.

It executes nothing itself, so that nothing an author's step does can take it down. A child that dies is
replaced after a pause that doubles while deaths follow one another quickly: a worker that cannot start must
not keep the machine busy. Nor must one that the machine itself does not let start, for want of processes or
memory: it is tried again in the same way. One whose key the servers refuse is replaced only where its key file
holds another key by now: the same again would end the same. Nor is one whose command is wrong, unless it began
once. Each child runs in a process group of its own, since Ctrl-C would otherwise reach it twice, from the
terminal and from here, and the second signal means "now". And each holds the read end of a pipe: when the
supervisor dies in whatever way, the pipe ends and the children leave in order.

A worker tells on another pipe (`cli.words`) under which session a server knows it. When it ends in whatever way without
having said goodbye there, that is reported: the parent of a process knows that it is gone, and what it held goes on
elsewhere at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ironflow.cli import exits, output, stdout, times
from ironflow.cli.stopping import Signals
from ironflow.cli.words import WORDS_VARIABLE, Heard
from ironflow.config import Settings
from ironflow.errors import IronflowError

PIPE_VARIABLE: Final = "IRONFLOW_SUPERVISOR_PIPE"
#: How long a report of a death may keep a supervisor that ends, seconds.
REPORT_S: Final = 2.0
#: Pause before a dead child is replaced, seconds: the first, and the longest.
BACKOFF_S = (0.2, 30.0)
#: A child that lived this long was healthy: its death is not part of a series, seconds.
HEALTHY_S = 5.0
#: Beyond the drain limit, before a child that does not leave is killed, seconds.
PATIENCE_S = 2.0


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


@dataclass(frozen=True, slots=True)
class Reporting:
    """Where deaths of children are reported, and with which key; and `current`: the key of a child that starts now."""

    servers: Sequence[str]
    key: str = field(repr=False)
    current: Callable[[], str]


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

    Raises:
        Exception: whatever nobody foresaw while the children were kept; they are drained first.
    """
    read, write = os.pipe()
    obituary = _Obituary(reporting) if reporting is not None else None
    try:
        with Signals(executes=False) as signals:
            children = [
                _Child([*arguments, *_metrics(settings, n)], n, worker_id, read, as_json, obituary)
                for n in range(1, count + 1)
            ]
            try:
                await _keep(children, obituary, signals)
            finally:
                limit_s = settings.drain_timeout_ms / 1000 + PATIENCE_S
                # One that has died and was not replaced yet has been told of; it does not spoil the end of the others.
                codes = await _drain([child for child in children if child.alive], signals, limit_s)
                for child in children:
                    child.report()
                if obituary is not None:
                    await obituary.close()
    finally:
        os.close(read)
        os.close(write)
    return _code(children, codes)


async def _keep(children: Sequence[_Child], obituary: _Obituary | None, signals: Signals) -> None:
    """Start them and keep them running until a signal comes, none is left to be kept, or a keeper fails (raised)."""
    keepers = [asyncio.ensure_future(child.keep()) for child in children]
    if obituary is not None:
        keepers.append(asyncio.ensure_future(obituary.open()))
    told, all_left = asyncio.ensure_future(signals.wait(1)), asyncio.gather(*keepers)
    waiting: set[asyncio.Future[Any]] = {told, all_left}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in (told, *keepers):
            one.cancel()
        ends = await asyncio.gather(told, all_left, *keepers, return_exceptions=True)
    for end in ends:
        if isinstance(end, Exception):
            raise end


def _code(children: Sequence[_Child], codes: Sequence[int]) -> int:
    """How a supervisor ends whose last children have ended with these codes."""
    refused = [child.refused for child in children if child.refused is not None]
    if refused:
        return refused[0]
    return exits.OK if not set(codes) - {exits.OK} else exits.INTERRUPTED


def _metrics(settings: Settings, number: int) -> list[str]:
    """The option by which each child shows its metrics on a port of its own: the one asked for, and those behind it."""
    if settings.metrics_address is None:
        return []
    from ironflow.observe.listener import address_of

    host, port = address_of(settings.metrics_address)
    host = f"[{host}]" if ":" in host else host
    return ["--metrics-address", f"{host}:{port + number - 1 if port else 0}"]


async def _drain(children: list[_Child], signals: Signals, limit_s: float) -> list[int]:
    """Ask all to leave; pass a second signal on; kill what has not left within `limit_s` seconds."""
    for child in children:
        child.send(signal.SIGTERM)
    leaving: asyncio.Future[list[int]] = asyncio.gather(*(child.ended() for child in children))
    second: asyncio.Future[None] = asyncio.ensure_future(signals.wait(2))
    deadline = asyncio.get_running_loop().time() + limit_s
    both: set[asyncio.Future[Any]] = {leaving, second}
    await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    if not leaving.done():
        for child in children:
            child.send(signal.SIGTERM)
        left = max(PATIENCE_S, deadline - asyncio.get_running_loop().time()) if second.done() else PATIENCE_S
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
        self._current = reporting.current
        self._tasks: set[asyncio.Task[Any]] = set()

    async def open(self) -> None:
        """Be ready to report: a death is no time to load a library."""
        await self._deaths.open()

    def key(self) -> str | None:
        """The key of a child that starts now; None where there is none to be read."""
        try:
            return self._current()
        except IronflowError:
            return None

    def report(self, session_id: str) -> None:
        """The process of this session has ended, without a goodbye."""
        task = asyncio.get_running_loop().create_task(self._deaths.tell(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """At the end: wait a moment for what is under way."""
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
        #: what the process says
        self.heard: Heard | None = None
        self.process: asyncio.subprocess.Process | None = None
        self.pause_s = BACKOFF_S[0]
        self._key: str | None = None
        self._ever_began = False
        #: the exit code with which it ended because it may not work or cannot, so that it is not replaced
        self.refused: int | None = None

    async def _start(self) -> None:
        """Start the process.

        Raises:
            OSError: the machine does not let it begin.
        """
        self.process = None
        # With the seed already fixed the child does not have to start itself again.
        environment = {**os.environ, PIPE_VARIABLE: str(self.pipe), "PYTHONHASHSEED": "0"}
        self._key = self._current_key()
        heard = self.heard = Heard()
        environment[WORDS_VARIABLE] = str(heard.write)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env=environment,
                pass_fds=[self.pipe, heard.write],
                process_group=0,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=stdout.descriptor(),
            )
        finally:
            heard.started()  # where nobody does, the pipe has ended, and is closed here, too

    def report(self) -> None:
        """Report every session that the ended process left without a goodbye; its exit code says nothing about that."""
        left = self.heard.end() if self.heard is not None else []
        # Whose key is refused, the report would be refused, too.
        if self.obituary is not None and self.refused is None:
            for session_id in left:
                self.obituary.report(session_id)

    def _is_final(self, code: int) -> bool:
        """Whether the process that has just ended is not to be replaced; says so where that is bad news."""
        heard = self.heard
        if heard is not None:
            heard.listen()
            self._ever_began = self._ever_began or heard.began
            if heard.left:
                return True
        if code == exits.ACCESS and self._key is not None and self._current_key() in (None, self._key):
            self.refused = code
            self._tell("refused", "is refused by the server and not started again", code=code)
            return True
        # Later it may be a deployment under way: what it is to execute is half there for a moment, or its key.
        cannot_begin = code == exits.USAGE or (code == exits.ACCESS and self._key is None)
        if cannot_begin and not self._ever_began:
            self.refused = code
            self._tell("refused", "cannot begin with this command and is not started again", code=code)
            return True
        return False

    def _current_key(self) -> str | None:
        return self.obituary.key() if self.obituary is not None else None

    async def keep(self) -> None:
        """Start the process, and another one each time it ends, until one was asked to leave by somebody else."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._start()
            except OSError as error:
                why = error.strerror or str(error)
                await self._rest("not_started", f"could not be started ({why}); it is tried again", error=why)
                continue
            code = await self.ended()
            final = self._is_final(code)
            self.report()
            if final:
                return
            if loop.time() - started >= HEALTHY_S:
                self.pause_s = BACKOFF_S[0]
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            await self._rest("died", f"{how}; the next starts", code=code)

    async def _rest(self, event: str, how: str, **facts: int | str) -> None:
        """Say why there is no process, and pause: each time for longer, until one has lived for a while."""
        pause_ms = round(self.pause_s * 1000)
        self._tell(event, f"{how} in {times.span(pause_ms)}", **facts, pause_ms=pause_ms)
        await asyncio.sleep(self.pause_s)
        self.pause_s = min(self.pause_s * 2, BACKOFF_S[1])

    def _tell(self, event: str, text: str, **facts: int | str) -> None:
        found, who = {"event": event, "number": self.number}, f"worker {self.number}"
        if self.process is not None:
            found["pid"] = self.process.pid
            who = f"{who} (pid {self.process.pid})"
        output.tell({**found, **facts}, f"{who} {text}", as_json=self.as_json)

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
