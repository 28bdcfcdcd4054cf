"""W1: one run of one step, sequentially: from the call of `engine.run` to its result.

The floor is the two commits that such a run needs: creation with the step's start, and the step's end with the
run's. Nobody who promises that a finished step is durable can do it in fewer than the second.
"""

from __future__ import annotations

from time import perf_counter

import ironflow
from bench.floor import each_timed, open_floor
from bench.measure import Figures, Row, Scale, interleaved, percentile, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, chain

UNITS = {"p50": "ms", "p95": "ms"}
WARM_UP = 100
RUNS = 1_000


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, chain, 1)
    runs, warm_up = scale.of(RUNS, 20), scale.of(WARM_UP, 5)

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)
        commits = [await bare.ready(writes) for run_id in new_ids(warm_up + runs) for writes in script.whole([run_id])]
        seconds = await each_timed(commits)
        await bare.close()
        pairs = [sum(seconds[i : i + 2]) for i in range(0, len(seconds), 2)]
        return _figures(pairs[warm_up:])

    async def engine(url: str) -> Figures:
        seconds = []
        async with ironflow.open(url, workflows=ALL) as opened:
            for _ in range(warm_up + runs):
                started = perf_counter()
                await opened.run(chain, 1)
                seconds.append(perf_counter() - started)
        return _figures(seconds[warm_up:])

    return rows("W1", place.store, UNITS, *await interleaved(place, scale, floor, engine))


def _figures(seconds: list[float]) -> Figures:
    return {"p50": percentile(seconds, 0.5) * 1e3, "p95": percentile(seconds, 0.95) * 1e3}
