"""W8: W3 through a server: 1 000 runs of five steps, created over HTTP and executed by one pull worker.

`queue`, in runs per second: 64 callers create runs at the server while the worker takes them, 100 slots; the clock
stops when the last run has ended. Server, worker and callers are three processes on the same two cores.

`poll` is how soon an idle worker's held poll is answered, p99 in milliseconds: from the commit that creates a run to
the commit by which the worker takes it, as the journal has them, so one more request and a commit are in it.

The floor writes the rows of the runs in groups of as many as there are slots, as W3's does.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

import ironflow
from bench.cluster import cluster
from bench.driving import POLL_S, completed, side_by_side
from bench.floor import open_floor, timed
from bench.measure import Figures, Row, Scale, interleaved, percentile, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, chain, sprinter
from ironflow.model.journal import RUN_CREATED, RUN_STARTED

STEPS = 5
RUNS = 1_000
CREATORS = 64
SLOTS = 100
POLLS = 200
#: Runs that only warm up what a first run loads.
UNCOUNTED = 20


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, chain, STEPS)
    total, polls = scale.of(RUNS, 100), scale.of(POLLS, 100)

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)
        ids = new_ids(total)
        groups = [script.whole(ids[i : i + SLOTS]) for i in range(0, total, SLOTS)]
        rate = total / await timed([await bare.ready(writes) for group in groups for writes in group])
        await bare.close()
        return {"queue": rate}

    async def engine(url: str) -> Figures:
        async with cluster(url, slots=SLOTS) as client, ironflow.open(url, workflows=ALL, worker=False) as watcher:

            async def create(_: int) -> None:
                await client.start(chain, STEPS)

            rates = []
            for count in (total // 5, total):  # the first is to warm all three up
                ended = count + await completed(watcher)
                started = perf_counter()
                await side_by_side(create, range(count), CREATORS)
                while await completed(watcher) < ended:
                    await asyncio.sleep(POLL_S)
                rates.append(count / (perf_counter() - started))
            delays = []
            for _ in range(UNCOUNTED + polls):
                run = await client.start(sprinter)
                await run.result()
                at = {event.kind: event.at for event in await watcher.store.journal(run.id)}
                delays.append(float(at[RUN_STARTED] - at[RUN_CREATED]))
            return {"queue": rates[-1], "poll": percentile(delays[UNCOUNTED:], 0.99)}

    units = {"queue": "runs/s", "poll": "ms"}
    return rows("W8", place.store, units, *await interleaved(place, scale, floor, engine))
