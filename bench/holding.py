"""A worker as a process of its own, whose step tells that it runs and then holds still until it is killed.

    python bench/holding.py URL SOCKET

The body sends one datagram: run id, process id, and the monotonic clock, which all processes of a host share. In
the run's first segment it then waits for ever; in a later one it returns. The parent listens, kills, listens again.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ironflow
from bench.workflows import add_one
from ironflow import Context

_sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)


@ironflow.step
async def hold() -> None:
    """The body that is killed."""
    info = ironflow.step_info()
    _sender.send(f"{info.run_id} {os.getpid()} {time.monotonic_ns()}".encode())
    if info.fence == 1:
        await asyncio.get_running_loop().create_future()


@ironflow.workflow
async def held(ctx: Context) -> None:
    """One finished step, so that there is something to replay, and the one that is killed."""
    await add_one(0)
    await hold()


async def main(url: str, address: str) -> None:
    """Work until killed, or until standard input ends because the parent has died."""
    _sender.connect(address)
    async with ironflow.open(url, workflows=[held]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
