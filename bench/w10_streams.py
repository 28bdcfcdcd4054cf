"""W10: 200 busy runs, each followed by a live reader (SSE); steps per second with them over the same without.

Server, worker, readers and bench are four processes on the same two cores. The workflow is held while the runs are
created and the readers connect, then it is let go; the clock stops when the last run has ended. The floor is the same
in the same round without readers.

Every reader must have received every event of its run exactly once and in order: what they read is compared with the
journals afterwards, and where it differs there is no figure. `late` is how long after its commit an event reached its
reader, 99th percentile in ms: readers that are left behind would cost nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import ironflow
from bench.cluster import cluster, make_key
from bench.driving import completed, side_by_side
from bench.measure import Figures, Row, Scale, interleaved, note, rows
from bench.reading import digest
from bench.stores import Place
from bench.workflows import ALL, chain
from ironflow.client import Client
from ironflow.model.key import ORG, VIEWER

READERS = 200
STEPS = 100
#: Steps of runs that only warm everything up.
WARM_UP = 5
#: Nothing that works takes so long, in seconds.
PATIENCE = 60.0
PROGRAM = Path(__file__).with_name("reading.py")


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    steps = scale.of(STEPS, 10)

    async def without(url: str) -> Figures:
        async with Busy.opened(url, READERS) as busy:
            await busy.alone(WARM_UP)
            return {"steps": await busy.alone(steps)}

    async def followed(url: str) -> Figures:
        async with Busy.opened(url, READERS) as busy:
            await busy.followed(WARM_UP)
            rate, late_ms = await busy.followed(steps)
            return {"steps": rate, "late": late_ms}

    units = {"steps": "steps/s", "late": "ms"}
    return rows("W10", place.store, units, *await interleaved(place, scale, without, followed))


class Busy:
    """A cluster and the runs that keep it busy."""

    def __init__(self, client: Client, watcher: ironflow.Engine, reader_key: str, runs: int) -> None:
        self._client = client
        self._watcher = watcher
        self._key = reader_key
        self._runs = runs

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, runs: int) -> AsyncIterator[Busy]:
        """A server, and a worker with a slot for each run."""
        key = await make_key(url, ORG, VIEWER)
        async with cluster(url, slots=runs) as client, ironflow.open(url, workflows=ALL, worker=False) as watcher:
            yield cls(client, watcher, key, runs)

    async def alone(self, length: int) -> float:
        """Steps per second of runs of so many steps."""
        await self._held(length)
        return await self._let_go(length)

    async def followed(self, length: int) -> tuple[float, float]:
        """The same with a reader of each run, and how late events reached them, in ms."""
        run_ids = await self._held(length)
        async with reading(self._client.server, self._key, run_ids) as process:
            rate = await self._let_go(length)
            found = await _line(process)
        if "wrong" in found:
            raise RuntimeError(found["wrong"])
        for run_id in run_ids:
            events = await self._watcher.store.journal(run_id)
            if found["digests"][run_id] != digest((event.seq, event.kind, event.step_id) for event in events):
                raise RuntimeError(f"the reader of run {run_id} was told something else than its journal holds")
        note(f"    readers: {found['cpu_s']:.2f} s of processor time")
        return rate, float(found["late_ms"])

    async def _held(self, length: int) -> list[str]:
        """Runs that are created and do not begin."""
        await self._client.pause_workflow(chain.name)
        run_ids: list[str] = []

        async def create(_: int) -> None:
            run_ids.append((await self._client.start(chain, length)).id)

        await side_by_side(create, range(self._runs))
        return run_ids

    async def _let_go(self, length: int) -> float:
        ended = self._runs + await completed(self._watcher)
        started = perf_counter()
        await self._client.resume_workflow(chain.name)
        async with asyncio.timeout(PATIENCE):
            while await completed(self._watcher) < ended:
                await asyncio.sleep(0.02)
        return self._runs * length / (perf_counter() - started)


@asynccontextmanager
async def reading(url: str, key: str, run_ids: list[str]) -> AsyncIterator[Process]:
    """The process of the readers; all of them are connected."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PROGRAM), url,
        stdin=PIPE, stdout=PIPE, limit=1 << 20, env={**os.environ, "IRONFLOW_API_KEY": key},
    )  # fmt: skip
    try:
        assert process.stdin is not None
        process.stdin.write(f"{json.dumps(run_ids)}\n".encode())
        await _line(process)
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        if process.stdin is not None:
            process.stdin.close()


async def _line(process: Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        line = await process.stdout.readline()
    if not line:
        raise RuntimeError(f"the process of the readers ended with {await process.wait()}")
    found: dict[str, Any] = json.loads(line)
    return found
