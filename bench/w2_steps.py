"""W2: one run of 100 sequential steps, in steps per second: the speed of a single run.

Nothing can be gathered here: each step must be durable before the next begins. The floor is 100 commits, each with
the end of one step and the start of the next.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import ironflow
from bench.floor import open_floor, timed
from bench.measure import Figures, Row, Scale, interleaved, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, chain

STEPS = 100
RUNS = 20


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The row of this work on one store."""
    script = await Script.recorded(place, chain, STEPS)
    runs = scale.of(RUNS, 3)

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)
        rates = []
        for run_id in new_ids(runs):
            first, *rest = [await bare.ready(writes) for writes in script.whole([run_id])]
            await first()
            rates.append(len(rest) / await timed(rest))
        await bare.close()
        return {"steps": statistics.median(rates[1:])}

    async def engine(url: str) -> Figures:
        rates = []
        async with ironflow.open(url, workflows=ALL) as opened:
            for _ in range(runs):
                started = perf_counter()
                await opened.run(chain, STEPS)
                rates.append(STEPS / (perf_counter() - started))
        return {"steps": statistics.median(rates[1:])}

    return rows("W2", place.store, {"steps": "steps/s"}, *await interleaved(place, scale, floor, engine))
