"""W5: timers. `p95`: 5 000 sleeping runs become due over ten seconds; from the due time to the body's first line.

`herd`: 10 000 runs become due in the same millisecond; seconds until all have ended, on 100 slots. `herd_other`:
somebody starts an unrelated run in the middle of that; milliseconds until its body starts, because a herd that
blocks everybody else would be no feat.

The floor of `p95` waits for the same due times and does the one commit that takes the run; the floor of `herd` does
the two commits of each hundred runs. Dues are milliseconds of the host's clock, which is the database's clock here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import ironflow
from bench import workflows
from bench.driving import completed, drained, side_by_side
from bench.floor import Floor, open_floor, timed
from bench.measure import Figures, Row, Scale, interleaved, note, percentile, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.workflows import ALL, sleeper, sprinter

TIMERS = 5_000
PER_SECOND = 500
FLOOR_TIMERS = 1_000
HERD = 10_000
SLOTS = 100
#: The run whose rows the floor copies must really suspend, so its due time is seconds away.
RECORDED_SLEEP = 3.0
#: The stranger starts so many seconds after the herd.
STRANGER_AFTER = 0.3
#: Between the last start and the first due time there is at least this, in seconds.
HEAD_START = 1.0


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    script = await Script.recorded(place, sleeper, time.time() + RECORDED_SLEEP)
    if len(script.groups) != 3:
        raise RuntimeError(f"the recorded run did not sleep: {script.groups}; this machine is too busy to measure on")
    timers, herd = scale.of(TIMERS, 200), scale.whole(HERD, 500)

    async def floor(url: str) -> Figures:
        bare = await open_floor(url)
        figures = {
            "p95": await _floor_p95(bare, script, min(timers, FLOOR_TIMERS)),
            "herd": await _floor_herd(bare, script, herd),
        }
        await bare.close()
        return figures

    async def engine(url: str) -> Figures:
        async with ironflow.open(url, workflows=ALL, concurrency=SLOTS) as opened:
            rate = await _creation_rate(opened, scale.of(1_000, 100))
            p95 = await _p95(opened, timers, rate)
            drained_s, other_ms = await _herd(opened, herd, rate)
        return {"p95": p95, "herd": drained_s, "herd_other": other_ms}

    units = {"p95": "ms", "herd": "s", "herd_other": "ms"}
    return rows("W5", place.store, units, *await interleaved(place, scale, floor, engine))


# ---- the engine


@contextmanager
def _told(tell: Callable[[str, float], None]) -> Iterator[None]:
    workflows.on_start.append(tell)
    try:
        yield
    finally:
        workflows.on_start.remove(tell)


async def _creation_rate(engine: ironflow.Engine, count: int) -> float:
    """Sleeping runs per second that this machine creates now: tells how far ahead the first due time must lie."""
    started = time.perf_counter()
    await _sleepers(engine, [time.time() + 3_600] * count)
    return count / (time.perf_counter() - started)


async def _sleepers(engine: ironflow.Engine, dues: list[float]) -> dict[str, float]:
    """Start a sleeping run for each due time. Returns run_id -> due for those created in time."""
    due_of: dict[str, float] = {}
    late = 0

    async def start(due: float) -> None:
        nonlocal late
        run = await engine.start(sleeper, due)
        if time.time() < due:
            due_of[run.id] = due
        else:
            late += 1

    await side_by_side(start, dues)
    if late:
        note(f"  {late} of {len(dues)} timers were due before they were created; they are not counted")
    return due_of


async def _p95(engine: ironflow.Engine, count: int, rate: float) -> float:
    first = time.time() + HEAD_START + 1.5 * count / rate
    dues = [round(first + number / PER_SECOND, 3) for number in range(count)]
    started_at: dict[str, float] = {}
    with _told(started_at.__setitem__):
        due_of = await _sleepers(engine, dues)
        while len(started_at) < count:
            await asyncio.sleep(0.05)
    return percentile([started_at[run_id] - due for run_id, due in due_of.items()], 0.95) * 1e3


async def _herd(engine: ironflow.Engine, count: int, rate: float) -> tuple[float, float]:
    due = round(time.time() + HEAD_START + 1.5 * count / rate, 3)
    before = await completed(engine)
    started_at: dict[str, float] = {}
    with _told(started_at.__setitem__):
        await _sleepers(engine, [due] * count)
        await asyncio.sleep(max(0.0, due + STRANGER_AFTER * count / HERD - time.time()))
        asked = time.time()
        stranger = await engine.start(sprinter)
        # Not `result()`: that looks into the database, and this run's start is all that is asked for.
        await drained(engine, before + count + 1)
    return time.time() - due, (started_at[stranger.id] - asked) * 1e3


# ---- the floor


async def _floor_p95(bare: Floor, script: Script, count: int) -> float:
    run_ids = new_ids(count)
    await (await bare.ready(script.begin_asleep(run_ids, [0] * count)))()
    commits = [await bare.ready(script.wake([run_id], 1)) for run_id in run_ids]
    first = time.time() + 0.1
    late = []
    for number, commit in enumerate(commits):
        due = first + number / PER_SECOND
        await asyncio.sleep(max(0.0, due - time.time()))
        await commit()
        late.append(time.time() - due)
    return percentile(late, 0.95) * 1e3


async def _floor_herd(bare: Floor, script: Script, count: int) -> float:
    run_ids = new_ids(count)
    groups = [run_ids[i : i + SLOTS] for i in range(0, count, SLOTS)]
    await timed([await bare.ready(script.begin_asleep(group, [0] * len(group))) for group in groups])
    commits = [await bare.ready(writes) for group in groups for writes in (script.wake(group, 1), script.finish(group))]
    return await timed(commits)
