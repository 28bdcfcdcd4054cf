"""W6: kill -9 of a worker process in the middle of a step, to the first line of that step's body in another process.

Real processes with default settings: two workers; whichever executes the step is killed, and the time at which the
parent calls `kill` is compared with the time that the body on the other worker writes down (one monotonic clock).
A new worker takes the place of the dead one. `proof` is the 99th percentile: all on one host, where the death of a
process can be proven.

The floor is what the kernel and the disk need: a process blocked on a lock of the dead one wakes, and commits twice.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack
from pathlib import Path

import ironflow
from bench.holding import Listener, held
from bench.measure import Figures, Row, Scale, note, percentile, rows
from bench.script import Script
from bench.stores import Place
from bench.workflows import chain

HERE = Path(__file__).resolve().parent
#: Nothing that works takes so long, in seconds; the lease clock alone would be done by then.
PATIENCE = 40.0
#: Workers watch each other before the next kill, in seconds.
SETTLE = 0.2
UNITS = {"proof": "ms", "proof_p50": "ms", "proof_max": "ms"}


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, chain, 1)
    url, bare_url = await place.fresh(), await place.fresh()
    engine_ms, floor_ms = [], []
    async with AsyncExitStack() as stack:
        pair = await stack.enter_async_context(Pair(url, stack.enter_context(Listener())))
        bare = await stack.enter_async_context(Bare(bare_url, script))
        for number in range(1, scale.kills + 1):
            floor_ms.append(await bare.kill())
            engine_ms.append(await pair.kill())
            note(f"  kill {number}: floor {floor_ms[-1]:.2f}, engine {engine_ms[-1]:.2f} ms")
    place.drop(url)
    place.drop(bare_url)
    return rows("W6", place.store, UNITS, _figures(floor_ms), _figures(engine_ms))


def _figures(ms: list[float]) -> Figures:
    return {"proof": percentile(ms, 0.99), "proof_p50": percentile(ms, 0.5), "proof_max": max(ms)}


async def _child(*words: str) -> Process:
    return await asyncio.create_subprocess_exec(sys.executable, *words, stdin=PIPE, stdout=PIPE, cwd=HERE.parent)


async def _line(process: Process) -> str:
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    if not line:
        raise RuntimeError(f"a process of the bench ended with {await process.wait()} before it answered")
    return line.decode().strip()


def _tell(process: Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()
    if process.stdin is not None:
        process.stdin.close()


class Pair:
    """Two workers on one database, and a client that starts runs for them."""

    def __init__(self, url: str, bodies: Listener) -> None:
        self._url = url
        self._bodies = bodies
        self._workers: dict[int, Process] = {}

    async def __aenter__(self) -> Pair:
        self._client = ironflow.open(self._url, workflows=[held], worker=False)
        await self._client.__aenter__()
        for _ in range(2):
            await self._spawn()
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self._workers.values():
            await _end(process)
        await self._client.close()

    async def _spawn(self) -> None:
        process = await _child(str(HERE / "holding.py"), self._url, self._bodies.address)
        self._workers[process.pid] = process
        assert await _line(process) == "ready"

    async def kill(self) -> float:
        """One run, one kill; milliseconds from the kill to the body on the other worker."""
        await asyncio.sleep(SETTLE)
        run = await self._client.start(held)
        victim = (await self._bodies.of(run.id, PATIENCE)).pid
        await asyncio.sleep(random.uniform(0.005, 0.05))  # not always at the same place of a heartbeat
        process = self._workers.pop(victim)
        killed = time.monotonic_ns()
        os.kill(victim, signal.SIGKILL)
        survivor = await self._bodies.of(run.id, PATIENCE)
        assert survivor.pid != victim
        await run.result(timeout=PATIENCE)
        await _end(process)
        await self._spawn()
        return (survivor.at_ns - killed) / 1e6


class Bare:
    """The same with a lock and a bare connection: see `bare_takeover`."""

    def __init__(self, url: str, script: Script) -> None:
        self._url = url
        self._script = script

    async def __aenter__(self) -> Bare:
        self._folder = tempfile.TemporaryDirectory(prefix="ironflow-bench-")
        self._taker = await _child(str(HERE / "bare_takeover.py"), "take", self._url)
        row = dataclasses.asdict(self._script.row)
        events = [
            (event.seq, event.kind, event.step_id, event.payload, event.execution_seq, event.at)
            for group in self._script.groups
            for event in group
        ]
        _tell(self._taker, json.dumps([row, events]))
        return self

    async def __aexit__(self, *_: object) -> None:
        await _end(self._taker)
        self._folder.cleanup()

    async def kill(self) -> float:
        """One kill; milliseconds from it to the second commit of the other process."""
        path = f"{self._folder.name}/lock"
        holder = await _child(str(HERE / "bare_takeover.py"), "hold")
        _tell(holder, path)
        assert await _line(holder) == "held"
        _tell(self._taker, path)
        assert await _line(self._taker) == "waiting"
        await asyncio.sleep(SETTLE)  # until it is blocked in the kernel
        killed = time.monotonic_ns()
        os.kill(holder.pid, signal.SIGKILL)
        done = int(await _line(self._taker))
        await _end(holder)
        return (done - killed) / 1e6
