"""W7: memory of a worker process with 10 000 waiting runs, over the same process idle, in MB.

A waiting run is rows in the database. What stays in the process on purpose is bounded: the thousand instances it
keeps parked so that they need no replay, and the page cache of SQLite (64 MB at most), into which the
rows of the runs come. The floor is nothing at all.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path

from bench.measure import Figures, Row, Scale, medians, note
from bench.stores import Place

WAITING = 10_000


async def measure(place: Place, scale: Scale) -> list[Row]:
    """The row of this work on one store."""
    rounds: list[Figures] = []
    for number in range(1, scale.rounds + 1):
        rounds.append({"rss": await _growth(place, scale.whole(WAITING, 500))})
        note(f"  round {number}: {rounds[-1]['rss']:.1f} MB")
    return [Row("W7", place.store, "rss", medians(rounds)["rss"], "MB", 0.0, None)]


async def _growth(place: Place, count: int) -> float:
    url = await place.fresh()
    program = str(Path(__file__).resolve().parent / "waiting.py")
    process = await asyncio.create_subprocess_exec(sys.executable, program, url, str(count), stdout=PIPE)
    said, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the measured process ended with {process.returncode}")
    place.drop(url)
    return float(said)
