"""The supervisor of `ironflow worker --processes N`: starts the children, replaces dead ones, passes signals on.

It executes nothing itself, so that nothing an author's step does can take it down. A child that dies is
replaced after a pause that doubles while deaths follow one another quickly: a worker that cannot start must
not keep the machine busy. Each child runs in a process group of its own, since Ctrl-C would otherwise reach
it twice, from the terminal and from here, and the second signal means "now". And each holds the read end of
a pipe: when the supervisor dies in whatever way, the pipe ends and the children leave in order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from ironflow.cli import exits, output, times
from ironflow.cli.stopping import Signals
from ironflow.config import Settings

PIPE_VARIABLE: Final = "IRONFLOW_SUPERVISOR_PIPE"
#: Pause before a dead child is replaced, seconds: the first, and the longest.
BACKOFF = (0.2, 30.0)
#: A child that lived this long was healthy: its death is not part of a series, seconds.
HEALTHY = 30.0
#: Beyond the drain limit, before a child that does not leave is killed, seconds.
PATIENCE = 2.0


def watch_supervisor(gone: Callable[[], None]) -> None:
    """In a child: call `gone` once the supervisor is dead. Does nothing in a process that has none."""
    text = os.environ.pop(PIPE_VARIABLE, "")
    if not text.isdigit():
        return
    pipe, loop = int(text), asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(pipe)
        gone()

    loop.add_reader(pipe, ended)


async def supervise(
    arguments: Sequence[str], count: int, worker_id: str | None, settings: Settings, *, as_json: bool
) -> int:
    """Keep `count` workers running until a signal comes; then drain them.

    Args:
        arguments: what each child's `ironflow worker` is given: targets and options.
        count: how many children.
        worker_id: children are named `worker_id-1`, `worker_id-2`, …; None lets each name itself.
        settings: for the drain limit.
        as_json: tell what happens as JSON.

    Returns:
        the exit code: 0 if every child left in order.
    """
    read, write = os.pipe()
    try:
        with Signals() as signals:
            children = [_Child(arguments, n, worker_id, read, as_json) for n in range(1, count + 1)]
            await asyncio.gather(*(child.start() for child in children))
            keepers = [asyncio.ensure_future(child.keep()) for child in children]
            await signals.wait(1)
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            limit = settings.drain_timeout_ms / 1000 + PATIENCE
            codes = await _drain(children, signals, limit)
    finally:
        os.close(read)
        os.close(write)
    return exits.OK if not any(codes) else exits.INTERRUPTED


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


class _Child:
    """One worker process and its successors."""

    def __init__(self, arguments: Sequence[str], number: int, worker_id: str | None, pipe: int, as_json: bool) -> None:
        named = ["--worker-id", f"{worker_id}-{number}"] if worker_id is not None else []
        self.command = [sys.executable, "-m", "ironflow", "worker", *arguments, *named]
        self.number = number
        self.pipe = pipe
        self.as_json = as_json
        self.process: asyncio.subprocess.Process | None = None
        self.pause = BACKOFF[0]

    async def start(self) -> None:
        """Start the process."""
        # With the seed already fixed the child does not have to start itself again.
        environment = {**os.environ, PIPE_VARIABLE: str(self.pipe), "PYTHONHASHSEED": "0"}
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            env=environment,
            pass_fds=(self.pipe,),
            process_group=0,
            stdin=asyncio.subprocess.DEVNULL,
        )

    async def keep(self) -> None:
        """Replace the process each time it ends, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            code = await self.ended()
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
            if self.as_json:
                output.emit(facts)
            else:
                output.screen(stderr=True).print(text, soft_wrap=True)
            await asyncio.sleep(self.pause)
            self.pause = min(self.pause * 2, BACKOFF[1])
            await self.start()

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
