"""Servers and workers as processes of their own, as the works over HTTP need them.

They get the settings that a work gives them and none of the shell it is started from. Whatever becomes of the work,
they are gone behind their block: asked to leave first, killed if they do not.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

from ironflow.client import Client
from ironflow.model.key import ADMIN, ORG, WORKER
from ironflow.server import keys
from ironflow.store import connect

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = Path(__file__).with_name("workflows.py")
#: How long a process may take to be ready, and to leave when it is asked to, in seconds.
READY_S, LEAVE_S = 60.0, 30.0


class Process:
    """One `ironflow` command that tells with lines of JSON what happens. A context manager; ready inside.

    Args:
        url: the database.
        words: the command.
        key: the key it uses.
        settings: environment variables beside those of the bench.
    """

    def __init__(
        self, url: str, *words: str, key: str | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("IRONFLOW_")}
        # With the seed already fixed a worker does not have to start itself again.
        own |= {"IRONFLOW_DATABASE_URL": url, "IRONFLOW_LOG_LEVEL": "error", "PYTHONHASHSEED": "0"}
        own |= {"IRONFLOW_API_KEY": key} if key is not None else {}
        own["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [own.get("PYTHONPATH")])])
        self._environment = own | dict(settings or {})
        self._words = words
        self._process: asyncio.subprocess.Process | None = None
        #: what it told first, and last
        self.told: dict[str, Any] = {}
        self._last: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "bench.tied", *self._words, "--json",
            stdin=DEVNULL, stdout=PIPE, env=self._environment,
        )  # fmt: skip
        try:
            async with asyncio.timeout(READY_S):
                await self._begin()
        except BaseException:
            await self.end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def _begin(self) -> None:
        self.told = await self.line()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    async def line(self) -> dict[str, Any]:
        """The next line that it tells."""
        assert self._process is not None
        assert self._process.stdout is not None
        text = await self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"`ironflow {self._words[0]}` ended with {await self._process.wait()}: {self._last}")
        self._last = json.loads(text)
        return self._last

    async def kill(self) -> int:
        """SIGKILL, and nothing is left of it. Returns the monotonic clock just before, in ns."""
        assert self._process is not None
        killed = time.monotonic_ns()
        self._send(signal.SIGKILL)
        await self._process.wait()
        return killed

    def _send(self, number: signal.Signals) -> None:
        # Not by the methods of asyncio's process: they reap one that has just ended, and asyncio wonders where it is.
        assert self._process is not None
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def end(self) -> None:
        """Let it leave in order, or kill it. A second call does nothing."""
        if self._process is None or self._process.returncode is not None:
            return
        try:
            self._send(signal.SIGTERM)
            async with asyncio.timeout(LEAVE_S):
                await self._process.wait()
        except TimeoutError:
            print(f"`ironflow {self._words[0]}` did not leave and is killed", file=sys.stderr)
        finally:
            await self.kill()


class Workers(Process):
    """`ironflow worker --processes N`: a supervisor, and the processes it has started.

    Args:
        url: the database that the servers have; a worker over HTTP never opens it.
        target: the workflows.
        servers: their addresses.
        key: a worker key.
        count: how many processes.
        settings: environment variables beside those of the bench.
    """

    def __init__(
        self,
        url: str,
        target: str,
        servers: Sequence[str],
        key: str,
        *,
        count: int,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        addresses = [word for server in servers for word in ("--server", server)]
        # What a step holds on to when it is over would only keep everybody waiting.
        given = {"IRONFLOW_DRAIN_TIMEOUT": "0s", **(settings or {})}
        super().__init__(url, "worker", target, *addresses, "--processes", str(count), key=key, settings=given)
        self._count = count
        self._reading: asyncio.Task[None] | None = None
        #: process id of each worker that is ready
        self.ready: set[int] = set()

    async def _begin(self) -> None:
        self._reading = asyncio.create_task(self._read())
        await self.complete()

    async def _read(self) -> None:
        while True:
            told = await self.line()
            event = told.get("event")
            if event == "ready":
                self.ready.add(told["pid"])
            elif event == "died":
                self.ready.discard(told["pid"])

    async def complete(self) -> None:
        """Wait until all processes are ready."""
        assert self._reading is not None
        while len(self.ready) < self._count:
            if self._reading.done():
                self._reading.result()  # raises what ended it
            await asyncio.sleep(0.01)

    def kill_one(self, pid: int) -> int:
        """SIGKILL one of its processes. Returns the monotonic clock just before, in ns."""
        self.ready.discard(pid)
        killed = time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        return killed

    def freeze(self) -> None:
        """SIGSTOP everything: nobody hears of them any more, and no connection breaks."""
        self._send_all(signal.SIGSTOP)

    def _send_all(self, number: signal.Signals) -> None:
        self._send(number)
        for pid in self.ready:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def end(self) -> None:
        """See `Process.end`; the supervisor ends its processes."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        if self._process is not None:
            self._send_all(signal.SIGCONT)
        await super().end()


async def make_key(url: str, kind: str, role: str | None = None) -> str:
    """A new key."""
    store = await connect(url)
    try:
        _, key = await keys.make(store, kind, "bench", by="bench", role=role)
    finally:
        await store.close()
    return key


@asynccontextmanager
async def cluster(url: str, *, slots: int, workers: int = 1) -> AsyncIterator[Client]:
    """A server on a free port and workers for the bench's workflows; gives a client of the server."""
    worker_key, client_key = await make_key(url, WORKER), await make_key(url, ORG, ADMIN)
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(Process(url, "serve", "--port", "0"))
        for _ in range(workers):
            words = ("worker", str(WORKFLOWS), "--server", served.told["url"], "--concurrency", str(slots))
            await stack.enter_async_context(Process(url, *words, key=worker_key))
        yield await stack.enter_async_context(Client(served.told["url"], client_key))
