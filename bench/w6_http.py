"""W6 over HTTP: what executes a step dies, or is lost, to the first line of that step's body in another process.

`http_proof`: kill -9 of a worker process under `ironflow worker --processes 4`, whose supervisor sees the death and
reports it; default settings. In ms, 99th percentile, and beside it the floor of `w6_takeover`.

Where nobody can prove a death, clocks decide, and what is measured is how much longer than those it takes. Two hosts
with a worker each; the worst of a few samples, in seconds, with a `suspect_after` of 2 s and leases of 6 s:
`http_suspicion`: every connection of the host breaks, and it does not get through any more, though it lives.
`http_silence`: the host freezes. No connection breaks; it is only that nothing more is heard.

All on one host in truth, so that one monotonic clock serves them all: the bench tells it when it strikes, the body when
it begins.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from bench.cluster import Process, Workers, make_key
from bench.holding import SOCKET, Listener, held
from bench.measure import Figures, Row, Scale, note, percentile, rows
from bench.script import Script
from bench.stores import Place
from bench.w6_takeover import PATIENCE, SETTLE, Bare
from bench.workflows import chain
from ironflow.client import Client
from ironflow.model.key import ADMIN, ORG, WORKER
from ironflow.testing.relay import Relay

TARGET = "bench.holding:held"
#: Enough that each has lived for some seconds when its turn comes: a supervisor lets the successor of one that died
#: young wait.
PROCESSES = 4
#: Of what waits for clocks.
SAMPLES = 3
SUSPECT_AFTER_S, LEASE_TTL_S = 2.0, 6.0
#: What the settings allow at the most with that `suspect_after`.
RENEWAL_S = 0.9
CLOCKS = {
    "IRONFLOW_RENEWAL_INTERVAL": f"{RENEWAL_S * 1000:g}ms",
    "IRONFLOW_SUSPECT_AFTER": f"{SUSPECT_AFTER_S:g}s",
    "IRONFLOW_LEASE_TTL": f"{LEASE_TTL_S:g}s",
    "IRONFLOW_SESSION_TTL": f"{LEASE_TTL_S:g}s",
}


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    return [*await _proof(place, scale), *await _lost(place, scale)]


@dataclass(slots=True)
class Scene:
    """A server, a client of it, a key for workers, and where their bodies tell that they begin."""

    url: str
    server: str
    client: Client
    key: str
    bodies: Listener

    def workers(self, server: str, count: int) -> Workers:
        """Workers of the held step."""
        return Workers(self.url, TARGET, [server], self.key, count=count, settings={SOCKET: self.bodies.address})


@asynccontextmanager
async def scene(url: str, settings: Mapping[str, str] | None = None) -> AsyncIterator[Scene]:
    """A server with these settings."""
    worker_key, client_key = await make_key(url, WORKER), await make_key(url, ORG, ADMIN)
    async with Process(url, "serve", "--port", "0", settings=settings) as served:
        server = served.told["url"]
        async with Client(server, client_key) as client:
            with Listener() as bodies:
                yield Scene(url, server, client, worker_key, bodies)


# ---- proof


async def _proof(place: Place, scale: Scale) -> list[Row]:
    script = await Script.recorded(place, chain, 1)
    url, bare_url = await place.fresh(), await place.fresh()
    engine_ms, floor_ms = [], []
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(scene(url))
        workers = await stack.enter_async_context(here.workers(here.server, PROCESSES))
        bare = await stack.enter_async_context(Bare(bare_url, script))
        for number in range(1, scale.kills + 1):
            floor_ms.append(await bare.kill())
            engine_ms.append(await _kill(here, workers))
            note(f"  kill {number}: floor {floor_ms[-1]:.2f}, over HTTP {engine_ms[-1]:.2f} ms")
    place.drop(url)
    place.drop(bare_url)
    units = {"http_proof": "ms", "http_proof_p50": "ms", "http_proof_max": "ms"}
    return rows("W6", place.store, units, _figures("http_proof", floor_ms), _figures("http_proof", engine_ms))


def _figures(name: str, values: list[float]) -> Figures:
    return {name: percentile(values, 0.99), f"{name}_p50": percentile(values, 0.5), f"{name}_max": max(values)}


async def _kill(here: Scene, workers: Workers) -> float:
    """One run, one kill; milliseconds from it to the body in another process."""
    await workers.complete()
    await asyncio.sleep(SETTLE)
    run = await here.client.start(held)
    victim = await here.bodies.of(run.id, PATIENCE)
    await asyncio.sleep(random.uniform(0.005, 0.05))  # not always at the same place of a heartbeat
    killed = workers.kill_one(victim.pid)
    survivor = await here.bodies.of(run.id, PATIENCE)
    assert survivor.pid != victim.pid
    await run.result(timeout=PATIENCE)
    return (survivor.at_ns - killed) / 1e6


# ---- suspicion and silence


class Host:
    """A worker under its supervisor, and the network between them and the server. A context manager."""

    def __init__(self, here: Scene) -> None:
        self._here = here
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Host:
        async with AsyncExitStack() as stack:
            self.network = await stack.enter_async_context(Relay(self._here.server))
            self.workers = await stack.enter_async_context(self._here.workers(self.network.url, 1))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def cut(self) -> None:
        """It lives, and gets through to nobody."""
        self.network.cut()

    def freeze(self) -> None:
        """Nothing more is heard of it."""
        self.workers.freeze()


async def _lost(place: Place, scale: Scale) -> list[Row]:
    clocks = ", ".join(f"{name.removeprefix('IRONFLOW_').lower()} {value}" for name, value in CLOCKS.items())
    note(f"  clocks: {clocks}")
    url = await place.fresh()
    made = []
    async with scene(url, CLOCKS) as here:
        for variant, lose in (("http_suspicion", Host.cut), ("http_silence", Host.freeze)):
            seconds = []
            for number in range(1, min(scale.kills, SAMPLES) + 1):
                seconds.append(await _loss(here, lose))
                note(f"  {variant} {number}: {seconds[-1]:.2f} s")
            made.append(Row("W6", place.store, variant, max(seconds), "s", None, None))
    place.drop(url)
    return made


async def _loss(here: Scene, lose: Callable[[Host], None]) -> float:
    """One run, one host lost; seconds from that to the body on the other."""
    async with Host(here) as one, Host(here) as other:
        run = await here.client.start(held)
        victim = await here.bodies.of(run.id, PATIENCE)
        await asyncio.sleep(random.uniform(SETTLE, SETTLE + RENEWAL_S))  # at any place of a heartbeat
        host = one if victim.pid in one.workers.ready else other
        lost = time.monotonic_ns()
        lose(host)
        survivor = await here.bodies.of(run.id, PATIENCE)
        assert survivor.pid != victim.pid
        await run.result(timeout=PATIENCE)
        return (survivor.at_ns - lost) / 1e9
