"""W4: starts accepted per second, without executing: what a web process that only hands work over can do.

`serial`: one caller; each start is durable before the next is asked for. `x64`: 64 callers at once, whose starts
share commits. The floor creates the same rows (run, first event, place in the queue), one by one and 64 at a time.

`paced` is `serial` beside a floor that pauses before each commit, see `bench.floor.paced`. It has no target.
"""

from __future__ import annotations

from time import perf_counter

import ironflow
from bench.driving import side_by_side
from bench.floor import Ready, open_floor, paced, timed
from bench.measure import Figures, Row, Scale, interleaved, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, chain

SERIAL = 2_000
TOGETHER = 16_000
CALLERS = 64


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, chain, 1)
    serial, together = scale.of(SERIAL, 100), scale.of(TOGETHER, 640)

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)

        async def alone() -> list[Ready]:
            return [await bare.ready(script.create([run_id])) for run_id in new_ids(serial)]

        ids = new_ids(together)
        groups = [await bare.ready(script.create(ids[i : i + CALLERS])) for i in range(0, together, CALLERS)]
        figures = {
            "serial": serial / await timed(await alone()),
            "x64": together / await timed(groups),
            "paced": serial / await paced(await alone()),
        }
        await bare.close()
        return figures

    async def engine(url: str) -> Figures:
        async with ironflow.open(url, workflows=ALL, worker=False) as opened:
            await _starts(opened, serial // 10, 1)
            alone = await _starts(opened, serial, 1)
            return {"serial": alone, "x64": await _starts(opened, together, CALLERS), "paced": alone}

    units = {"serial": "starts/s", "paced": "starts/s", "x64": "starts/s"}
    return rows("W4", place.store, units, *await interleaved(place, scale, floor, engine))


async def _starts(engine: ironflow.Engine, total: int, callers: int) -> float:
    async def start(_: int) -> None:
        await engine.start(chain, 1)

    started = perf_counter()
    await side_by_side(start, range(total), callers)
    return total / (perf_counter() - started)
