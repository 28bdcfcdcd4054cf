#!/usr/bin/env python3
"""Where the time of a step goes: `python bench/profile_step.py [--store sqlite|postgres] [--runs N] [--lone]`.

Used when a target is missed. Nothing in the engine is made for it: the doors between its parts are wrapped from
outside, the time inside each is added up, and what an inner part took is taken off the outer one, so the shares add
up. The wrappers cost some tenths of a microsecond per call; the first line gives the speed without them.

With py-spy on PATH, `py-spy record --gil -- python bench/profile_step.py --plain` sees below these doors.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import ironflow
from bench.driving import side_by_side
from bench.stores import STORES, Place
from bench.workflows import ALL, chain
from ironflow import runtime  # noqa: F401  # loaded before the collector is told to look no more at it
from ironflow.cli import process

STEPS = 5


@dataclass(frozen=True, slots=True)
class Door:
    """A method whose time is one phase: `owner` is `module:Class` or `module`."""

    phase: str
    owner: str
    name: str


#: From the outside in. A door that an installation does not have is named and left out.
DOORS = (
    Door("caller: start and result", "ironflow.runtime.engine:Engine", "start"),
    Door("caller: start and result", "ironflow.runtime.engine:Engine", "wait_end"),
    Door("start: row, input, options", "ironflow.engine.starting", "new_run"),
    Door("start: replay and activation", "ironflow.worker.worker:Worker", "start_here"),
    Door("segment: what is left to do", "ironflow.engine.segment:Segment", "_drive"),
    Door("segment: the transition", "ironflow.engine.segment:Segment", "_submit"),
    Door("segment: carrying out", "ironflow.engine.segment:Segment", "_carry_out"),
    Door("executor: requests to events", "ironflow.engine.execution:Execution", "settle"),
    Door("executor: the end of a body", "ironflow.engine.execution:Execution", "ended"),
    Door("workflow code on its loop", "ironflow.engine.instance:Instance", "start"),
    Door("workflow code on its loop", "ironflow.engine.instance:Instance", "activate"),
    Door("bodies: arguments, call, result", "ironflow.engine.bodies:Bodies", "_run"),
    Door("store: hand-over (loop)", "ironflow.store.committer:Committer", "submit"),
    Door("store: answers (loop)", "ironflow.store.committer:Committer", "_answer"),
    Door("SQLite: lone commit (loop)", "ironflow.store.sqlite_writer:SqliteWriter", "try_commit"),
    Door("SQLite: group commit (thread)", "ironflow.store.sqlite_writer:SqliteWriter", "commit"),
    Door("PostgreSQL: hand-over", "ironflow.store.postgres:PostgresStore", "submit"),
    Door("PostgreSQL: batches, driver", "ironflow.store.postgres_commit:Batcher", "_write"),
)


class Clock:
    """Time per phase, exclusive of inner phases, per thread."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)
        self._local = threading.local()

    def wrap(self, phase: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        """A function that takes the time of another. A coroutine's time is that of its steps, not of its waits."""
        if inspect.iscoroutinefunction(fn):

            def timed_coroutine(*args: Any, **kwargs: Any) -> Any:
                return _Stepped(self, phase, fn(*args, **kwargs))

            return timed_coroutine

        def timed(*args: Any, **kwargs: Any) -> Any:
            self.enter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.leave(phase)

        return timed

    def enter(self) -> None:
        """A phase begins in this thread."""
        stack = self._local.__dict__.setdefault("stack", [])
        stack.append([perf_counter(), 0.0])

    def leave(self, phase: str, calls: int = 1) -> None:
        """The innermost phase of this thread ends."""
        stack = self._local.stack
        started, inner = stack.pop()
        took = perf_counter() - started
        self.seconds[phase] += took - inner
        self.calls[phase] += calls
        if stack:
            stack[-1][1] += took


class _Stepped:
    """Drives a coroutine and takes the time of each of its steps."""

    def __init__(self, clock: Clock, phase: str, coroutine: Any) -> None:
        self._clock, self._phase, self._coroutine, self._first = clock, phase, coroutine, True

    def __await__(self) -> Any:
        return self

    __iter__ = __await__

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        self._coroutine.close()

    def _step(self, call: Callable[..., Any], *args: Any) -> Any:
        self._clock.enter()
        try:
            return call(*args)
        finally:
            self._clock.leave(self._phase, int(self._first))
            self._first = False


def install(clock: Clock) -> list[str]:
    """Put the clock into the doors. Returns the names of doors that are not there."""
    missing = []
    for door in DOORS:
        module_name, _, class_name = door.owner.partition(":")
        try:
            __import__(module_name)
            owner = getattr(sys.modules[module_name], class_name) if class_name else sys.modules[module_name]
            setattr(owner, door.name, clock.wrap(door.phase, getattr(owner, door.name)))
        except (ImportError, AttributeError):
            missing.append(f"{door.owner}.{door.name}")
    return missing


async def load(url: str, runs: int, callers: int) -> float:
    """Execute runs of five steps; microseconds of wall time per step."""
    async with ironflow.open(url, workflows=ALL) as engine:

        async def run(_: int) -> None:
            await engine.run(chain, STEPS)

        await side_by_side(run, range(runs // 10), callers)
        started = perf_counter()
        await side_by_side(run, range(runs), callers)
        return (perf_counter() - started) / (runs * STEPS) * 1e6


def report(clock: Clock, wall_us: float, steps: int) -> str:
    """The phases in the order of their cost."""
    lines = [f"{'phase':<40}{'us/step':>9}{'share':>8}{'calls/step':>12}"]
    for phase, seconds in sorted(clock.seconds.items(), key=lambda item: -item[1]):
        each = seconds / steps * 1e6
        lines.append(f"{phase:<40}{each:>9.1f}{each / wall_us:>8.0%}{clock.calls[phase] / steps:>12.2f}")
    return "\n".join(lines)


async def main(options: argparse.Namespace) -> None:
    """Measure without the doors, then with them."""
    callers = 1 if options.lone else 100
    with Place(options.store) as place:
        plain_us = await load(await place.fresh(), options.runs, callers)
        print(f"{plain_us:.1f} us per step, {callers} caller(s), {options.store}")
        if options.plain:
            return
        clock = Clock()
        for name in install(clock):
            print(f"(no {name} here)")
        wall_us = await load(await place.fresh(), options.runs, callers)
        total = options.runs + options.runs // 10
        print(f"{wall_us:.1f} us per step with the clock; time of all threads, waits excluded:\n")
        print(report(clock, wall_us, total * STEPS))
        print("\nWhat is missing to 100 % is asyncio itself, idle time, and everything between the doors.")


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Where the time of a step goes.")
    parser.add_argument("--store", choices=STORES, default=STORES[0])
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--lone", action="store_true", help="one caller instead of 100")
    parser.add_argument("--plain", action="store_true", help="only the load, for a profiler from outside")
    parser.add_argument("--embedded", action="store_true", help="with asyncio's own loop and Python's own collector")
    return parser.parse_args(words)


if __name__ == "__main__":
    chosen = arguments(sys.argv[1:])
    if not chosen.embedded:
        process.relax_collector()
    with asyncio.Runner(loop_factory=None if chosen.embedded else process.fast_loop()) as runner:
        runner.run(main(chosen))
