"""The floor of a takeover: two processes, a lock, a bare connection.

    python bench/bare_takeover.py hold          reads the path of a lock from standard input, takes it, holds it
    python bench/bare_takeover.py take URL      reads such paths; waits for each lock, does the two commits of a
                                                takeover, prints the monotonic clock

A process that is killed loses its POSIX locks in the kernel, and whoever waits for one is woken: there is no faster
way to learn of a death. The two commits are the recovery and the activation of one run.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def hold() -> None:
    """Take a lock and keep it until killed."""
    with Path(input()).open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        print("held", flush=True)
        sys.stdin.read()


async def take(url: str) -> None:
    """Take over what the holder of each lock had, as soon as it is dead."""
    from bench.floor import open_floor, timed
    from bench.script import Script, new_ids
    from ironflow.model.journal import Event
    from ironflow.model.run import RunRow

    # The row and journal of one run of the measured workflow, as the parent read them from the engine.
    row, events = json.loads(input())
    script = Script(RunRow(**row), [Event(*event) for event in events])
    bare = await open_floor(url)
    for line in sys.stdin:
        run_ids = new_ids(1)
        await (await bare.ready(script.begin(run_ids)))()
        commits = [await bare.ready(script.recover(run_ids)), await bare.ready(script.take_again(run_ids))]
        print("waiting", flush=True)
        with Path(line.strip()).open("w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            await timed(commits)
            print(time.monotonic_ns(), flush=True)
    await bare.close()


if __name__ == "__main__":
    if sys.argv[1] == "hold":
        hold()
    else:
        asyncio.run(take(sys.argv[2]))
