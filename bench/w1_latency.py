"""W1: one run of one step, sequentially: from the call of `engine.run` to its result.

The floor is the two commits that such a run needs: creation with the step's start, and the step's end with the
run's. Nobody who promises that a finished step is durable can do it in fewer than the second.

`paced` is the same p50 beside a floor that pauses before each commit, see `bench.floor.paced`. It has no target.
"""

from __future__ import annotations

from time import perf_counter

import ironflow
from bench.floor import Clock, each_timed, open_floor, paced, timed
from bench.measure import Figures, Row, Scale, interleaved, percentile, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, chain

UNITS = {"p50": "ms", "p95": "ms", "paced": "ms"}
WARM_UP = 100
RUNS = 1_000


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, chain, 1)
    runs, warm_up = scale.of(RUNS, 20), scale.of(WARM_UP, 5)

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)

        async def pairs(clock: Clock) -> dict[str, float]:
            ids = new_ids(warm_up + runs)
            commits = [await bare.ready(writes) for run_id in ids for writes in script.whole([run_id])]
            seconds = await each_timed(commits, clock)
            return _figures([sum(seconds[i : i + 2]) for i in range(0, len(seconds), 2)][warm_up:])

        figures = await pairs(timed)
        after_pauses = await pairs(paced)
        await bare.close()
        return {**figures, "paced": after_pauses["p50"]}

    async def engine(url: str) -> Figures:
        seconds = []
        async with ironflow.open(url, workflows=ALL) as opened:
            for _ in range(warm_up + runs):
                started = perf_counter()
                await opened.run(chain, 1)
                seconds.append(perf_counter() - started)
        figures = _figures(seconds[warm_up:])
        return {**figures, "paced": figures["p50"]}

    return rows("W1", place.store, UNITS, *await interleaved(place, scale, floor, engine))


def _figures(seconds: list[float]) -> dict[str, float]:
    return {"p50": percentile(seconds, 0.5) * 1e3, "p95": percentile(seconds, 0.95) * 1e3}
