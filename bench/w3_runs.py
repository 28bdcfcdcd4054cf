"""W3: 1 000 runs of five steps, executed by one worker process, in runs per second.

`queue`: 64 callers put runs into the queue while the worker takes them out, 100 slots. `direct`: 100 callers start
runs and wait for each; a free slot takes a run without the queue. `queue16` and `direct16`: the same with 16 slots,
since a figure without its concurrency says little. Callers and worker share one process and one core.

The floor writes the rows of the runs in groups of as many as there are slots: six commits for each group. The rows
that the queue itself needs are not in it; they are the engine's expense.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import ironflow
from bench.driving import completed, drained, side_by_side
from bench.floor import open_floor, timed
from bench.measure import Figures, Row, Scale, interleaved, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, chain

STEPS = 5
RUNS = 1_000
CREATORS = 64
SLOTS = {"": 100, "16": 16}


class QueueingEngine(ironflow.Engine):
    """An engine that uses the queue even where a slot of its own is free."""

    async def _start_here(self, *_: Any) -> str | None:
        return None


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, chain, STEPS)
    total = scale.of(RUNS, 100)
    made = []
    for suffix, slots in SLOTS.items():
        made += await _at(place, scale, script, total, suffix, slots)
    return made


async def _at(place: Place, scale: Scale, script: Script, total: int, suffix: str, slots: int) -> list[Row]:
    queue, direct = f"queue{suffix}", f"direct{suffix}"

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)
        ids = new_ids(total)
        groups = [script.whole(ids[i : i + slots]) for i in range(0, total, slots)]
        rate = total / await timed([await bare.ready(writes) for group in groups for writes in group])
        await bare.close()
        return {queue: rate, direct: rate}

    async def engine(url: str) -> Figures:
        async with QueueingEngine(url, workflows=ALL, concurrency=slots) as opened:
            await _direct(opened, total // 10, slots)
            through_queue = await _queue(opened, total)
        async with ironflow.open(url, workflows=ALL, concurrency=slots) as opened:
            await _direct(opened, total // 10, slots)
            return {queue: through_queue, direct: await _direct(opened, total, slots)}

    return rows("W3", place.store, {queue: "runs/s", direct: "runs/s"}, *await interleaved(place, scale, floor, engine))


async def _direct(engine: ironflow.Engine, total: int, callers: int) -> float:
    """Every caller starts a run, waits for its output, starts the next."""

    async def run(_: int) -> None:
        assert await engine.run(chain, STEPS) == STEPS

    started = perf_counter()
    await side_by_side(run, range(total), callers)
    return total / (perf_counter() - started)


async def _queue(engine: ironflow.Engine, total: int) -> float:
    """Creators only create; the clock stops when the last run has ended."""

    async def create(_: int) -> None:
        await engine.start(chain, STEPS)

    ended = total + await completed(engine)
    started = perf_counter()
    await side_by_side(create, range(total), CREATORS)
    await drained(engine, ended)
    return total / (perf_counter() - started)
