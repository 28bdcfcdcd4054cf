"""Steps that tell when their bodies begin, and the worker process of W6 that executes one until it is killed.

    python bench/holding.py URL SOCKET

A body sends one datagram: run id, process id, and the monotonic clock, which all processes of a host share; the bench
listens. `held` tells and then, in the run's first segment, waits for ever; in a later one it returns. `walk` takes one
short step after the other. Workers over HTTP, which the command line starts, find the socket in the environment.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ironflow
from bench.workflows import add_one
from ironflow import Context

SOCKET = "BENCH_SOCKET"
#: How long a step of `walk` takes, in seconds: what it waits for is outside, so that many of them keep no core busy.
STEP_S = 0.02


@cache
def _sender() -> socket.socket:
    """Open as long as this process lives, once a body has begun here: the bench itself imports this module, too."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(os.environ[SOCKET])
    return sender


def _tell() -> ironflow.StepInfo:
    at, info = time.monotonic_ns(), ironflow.step_info()
    _sender().send(f"{info.run_id} {os.getpid()} {at}".encode())
    return info


@ironflow.step
async def hold() -> None:
    """The body that is killed."""
    if _tell().fence == 1:
        await asyncio.get_running_loop().create_future()


@ironflow.workflow
async def held(ctx: Context) -> None:
    """One finished step, so that there is something to replay, and the one that is killed."""
    await add_one(0)
    await hold()


@ironflow.step
async def pace(number: int) -> int:
    """One of many."""
    _tell()
    await asyncio.sleep(STEP_S)
    return number + 1


@ironflow.workflow
async def walk(ctx: Context, length: int) -> int:
    """`length` steps, one after the other."""
    number = 0
    for _ in range(length):
        number = await pace(number)
    return number


class Begun(NamedTuple):
    """What a body tells."""

    run_id: str
    pid: int
    at_ns: int


class Listener:
    """The end of the socket that the bench holds. A context manager."""

    def __enter__(self) -> Self:
        # In the system's temporary folder: the address of a socket has room for some hundred characters only.
        self._folder = tempfile.TemporaryDirectory(prefix="ironflow-bench-")
        self.address = f"{self._folder.name}/told"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._folder.cleanup()

    async def next(self) -> Begun:
        """The next body that begins."""
        told = await asyncio.get_running_loop().sock_recv(self._socket, 200)
        run_id, pid, at = told.decode().split()
        return Begun(run_id, int(pid), int(at))

    async def of(self, run_id: str, patience_s: float) -> Begun:
        """The next body of this run that begins."""
        async with asyncio.timeout(patience_s):
            while (begun := await self.next()).run_id != run_id:
                continue
            return begun


async def main(url: str, address: str) -> None:
    """Work until killed, or until standard input ends because the parent has died."""
    os.environ[SOCKET] = address
    async with ironflow.open(url, workflows=[held]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
