#!/usr/bin/env python3
"""`python3 dev.py soak [--kills 200] [--runs 1000] [--store sqlite|postgres] [--seed N]`: workers die all the time.

With `--cluster`, two servers and four workers over HTTP, of which any may die: see `soak_cluster.py`.

Real worker processes on one database execute runs with steps, branches, timers and retries, while the script kills
one of them with SIGKILL at random moments and starts another in its place. Nobody repairs anything by hand. Every
body appends one line to a file of effects before it does anything else; afterwards, journal and effects are compared:

- every run completed, with the output that its input implies;
- no body ran after its end was journaled, and none ran without its start being journaled first;
- no try ran twice in one segment;
- the doctor finds nothing.

The seed decides the workflows and when which worker dies; the interleaving is the machine's own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ironflow
from ironflow import Context, Retry
from ironflow.engine import doctor
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.testing.postgres import PostgresServer

# ---- the workflow: what it does follows from its input, and so does what must come out

#: Calls in one run, least and most.
LENGTH = (5, 15)
EFFECTS = "IRONFLOW_SOAK_EFFECTS"


def _effect() -> ironflow.StepInfo:
    info = ironflow.step_info()
    line = json.dumps([info.run_id, info.step_id, info.attempt, info.fence, os.getpid(), time.time()]) + "\n"
    descriptor = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(descriptor, line.encode())  # one write of a short line is never torn, whoever else appends
    os.close(descriptor)
    return info


@ironflow.step
async def square(number: int) -> int:
    """A body that takes up to a quarter of a second: most kills are to hit one."""
    _effect()
    await asyncio.sleep(number / 400)
    return number * number


@ironflow.step(retry=Retry(4, backoff="10ms"))
async def flaky(number: int) -> int:
    """Fails as often as the number says, at most three times."""
    info = _effect()
    if info.attempt <= number % 4:
        raise ConnectionError(f"try {info.attempt} fails")
    return -number


@ironflow.step
def in_thread(number: int) -> int:
    """A body in a thread."""
    _effect()
    time.sleep(number / 1_000)
    return number + 1


@ironflow.workflow
async def mixed(ctx: Context, seed: int) -> list[int]:
    """Steps one by one and side by side, timers and retries, in an order drawn from the seed."""
    chance, done = random.Random(seed), []
    for _ in range(chance.randint(*LENGTH)):
        kind, number = chance.randrange(5), chance.randrange(100)
        if kind == 0:
            done.append(await square(number))
        elif kind == 1:
            done += await ctx.map(square, range(number, number + number % 6), concurrency=4)
        elif kind == 2:
            done.append(await flaky(number))
        elif kind == 3:
            await ctx.sleep(number / 200)
        else:
            done.append(await in_thread(number))
    return done


def expected(seed: int) -> list[int]:
    """What `mixed` returns, computed without an engine."""
    chance, done = random.Random(seed), []
    for _ in range(chance.randint(*LENGTH)):
        kind, number = chance.randrange(5), chance.randrange(100)
        if kind == 0:
            done.append(number * number)
        elif kind == 1:
            done += [n * n for n in range(number, number + number % 6)]
        elif kind == 2:
            done.append(-number)
        elif kind == 4:
            done.append(number + 1)
    return done


async def work(url: str) -> None:
    """The life of a worker process: until it is killed, or its parent is gone."""
    async with ironflow.open(url, workflows=[mixed]):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)


# ---- the checks


def check_effects(events: Sequence[Event], effects: Iterable[Sequence[Any]]) -> list[str]:
    """What is wrong with the effects of one run, given its journal.

    Args:
        events: the whole journal.
        effects: (run, step, try, fence, pid, time) as the bodies wrote them.
    """
    begun: set[tuple[str, int, int]] = set()
    ended: dict[tuple[str, int], int] = {}
    number: dict[str, int] = {}
    for event in events:
        step = event.step_id or ""
        if event.kind == j.STEP_STARTED:
            number[step] = event.data().get("try", 1)
            begun.add((step, number[step], event.execution_seq))
        elif event.kind in (j.STEP_COMPLETED, j.STEP_FAILED, j.STEP_RETRYING):
            ended[step, number[step]] = event.execution_seq
    wrong = []
    for (step, try_no, fence), count in Counter((e[1], e[2], e[3]) for e in effects).items():
        where = f"try {try_no} of {step} in segment {fence}"
        if (step, try_no, fence) not in begun:
            wrong.append(f"{where} ran, and no start of it is journaled")
        if count > 1:
            wrong.append(f"{where} ran {count} times")
        if fence > ended.get((step, try_no), fence):
            wrong.append(f"{where} ran, although its end was journaled in segment {ended[step, try_no]}")
    return wrong


# ---- the load and the killer


@dataclass(slots=True)
class Soak:
    """One database under load, with its workers."""

    url: str
    effects: Path
    options: argparse.Namespace
    chance: random.Random
    engine: ironflow.Engine
    workers: list[subprocess.Popen[str]] = field(default_factory=list)
    kills: int = 0
    ended: int = 0
    runs: dict[str, int] = field(default_factory=dict)

    async def spawn(self) -> None:
        """Start a worker and wait until it has its session."""
        worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), "--work", self.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, EFFECTS: str(self.effects)},
        )
        assert worker.stdout is not None
        if await asyncio.to_thread(worker.stdout.readline) != "ready\n":
            raise SystemExit(f"a worker ended with {worker.wait()} before it could work")
        self.workers.append(worker)

    async def load(self) -> None:
        """Start runs in step with the kills, so that there is always something to kill into."""
        for number in range(self.options.runs):
            while number > self.options.open + self.options.runs * self.kills // self.options.kills:
                await asyncio.sleep(0.02)
            seed = self.chance.randrange(1 << 30)
            run = await self.engine.start(mixed, seed)
            self.runs[run.id] = seed

    async def kill(self) -> None:
        """Kill a random worker again and again; the next one is there before the one after it dies."""
        while self.kills < self.options.kills:
            await asyncio.sleep(self.chance.uniform(0.02, self.options.pause))
            victim = self.workers.pop(self.chance.randrange(len(self.workers)))
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            await self.spawn()
            self.kills += 1  # lets the next runs start, so that the next kill finds them executing

    async def watch(self) -> None:
        """Until every run has ended, or nothing has moved for a minute."""
        moved, last = time.monotonic(), None
        while True:
            counts = await self.engine.store.counts()
            self.ended = sum(counts.get(state, 0) for state in ("completed", "failed", "cancelled", "warning"))
            if counts != last:
                moved, last = time.monotonic(), counts
                told = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
                print(f"\r{self.kills} kills; {told}".ljust(100), end="", file=sys.stderr, flush=True)
            finished = self.kills >= self.options.kills and len(self.runs) >= self.options.runs
            if (finished and self.ended >= self.options.runs) or time.monotonic() - moved > 60:
                print(file=sys.stderr)
                return
            await asyncio.sleep(0.2)

    async def execute(self) -> None:
        """The whole of it: load, kills, the wait for the end."""
        for _ in range(self.options.workers):
            await self.spawn()
        tasks = [asyncio.create_task(self.load()), asyncio.create_task(self.kill())]
        watching = asyncio.create_task(self.watch())
        try:
            done, _ = await asyncio.wait([*tasks, watching], return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, watching):
                task.cancel()
            for worker in self.workers:
                worker.kill()
                worker.communicate()

    async def wrong(self) -> list[str]:
        """Everything that is not as it must be."""
        by_run: dict[str, list[Sequence[Any]]] = defaultdict(list)
        for line in self.effects.read_text().splitlines():
            effect = json.loads(line)
            by_run[effect[0]].append(effect)
        found = []
        for run_id, seed in self.runs.items():
            view = await self.engine.get(run_id)
            if view.state != "completed":
                holds = await self.engine.handle(run_id).why()
                found.append(f"{run_id} is {view.state}: {holds or view.error}")
            elif view.output != expected(seed):
                found.append(f"{run_id} returned {view.output} instead of {expected(seed)}")
            events = await self.engine.store.journal(run_id)
            found += [f"{run_id}: {message}" for message in check_effects(events, by_run[run_id])]
        examined = await doctor.examine(self.engine.store)
        return found + [f"doctor: {finding}" for finding in examined]

    async def summary(self) -> str:
        """The counts that say how hard it was."""
        recovered = interrupted = bodies = 0
        for run_id in self.runs:
            for event in await self.engine.store.journal(run_id):
                recovered += event.kind == j.RUN_RECOVERED
                interrupted += event.kind == j.STEP_INTERRUPTED
        bodies = len(self.effects.read_text().splitlines())
        return (
            f"{self.ended} of {len(self.runs)} runs ended, {self.kills} kills, {recovered} recoveries, "
            f"{interrupted} interrupted steps, {bodies} bodies executed"
        )


async def soak(url: str, folder: Path, options: argparse.Namespace) -> int:
    """One soak on one database; returns how much was wrong."""
    async with ironflow.open(url, workflows=[mixed], worker=False) as engine:
        effects = folder / "effects"
        effects.touch()
        started = time.monotonic()
        test = Soak(url, effects, options, random.Random(options.seed), engine)
        await test.execute()
        wrong = await test.wrong()
        print(
            f"{engine.store.dialect}, seed {options.seed}: {await test.summary()}, {time.monotonic() - started:.0f} s"
        )
    for message in wrong[:20]:
        print(f"  WRONG {message}")
    if len(wrong) > 20:
        print(f"  … and {len(wrong) - 20} more")
    return len(wrong)


async def on_sqlite(folder: Path, options: argparse.Namespace) -> int:
    """A file in the folder."""
    return await soak(f"sqlite:///{folder}/soak.db", folder, options)


async def on_postgres(folder: Path, options: argparse.Namespace) -> int:
    """A server with its data in the folder."""
    folder.chmod(0o755)  # the server may run as another user
    with PostgresServer(folder / "data", fsync=True) as server:
        return await soak(server.create_database("soak"), folder, options)


Test = Callable[[Path, argparse.Namespace], Coroutine[Any, Any, int]]

STORES: dict[str, Test] = {
    "sqlite": on_sqlite,
    "postgres": on_postgres,
}


#: How hard it is where nobody says otherwise; for a cluster that is three minutes.
DEFAULTS = {"kills": 200, "runs": 1_000, "pause": 0.3}
ON_CLUSTER = {"kills": 90, "runs": 2_000, "pause": 4.0}


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="dev.py soak", description="Kill workers all the time; count what happened.")
    parser.add_argument("--kills", type=int, help="processes killed (default 200; 90 of a cluster)")
    parser.add_argument("--runs", type=int, help="runs executed (default 1000; 2000 on a cluster)")
    parser.add_argument("--store", choices=STORES, help="one database; default both, one after the other")
    parser.add_argument("--seed", type=int, help="repeat the workflows and the choices of a run; default a new one")
    parser.add_argument("--workers", type=int, default=3, help="worker processes (default 3)")
    parser.add_argument("--open", type=int, default=30, help="runs that may be ahead of the kills (default 30)")
    parser.add_argument("--pause", type=float, help="most seconds between two kills (default 0.3; 4 on a cluster)")
    parser.add_argument("--keep", action="store_true", help="leave the database and the effects for a look")
    parser.add_argument("--cluster", action="store_true", help="two servers and four workers over HTTP, on PostgreSQL")
    parser.add_argument("--work", metavar="URL", help=argparse.SUPPRESS)  # how the script starts its own workers
    options = parser.parse_args(words)
    for name, value in (ON_CLUSTER if options.cluster else DEFAULTS).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 31)
    if min(options.kills, options.runs) < 1 or options.workers < 2:
        parser.error("--kills and --runs are at least 1; --workers at least 2, or nobody is left to take over")
    return options


async def _in_folder(test: Test, options: argparse.Namespace) -> int:
    """Run a test in a folder beside the project, and not in the temporary one, which may be kept in memory."""
    folder = Path(tempfile.mkdtemp(prefix=".soak-", dir=Path.cwd()))
    try:
        return await test(folder, options)
    finally:
        if options.keep:
            print(f"kept in {folder.name}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def main(words: Sequence[str]) -> int:
    """Entry: returns the exit code, 0 when nothing was wrong."""
    options = arguments(words)
    if options.work:
        asyncio.run(work(options.work))
        return 0
    wrong = 0
    if options.cluster:
        from soak_cluster import on_cluster

        return 1 if asyncio.run(_in_folder(on_cluster, options)) else 0
    for store in [options.store] if options.store else list(STORES):
        wrong += asyncio.run(_in_folder(STORES[store], options))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
