"""Workflows whose bodies leave a line for everything they do, and a worker process that executes them.

`python -m tests.recovery.program` is a worker like any other; tests kill it, stop it and thaw it from outside. The
lines go to one file that all processes append to, so what happened can be counted after any death.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import ironflow
from ironflow import Context
from ironflow.config import Settings

ROOT = Path(__file__).resolve().parent.parent.parent


def folder() -> Path:
    """Where the lines and the gates of the current test are; the environment carries it to every process."""
    return Path(os.environ["IRONFLOW_TEST_FOLDER"])


def tell(what: str) -> None:
    """Leave a line: what happened, in which process, when (monotonic ns, the same for all processes of a host)."""
    descriptor = os.open(folder() / "lines", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{what} {os.getpid()} {time.monotonic_ns()}\n".encode())
    os.close(descriptor)


def lines(what: str = "") -> list[tuple[str, int, int]]:
    """What was told, in order: (what, pid, at); only of what begins so."""
    try:
        text = (folder() / "lines").read_text()
    except FileNotFoundError:
        return []
    found = [line.rsplit(" ", 2) for line in text.splitlines()]
    return [(told, int(pid), int(at)) for told, pid, at in found if told.startswith(what)]


def open_gate(name: str) -> None:
    """Let every body through that holds at this gate."""
    (folder() / name).touch()


# ---- bodies


@ironflow.step
async def mark(name: str) -> str:
    """A line and a result."""
    tell(f"{name}")
    return name


@ironflow.step
async def hold(name: str) -> str:
    """A line, and then nothing until the test opens the gate of this name."""
    tell(f"{name}")
    gate = folder() / name
    try:
        while not gate.exists():
            await asyncio.sleep(0.005)
    except asyncio.CancelledError:
        tell(f"cancelled {name}")
        raise
    return name


@ironflow.step
def hold_in_thread(name: str) -> str:
    """As `hold`, in a thread."""
    tell(f"{name}")
    while not (folder() / name).exists() and not ironflow.step_info().cancelled:
        time.sleep(0.005)
    return name


@ironflow.step
async def die(name: str) -> str:
    """Kills whatever executes it."""
    tell(f"{name}")
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@ironflow.step
async def quit_once(name: str) -> str:
    """Ends whatever executes it with the exit code behind the dash in its name; the second time it does not."""
    tell(f"{name}")
    if len(lines(name)) == 1:
        os._exit(int(name.rpartition("-")[2]))
    return name


@ironflow.step
def devour(name: str) -> int:
    """Asks for more memory than there is."""
    tell(f"{name}")
    return len(bytearray(1 << 46))


# ---- workflows


@ironflow.workflow
async def line(ctx: Context, name: str) -> list[str]:
    """Three steps; the second holds."""
    return [await mark(f"{name}-1"), await hold(f"{name}-2"), await mark(f"{name}-3")]


@ironflow.workflow
async def wave(ctx: Context, name: str) -> list[str]:
    """Two steps side by side, of which one holds; then one more."""
    done = await ctx.parallel([mark(f"{name}-a"), hold(f"{name}-b")])
    return [*done, await mark(f"{name}-c")]


@ironflow.workflow
async def quits(ctx: Context, name: str) -> str:
    """One step, which ends its process."""
    return await quit_once(name)


@ironflow.workflow
async def short(ctx: Context, name: str) -> str:
    """One step."""
    return await mark(name)


@ironflow.workflow
async def nap(ctx: Context, name: str) -> list[str]:
    """A step on either side of a delay of a second."""
    before = await mark(f"{name}-1")
    await ctx.sleep("1s")
    return [before, await mark(f"{name}-2")]


@ironflow.workflow
async def pill(ctx: Context, name: str) -> str:
    """Kills the process that executes its step."""
    return await die(name)


@ironflow.workflow
async def poison(ctx: Context, name: str) -> str:
    """Its own code kills the process that opens it."""
    tell(f"{name}")
    os.kill(os.getpid(), signal.SIGKILL)
    return name


@ironflow.workflow
async def glutton(ctx: Context, name: str) -> int:
    """Its step wants all memory."""
    return await devour(name)


WORKFLOWS = (line, wave, short, nap, pill, poison, glutton, quits)


# ---- processes


class Worker:
    """A worker process, seen from the test."""

    def __init__(self, url: str, settings: Settings | None = None) -> None:
        values = {} if settings is None else {name: getattr(settings, name) for name in settings.__slots__}
        request = json.dumps({"url": url, "settings": values})
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = Popen(
            [sys.executable, "-m", "tests.recovery.program", request],
            cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE, text=True,
        )  # fmt: skip
        self.pid = self.process.pid

    def ready(self) -> Worker:
        """Wait until it takes runs."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"
        return self

    def kill(self) -> None:
        """SIGKILL: no handler, no clean-up, nothing flushed."""
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def leave(self) -> int:
        """Tell it to leave in order; returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)

    def end(self) -> None:
        """Whatever its state, it is gone after this."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


@contextmanager
def workers(url: str, count: int, settings: Settings | None = None) -> Iterator[list[Worker]]:
    """So many worker processes, started one after the other; more may be appended; all are gone afterwards."""
    started: list[Worker] = []
    try:
        for _ in range(count):
            started.append(Worker(url, settings))
        for worker in started:
            worker.ready()
        yield started
    finally:
        for worker in started:
            worker.end()


async def serve(request: dict[str, Any]) -> None:
    """Work until the test closes our standard input."""
    settings = Settings(**request["settings"]) if request["settings"] else None
    async with ironflow.open(request["url"], workflows=WORKFLOWS, settings=settings):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    """See the module's docstring. Under its own name, or the children it isolates could not import its workflows."""
    from tests.recovery import program

    asyncio.run(program.serve(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
