"""A worker process that measures its own memory: idle after some work, and with sleeping runs.

python bench/waiting.py URL RUNS        prints the growth in MB
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ironflow
from bench.driving import side_by_side
from bench.workflows import ALL, chain, sleeper

#: Runs executed before: caches, threads and the allocator's arenas of a worker at work belong to idle.
WARM_UP = 2_000
HOUR_S = 3_600
#: What was queued behind full slots has long gone to sleep by then.
PATIENCE_S = 60


def resident_mb() -> float:
    """Memory of this process that is in RAM, after a collection, in MB (10^6 bytes)."""
    for _ in range(3):
        gc.collect()
    pages = Path("/proc/self/statm")
    if pages.exists():
        return int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    shown = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True)
    return int(shown.stdout) * 1024 / 1e6


async def main(url: str, count: int) -> float:
    """How much larger this process is with so many sleeping runs."""
    async with ironflow.open(url, workflows=ALL) as engine:

        async def sleep(due: float) -> None:
            await engine.start(sleeper, due)

        async def work(length: int) -> None:
            await engine.run(chain, length)

        await side_by_side(work, [5] * WARM_UP)
        await asyncio.sleep(1)
        idle = resident_mb()
        await side_by_side(sleep, [time.time() + HOUR_S] * count)
        async with asyncio.timeout(PATIENCE_S):
            while (await engine.store.counts()).get("sleeping", 0) < count:
                await asyncio.sleep(0.1)
        await asyncio.sleep(1)
        return resident_mb() - idle


if __name__ == "__main__":
    print(asyncio.run(main(sys.argv[1], int(sys.argv[2]))), flush=True)
