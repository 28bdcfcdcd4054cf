"""The workers of a cluster soak: supervisors with their children, which can be cut off and frozen.

A host is one supervisor and its workers. Between one of them and the servers there may be a relay that delays what
goes through, or breaks it all and lets nobody in.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"


def ironflow(*words: str, url: str, key: str | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start a command of the command line; what it tells comes through a pipe."""
    environment = {**os.environ, "IRONFLOW_DATABASE_URL": url, "IRONFLOW_LOG_LEVEL": "error"}
    environment |= {"IRONFLOW_API_KEY": key} if key is not None else {}
    return subprocess.Popen(
        [sys.executable, "-m", "ironflow", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env=environment | more.pop("env", {}), **more,
    )  # fmt: skip


class Host:
    """One supervisor and its workers.

    Args:
        servers: where they work.
        processes: how many workers.
        start: the words of `ironflow worker` beyond these, and its environment.
    """

    def __init__(self, servers: Sequence[str], processes: int, start: Any) -> None:
        self.processes = processes
        #: pids of workers that are ready, and of all that ever were
        self.ready: set[int] = set()
        self.workers: set[int] = set()
        #: cut off or frozen right now: a death here could not be reported
        self.away = False
        named = [word for server in servers for word in ("--server", server)]
        self._supervisor: subprocess.Popen[str] = start(*named, "--processes", str(processes), "--json")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == "ready":
                    self.workers.add(int(event["pid"]))
                    self.ready.add(int(event["pid"]))

    @property
    def healthy(self) -> set[int]:
        """Workers that take runs now."""
        return set() if self.away else set(self.ready)

    def kill(self, pid: int) -> None:
        """SIGKILL to one worker; its supervisor starts another."""
        self.ready.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def freeze(self) -> set[int]:
        """SIGSTOP to the supervisor and then to all that it and its children have started; returns its workers."""
        self.away = True
        self._send(signal.SIGSTOP)
        return set(self.ready)

    def thaw(self) -> None:
        """SIGCONT to all of them."""
        self._send(signal.SIGCONT)
        self.away = False

    def _send(self, number: int) -> None:
        processes = [self._supervisor.pid]
        for pid in processes:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(pid, number)
                processes += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def ask_to_leave(self) -> None:
        """SIGTERM to the supervisor."""
        self._supervisor.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for it to leave; kill it if it does not. Its workers go with it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(60)
        self._supervisor.kill()
        self._supervisor.wait()


class Relay:
    """Passes on whatever comes to a loopback port, until it is cut."""

    def __init__(self, target: int, chance: random.Random) -> None:
        self._target = target
        self._chance = chance
        #: each piece of data is held back for up to so long, seconds
        self.delay = 0.0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self.port = 0

    async def up(self) -> None:
        """Listen: on the port it had before, if it had one."""
        self._server = await asyncio.start_server(self._accepted, LOOPBACK, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = {writer}
        self._open.add(writer)
        try:
            answers, server = await asyncio.open_connection(LOOPBACK, self._target)
            writers.add(server)
            self._open.add(server)
            await asyncio.gather(self._pump(reader, server), self._pump(answers, writer))
        except OSError:  # the server is being started again, or it was cut
            pass
        finally:
            self._open -= writers
            for one in writers:
                one.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            if self.delay:
                await asyncio.sleep(self._chance.uniform(0, self.delay))
            writer.write(data)
            await writer.drain()
        raise ConnectionResetError  # one half is over: so is the other
