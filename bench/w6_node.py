"""W6, `http_node`: kill -9 of a node while runs execute, to the next step of the last of them through the other node.

PostgreSQL only: two nodes on one database, worker processes that know both, and runs under way that take one short
step (20 ms) after the other. The workers all speak to one of the nodes, and that one is killed; it is started again at
its address, and then it is the other's turn.

A run has gone on once a body of it begins whose predecessor began after the kill: the end of that predecessor can only
have been written through the survivor. Its 20 ms are in the figure, which is in ms: of the slowest run of each kill,
the 99th percentile over the kills. Every run must end well, and no body may be executed twice. It has no floor, and no
target.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from urllib.parse import urlsplit

from bench.cluster import Process, Workers, make_key
from bench.holding import SOCKET, Begun, Listener, walk
from bench.measure import Row, Scale, note, percentile
from bench.stores import POSTGRES, Place
from bench.w6_takeover import PATIENCE, SETTLE
from ironflow.client import Client
from ironflow.model.key import ADMIN, ORG, WORKER

TARGET = "bench.holding:walk"
#: Worker processes; runs under way, and steps of each: some seconds' worth, so that none ends before it has gone on.
PROCESSES, RUNS, STEPS = 2, 16, 100
#: Steps of each run before the kill.
UNDER_WAY = 3


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work; none on SQLite, which several hosts cannot share."""
    if place.store != POSTGRES:
        return []
    url = await place.fresh()
    slowest = []
    async with nodes(url) as pair:
        for number in range(1, scale.kills + 1):
            took = await pair.kill()
            slowest.append(took[-1])
            note(f"  node {number}: the first run went on after {took[0]:.1f} ms, the last after {took[-1]:.1f}")
    place.drop(url)
    figures = {"": percentile(slowest, 0.99), "_p50": percentile(slowest, 0.5), "_max": max(slowest)}
    return [Row("W6", place.store, f"http_node{name}", value, "ms", None, None) for name, value in figures.items()]


class Pair:
    """Two nodes, of which the workers use one, and the socket on which their steps tell."""

    def __init__(self, url: str, used: Process, other: Process, key: str, bodies: Listener) -> None:
        self._url = url
        self._used, self._other = used, other
        self._key = key
        self._bodies = bodies
        self._stack = AsyncExitStack()

    async def close(self) -> None:
        """End the nodes that were started here."""
        await self._stack.aclose()

    async def kill(self) -> list[float]:
        """One kill; milliseconds from it until each run had gone on, in order."""
        begun: list[Begun] = []
        listening = asyncio.create_task(self._listen(begun))
        try:
            async with Client(self._other.told["url"], self._key) as client, asyncio.timeout(PATIENCE):
                runs = [await client.start(walk, STEPS) for _ in range(RUNS)]
                while min(Counter(one.run_id for one in begun)[run.id] for run in runs) < UNDER_WAY:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(random.uniform(0, 0.05))
                killed = await self._used.kill()
                outputs = await asyncio.gather(*(run.result() for run in runs))
            await asyncio.sleep(SETTLE)  # for what was told last
        finally:
            listening.cancel()
        if outputs != [STEPS] * RUNS or set(Counter(one.run_id for one in begun).values()) != {STEPS}:
            raise RuntimeError("the death of a node had a step executed twice, or not at all")
        await self._replace()
        return sorted(_gone_on([one for one in begun if one.run_id == run.id], killed) for run in runs)

    async def _listen(self, begun: list[Begun]) -> None:
        while True:
            begun.append(await self._bodies.next())

    async def _replace(self) -> None:
        """Start the dead node again at its address; the other one is in use from now on."""
        port = urlsplit(self._used.told["url"]).port
        again = await self._stack.enter_async_context(Process(self._url, "serve", "--port", str(port)))
        self._used, self._other = self._other, again


def _gone_on(begun: list[Begun], killed: int) -> float:
    _, second, *_ = sorted(one.at_ns for one in begun if one.at_ns > killed)
    return (second - killed) / 1e6


@asynccontextmanager
async def nodes(url: str) -> AsyncIterator[Pair]:
    """Two nodes, and workers that know both."""
    worker_key, client_key = await make_key(url, WORKER), await make_key(url, ORG, ADMIN)
    async with AsyncExitStack() as stack:
        bodies = stack.enter_context(Listener())
        used, other = [await stack.enter_async_context(Process(url, "serve", "--port", "0")) for _ in range(2)]
        servers, settings = [node.told["url"] for node in (used, other)], {SOCKET: bodies.address}
        pair = Pair(url, used, other, client_key, bodies)
        stack.push_async_callback(pair.close)
        await stack.enter_async_context(Workers(url, TARGET, servers, worker_key, count=PROCESSES, settings=settings))
        yield pair
