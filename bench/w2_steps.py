"""W2: one run of 100 sequential steps, in steps per second: the speed of a single run.

Nothing can be gathered here: each step must be durable before the next begins. The floor is 100 commits, each with
the end of one step and the start of the next.

`paced` is `steps` beside a floor that pauses before each commit, see `bench.floor.paced`. It has no target.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import ironflow
from bench.floor import open_floor, paced, timed
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
        figures = {}
        for variant, clock in (("steps", timed), ("paced", paced)):
            rates = []
            for run_id in new_ids(runs):
                first, *rest = [await bare.ready(writes) for writes in script.whole([run_id])]
                await first()
                rates.append(len(rest) / await clock(rest))
            figures[variant] = statistics.median(rates[1:])
        await bare.close()
        return figures

    async def engine(url: str) -> Figures:
        rates = []
        async with ironflow.open(url, workflows=ALL) as opened:
            for _ in range(runs):
                started = perf_counter()
                await opened.run(chain, STEPS)
                rates.append(STEPS / (perf_counter() - started))
        rate = statistics.median(rates[1:])
        return {"steps": rate, "paced": rate}

    units = {"steps": "steps/s", "paced": "steps/s"}
    return rows("W2", place.store, units, *await interleaved(place, scale, floor, engine))
