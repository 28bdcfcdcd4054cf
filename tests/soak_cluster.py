"""`python3 dev.py soak --cluster [--kills 90] [--runs 2000] [--seed N]`: servers and workers die, freeze, are cut off.

Two servers over one PostgreSQL, four HTTP workers under three supervisors, and a client that starts runs at whichever
server answers, evenly over the time. Every two seconds in the mean a random process is killed with SIGKILL; a server
is started again on its port, a worker by its supervisor. Meanwhile one worker, behind a relay, is cut off again and
again, sometimes for so short a time that nobody may notice, and the host of another one is frozen with its supervisor
for longer than any lease lasts: when it wakes, others have gone on without it.

Afterwards the same is checked as in `soak.py`, and it is told for each of the three kinds of fault how long it took
to the next body of each step that had been under way. Never killed are the last server and the last worker that is
well: what is measured is how soon others take over, and there must be others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import subprocess
import time
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ironflow
from ironflow.client import Client
from ironflow.errors import IronflowError
from ironflow.testing.postgres import PostgresServer
from ironflow.testing.relay import Relay
from soak import EFFECTS, Soak, mixed
from soak_hosts import Host
from soak_hosts import ironflow as command
from soak_machine import Machine
from soak_takeovers import CUT, FROZEN, KILLED, LIMITS, Fault, Faults, Run, Takeovers, measure

LOOPBACK = "127.0.0.1"
SERVERS = 2
#: Workers of the host that is only ever met by kills, of the one that is frozen, and of the one behind the relay.
PROCESSES = (2, 1, 1)
#: Between two freezes, and between two cuts, seconds: least and most.
BETWEEN_S = (3.0, 6.0)
#: A cut that is short enough to be forgiven, and one that is not, seconds: least and most.
SHORT_S, LONG_S = (0.5, 3.0), (LIMITS[CUT] / 1_000 + 1, LIMITS[CUT] / 1_000 + 3)
#: A worker whose server was killed has a stream to another one by then, whose break can be noticed, seconds.
BACK_S = 3.0
#: How long a frozen host stands still, seconds.
FROZEN_S = LIMITS[FROZEN] / 1_000 + 2
#: While it is not cut, the relay holds pieces back for up to so long, seconds; a random one of these at a time.
DELAYS_S = (0.0, 0.0, 0.005, 0.03)


@dataclass(slots=True)
class Cluster(Soak):
    """The servers and the hosts, and what was done to whom."""

    machine: Machine = field(kw_only=True)
    keys: dict[str, str] = field(default_factory=dict)
    ports: list[int] = field(default_factory=list)
    servers: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    #: servers that are down and on their way back
    returning: set[asyncio.Task[None]] = field(default_factory=set)
    hosts: list[Host] = field(default_factory=list)
    relays: list[Relay] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)

    def address(self, port: int) -> str:
        """Of the server, or the relay, at a port."""
        return f"http://{LOOPBACK}:{port}"

    async def serve(self, port: int) -> None:
        """Start a server and wait until it answers."""
        process = command("serve", "--port", str(port), "--json", url=self.url, stderr=subprocess.DEVNULL)
        self.servers[port] = process
        assert process.stdout is not None
        if not await asyncio.to_thread(process.stdout.readline):
            raise SystemExit(f"a server ended with {process.wait()} before it could serve")

    def _workers(self, *words: str) -> subprocess.Popen[str]:
        target = f"{Path(__file__).with_name('soak.py')}:mixed"
        own = {EFFECTS: str(self.effects)}
        return command(
            "worker", target, *words, url=self.url, key=self.keys["worker"], env=own, stderr=subprocess.DEVNULL
        )

    # ---- the load

    async def load(self) -> None:
        """Start runs evenly over the time that the kills take, each at a server that answers."""
        began, every = time.monotonic(), self.options.kills * self.options.pause / 2 / self.options.runs
        async with contextlib.AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(self.address(port), self.keys["admin"], pauses=()))
                for port in self.ports
            ]
            for number in range(self.options.runs):
                await asyncio.sleep(began + number * every - time.monotonic())
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

    # ---- the faults

    async def kill(self) -> None:
        """Kill a random process again and again; the other faults end with it."""
        others = [asyncio.create_task(one) for one in (self.cut(), self.freeze(), self.machine.watch())]
        try:
            while self.kills < self.options.kills:
                await asyncio.sleep(self.chance.uniform(0.02, self.options.pause))
                while not self._kill_one():
                    await asyncio.sleep(0.02)
                self.kills += 1
                for task in [*others, *self.returning]:
                    if task.done():
                        task.result()  # raises what went wrong there
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            self.returning -= {task for task in self.returning if task.done()}

    def _kill_one(self) -> bool:
        """Whether there was anybody who could be killed."""
        self.returning = {task for task in self.returning if not task.done()}
        victims: list[int | tuple[Host, int]] = [] if self.returning else [*self.ports]
        workers = [(host, pid) for host in self.hosts for pid in sorted(host.healthy)]
        victims += workers if len(workers) > 1 else []
        if not victims:
            return False
        victim = self.chance.choice(victims)
        if isinstance(victim, int):
            self.faults.servers.append(time.time())
            self.servers[victim].send_signal(signal.SIGKILL)
            self.servers[victim].communicate()
            self.returning.add(asyncio.create_task(self.serve(victim)))
        else:
            host, pid = victim
            self.faults.add(Fault(KILLED, {pid}, time.time(), time.time()))
            host.kill(pid)
        return True

    async def cut(self) -> None:
        """Cut the relay off again and again, for long and for short."""
        host = self.hosts[-1]
        try:
            while True:
                for relay in self.relays:
                    relay.delay_s = partial(self.chance.uniform, 0, self.chance.choice(DELAYS_S))
                await self._ready(host)
                while self.faults.servers and time.time() - self.faults.servers[-1] < BACK_S:
                    await asyncio.sleep(0.02)
                fault = self.faults.add(Fault(CUT, set(host.ready), time.time()))
                host.away = True
                for relay in self.relays:
                    relay.cut()
                await asyncio.sleep(self.chance.uniform(*(LONG_S if self.chance.random() < 0.7 else SHORT_S)))
                await self._restore()
                fault.until = time.time()
        finally:
            await self._restore()

    async def _restore(self) -> None:
        if self.hosts[-1].away:
            for relay in self.relays:
                await relay.up()
            self.hosts[-1].away = False

    async def freeze(self) -> None:
        """Freeze a host again and again, until its leases have run out."""
        host = self.hosts[1]
        try:
            while True:
                await self._ready(host)
                fault = self.faults.add(Fault(FROZEN, (), time.time()))
                fault.pids = host.freeze()
                await asyncio.sleep(FROZEN_S)
                host.thaw()
                fault.until = time.time()
        finally:
            if host.away:
                host.thaw()

    async def _ready(self, host: Host) -> None:
        """Wait until it has worked for a while."""
        await asyncio.sleep(self.chance.uniform(*BETWEEN_S))
        while len(host.ready) < host.processes:
            await asyncio.sleep(0.02)

    # ---- the whole of it

    async def execute(self) -> None:
        """Load, faults, and the wait for the end."""
        self.ports = [_free_port() for _ in range(SERVERS)]
        await asyncio.gather(*(self.serve(port) for port in self.ports))
        self.relays = [Relay(self.address(port)) for port in self.ports]
        for relay in self.relays:
            await relay.up()
        ways = [self.ports, self.ports, [relay.port for relay in self.relays]]
        for processes, ports in zip(PROCESSES, ways, strict=True):
            self.hosts.append(Host([self.address(port) for port in ports], processes, self._workers))
        while any(len(host.ready) < host.processes for host in self.hosts):
            await asyncio.sleep(0.02)
        work: tuple[Coroutine[Any, Any, None], ...] = (self.load(), self.kill(), self.watch())
        tasks = [asyncio.create_task(one) for one in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, *self.returning, return_exceptions=True)
            await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        for host in self.hosts:
            host.ask_to_leave()
        for host in self.hosts:
            host.end()
        for server in self.servers.values():
            server.kill()
            server.communicate()

    async def takeovers(self) -> Takeovers:
        """How long it took to go on elsewhere."""
        effects: dict[str, list[Any]] = defaultdict(list)
        for line in self.effects.read_text().splitlines():
            effect = json.loads(line)
            effects[effect[0]].append(effect)
        found, workers = Takeovers(self.machine.pressure), set().union(*(host.workers for host in self.hosts))
        for run_id in self.runs:
            run = Run(await self.engine.store.journal(run_id), effects[run_id])
            measure(found, run, self.faults, workers)
        return found


async def on_cluster(folder: Path, options: argparse.Namespace) -> int:
    """One soak of a cluster; returns how much was wrong."""
    folder.chmod(0o755)  # the database may run as another user
    machine = Machine()
    with PostgresServer(folder / "data", fsync=True) as server:
        url = server.create_database("soak")
        async with ironflow.open(url, workflows=[mixed], worker=False) as engine:
            effects = folder / "effects"
            effects.touch()
            if (this := asyncio.current_task()) is not None:  # nobody is to be left behind, least of all frozen
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)
            started = time.monotonic()
            test = Cluster(url, effects, options, random.Random(options.seed), engine, machine=machine)
            test.keys = {kind: _key(url, *words) for kind, words in _KEYS.items()}
            await test.execute()
            seconds = time.monotonic() - started
            wrong = await test.wrong()
            print(f"cluster, seed {options.seed}: {await test.summary()}, {seconds:.0f} s")
            wrong += (await test.takeovers()).report(test.faults)
    print(f"  {machine.told()}")
    for message in wrong[:20]:
        print(f"  WRONG {message}")
    return len(wrong)


_KEYS = {"admin": ("soak", "--role", "admin"), "worker": ("soak", "--worker")}


def _key(url: str, *words: str) -> str:
    made = command("apikey", "create", *words, "--json", url=url, stderr=None)
    out, _ = made.communicate()
    return str(json.loads(out)["key"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
