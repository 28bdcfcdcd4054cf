"""`python3 dev.py soak --cluster [--kills 90] [--runs 2000] [--pause 4]`: servers and workers die all the time.

Two servers over one PostgreSQL, four HTTP workers under one supervisor, and a client that starts runs at whichever
server answers. A random one of the six processes is killed with SIGKILL every two seconds in the mean; a server is
started again on its port, a worker by its supervisor. Afterwards the same is checked as in `soak.py`, and it is told
how long it took from the death of a worker to the next start of each step that it had been executing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import ironflow
from ironflow.client import Client
from ironflow.errors import IronflowError
from ironflow.testing.postgres import PostgresServer
from soak import EFFECTS, Soak, mixed

SERVERS, WORKERS = 2, 4
HOST = "127.0.0.1"
#: A worker whose death its supervisor saw: its steps begin elsewhere within so long, p99, ms.
TARGET_MS = 200


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _ironflow(*words: str, url: str, key: str | None = None, **more: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "IRONFLOW_DATABASE_URL": url, "IRONFLOW_LOG_LEVEL": "error"}
    environment |= {"IRONFLOW_API_KEY": key} if key is not None else {}
    return subprocess.Popen(
        [sys.executable, "-m", "ironflow", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env=environment | more.pop("env", {}), **more,
    )  # fmt: skip


@dataclass(slots=True)
class Cluster(Soak):
    """The servers and the workers, and who of them died when."""

    keys: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    servers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    supervisor: subprocess.Popen[str] | None = None
    #: pids of workers that are ready
    ready: set[int] = field(default_factory=set)
    #: pid -> when it was killed
    killed: dict[int, float] = field(default_factory=dict)
    reader: threading.Thread | None = None

    def address(self, port: int) -> str:
        """Of the server at a port."""
        return f"http://{HOST}:{port}"

    async def serve(self, port: int) -> None:
        """Start a server and wait until it answers."""
        process = _ironflow("serve", "--port", str(port), "--json", url=self.url, stderr=subprocess.DEVNULL)
        self.servers[port] = process
        assert process.stdout is not None
        if not await asyncio.to_thread(process.stdout.readline):
            raise SystemExit(f"a server ended with {process.wait()} before it could serve")

    def supervise(self) -> None:
        """Start the workers under their supervisor."""
        servers = [word for port in self.ports for word in ("--server", self.address(port))]
        self.supervisor = _ironflow(
            "worker", f"{Path(__file__).with_name('soak.py')}:mixed", *servers,
            "--processes", str(WORKERS), "--json",
            url=self.url, key=self.keys["worker"], env={EFFECTS: str(self.effects)}, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.supervisor is not None
        assert self.supervisor.stdout is not None
        for line in self.supervisor.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == "ready":
                    self.ready.add(int(event["pid"]))

    async def load(self) -> None:
        """Start runs in step with the kills, each at a server that answers."""
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(self.address(port), self.keys["admin"], pauses=()))
                for port in self.ports
            ]
            for number in range(self.options.runs):
                while number > self.options.open + self.options.runs * self.kills // self.options.kills:
                    await asyncio.sleep(0.02)
                seed = self.chance.randrange(1 << 30)
                run_id = await self._start(clients, number, seed)
                self.runs[run_id] = seed

    async def _start(self, clients: list[Client], number: int, seed: int) -> str:
        """The key makes it safe to ask again where an answer was lost with its server."""
        for attempt in range(200):
            client = clients[(number + attempt) % len(clients)]
            try:
                return (await client.start(mixed, seed, idempotency_key=f"{self.options.seed}-{number}")).id
            except IronflowError:
                await asyncio.sleep(0.1)
        raise SystemExit("no server has answered for 20 seconds")

    async def kill(self) -> None:
        """Kill a random process again and again."""
        while self.kills < self.options.kills:
            await asyncio.sleep(self.chance.uniform(0.02, self.options.pause))
            victim = self.chance.randrange(SERVERS + WORKERS)
            if victim < SERVERS:
                port = self.ports[victim]
                self.servers[port].send_signal(signal.SIGKILL)
                self.servers[port].communicate()
                await self.serve(port)
            else:
                await self._kill_worker()
            self.kills += 1

    async def _kill_worker(self) -> None:
        while not self.ready:
            await asyncio.sleep(0.02)
        pid = self.chance.choice(sorted(self.ready))
        self.ready.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.killed[pid] = time.time()

    async def execute(self) -> None:
        """The whole of it: load, kills, the wait for the end."""
        self.ports = [_free_port() for _ in range(SERVERS)]
        await asyncio.gather(*(self.serve(port) for port in self.ports))
        self.supervise()
        while len(self.ready) < WORKERS:
            await asyncio.sleep(0.02)
        tasks = [asyncio.create_task(one) for one in (self.load(), self.kill(), self.watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.supervisor.wait(60)
        self.supervisor.kill()
        self.supervisor.wait()
        for server in self.servers.values():
            server.kill()
            server.communicate()

    def takeovers(self) -> list[float]:
        """Milliseconds from the death of a worker to the next start of each step it had been executing."""
        starts: dict[tuple[str, str], list[tuple[int, int, float]]] = defaultdict(list)
        for line in self.effects.read_text().splitlines():
            run_id, step, _try, fence, pid, at = json.loads(line)
            starts[run_id, step].append((fence, pid, at))
        found = []
        for tries in starts.values():
            tries.sort()
            for (fence, pid, _), (later, _, at) in pairwise(tries):
                if later > fence and pid in self.killed and at > self.killed[pid]:
                    found.append((at - self.killed[pid]) * 1000)
        return sorted(found)


async def on_cluster(folder: Path, options: argparse.Namespace) -> int:
    """One soak of a cluster; returns how much was wrong."""
    folder.chmod(0o755)  # the database may run as another user
    with PostgresServer(folder / "data", fsync=True) as server:
        url = server.create_database("soak")
        async with ironflow.open(url, workflows=[mixed], worker=False) as engine:
            effects = folder / "effects"
            effects.touch()
            started = time.monotonic()
            test = Cluster(url, effects, options, random.Random(options.seed), engine)
            test.keys = {kind: _key(url, *words) for kind, words in _KEYS.items()}
            await test.execute()
            wrong = await test.wrong()
            seconds = time.monotonic() - started
            told = f"{await test.summary()}, {len(test.killed)} of the killed were workers, {seconds:.0f} s"
            print(f"cluster, seed {options.seed}: {told}")
            wrong += _judged(test.takeovers())
    for message in wrong[:20]:
        print(f"  WRONG {message}")
    return len(wrong)


_KEYS = {"admin": ("soak", "--role", "admin"), "worker": ("soak", "--worker")}


def _key(url: str, *words: str) -> str:
    made = _ironflow("apikey", "create", *words, "--json", url=url, stderr=None)
    out, _ = made.communicate()
    return str(json.loads(out)["key"])


def _judged(found: list[float]) -> list[str]:
    if not found:
        return ["no step was taken over, so nothing was tried"]
    p50, p99 = found[len(found) // 2], found[int(len(found) * 0.99)]
    told = f"p50 {p50:.0f}, p99 {p99:.0f}, max {found[-1]:.0f} ms"
    print(f"  from the death of a worker to the step elsewhere: {told} of {len(found)} steps")
    return [f"a takeover took p99 {p99:.0f} ms; {TARGET_MS} is the most"] if p99 > TARGET_MS else []
