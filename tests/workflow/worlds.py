"""Random worlds: one workflow that uses all of asyncio and of the context, and executors that answer at
random.

As a script (`python worlds.py record SEED COUNT`, `python worlds.py check < journals`) it runs under any
supported Python without third-party packages, so that a journal recorded by one can be replayed by another.
"""

from __future__ import annotations

import json
import random
import sys
import types
from pathlib import Path

if __name__ == "__main__":
    # The workflow loop needs the standard library only; the package's __init__ would import the rest as well.
    package = types.ModuleType("ironflow")
    package.__path__ = [str(Path(__file__).parents[2] / "src" / "ironflow")]
    sys.modules["ironflow"] = package

import asyncio
from contextlib import aclosing, suppress
from typing import Any

from ironflow.context import Context, step, workflow
from ironflow.engine.instance import Instance, Raised, RunInfo
from ironflow.engine.requests import (
    Completed,
    Failed,
    Fired,
    StartTimer,
    StepCall,
)

Journal = list[list[Any]]


@step
async def work(*what: Any) -> Any:
    raise AssertionError("bodies do not run in these worlds")


async def chain(label: str, length: int) -> list[Any]:
    results = []
    for n in range(length):
        try:
            results.append(await work(label, n))
        except RuntimeError as error:
            results.append(str(error))
    return results


async def streams(out: list[Any]) -> None:
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    done, gate, lock = asyncio.Event(), asyncio.Semaphore(2), asyncio.Lock()

    async def produce() -> None:
        for n in range(3):
            await queue.put((await chain(f"p{n}", 1), n))
        await queue.put(None)

    async def consume() -> None:
        while (item := await queue.get()) is not None:
            async with gate, lock:
                out.append((item, await chain("consume", 1)))
        done.set()

    async def watch() -> None:
        await done.wait()
        out.append("watched")

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        group.create_task(consume())
        group.create_task(watch())


async def limits(out: list[Any]) -> None:
    for seconds in (5, 40):
        try:
            async with asyncio.timeout(seconds):
                out.append(await chain("in time?", 2))
        except TimeoutError:
            out.append("timeout")
        try:
            out.append(await asyncio.wait_for(chain("wait_for", 2), seconds))
        except TimeoutError:
            out.append("late")
        try:
            out.append(await asyncio.wait_for(asyncio.gather(chain("a", 1), chain("b", 1)), seconds))
        except TimeoutError:
            out.append("late pair")
    with suppress(TimeoutError):
        await asyncio.wait_for(chain("never", 1), 0)


async def races(ctx: Context, out: list[Any]) -> None:
    pending = {asyncio.ensure_future(chain(f"r{n}", 1 + n % 2)) for n in range(4)}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            out.append(task.result())
    out.extend([await f for f in asyncio.as_completed([chain(f"c{n}", 1) for n in range(4)])])
    index, value = await ctx.first(chain("x", 2), chain("y", 1), ctx.sleep("3s"))
    out.append((index, value))
    async with aclosing(ctx.as_completed([work("o", n) for n in range(4)], concurrency=2)) as outcomes:
        async for outcome in outcomes:
            out.append((outcome.index, outcome.ok))
            if len(out) % 3 == 0:
                break


async def groups(ctx: Context, out: list[Any]) -> None:
    out.append(
        [repr(r) for r in await ctx.parallel([work("g", n) for n in range(4)], concurrency=2, on_error="collect")]
    )
    out.append(await ctx.map(lambda n: chain(f"m{n}", 2), range(5), concurrency=2))
    try:
        out.append(await ctx.parallel(work("fast", n) for n in range(4)))
    except RuntimeError as error:
        out.append(str(error))
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work("tg", n)) for n in range(3)]
        out.append([task.result() for task in tasks])
    except* RuntimeError as errors:
        out.append(sorted(str(e) for e in errors.exceptions))
    await asyncio.shield(asyncio.sleep(7))
    out.append((str(ctx.uuid4()), str(ctx.uuid4("name")), ctx.random.random(), ctx.now().isoformat()))
    out.append(ctx.patched("new path"))


@workflow
async def world(ctx: Context) -> Any:
    outs: list[list[Any]] = [[], [], [], []]
    async with asyncio.TaskGroup() as group:
        group.create_task(streams(outs[0]))
        group.create_task(limits(outs[1]))
        group.create_task(races(ctx, outs[2]))
        group.create_task(groups(ctx, outs[3]))
    background = asyncio.create_task(chain("left behind", 50))
    ctx.set_status("nearly done")
    outs.append(await chain("last", 2))
    assert not background.done()
    return outs


def instance_of(seed: int, patches: set[str]) -> Instance:
    return Instance(world.spec, None, RunInfo("r", "r", world.name, 1, seed, patches), strict=True)


def show(requests: list[Any]) -> list[str]:
    return [f"{type(r).__name__} {r.id} {getattr(r, 'due', '')}" for r in requests]


def outcome_of(instance: Instance) -> str:
    outcome = instance.outcome
    assert outcome is not None, instance.stuck_report()
    return repr(outcome.error if isinstance(outcome, Raised) else json.dumps(outcome.value))


def random_answer(dice: random.Random, request: StepCall | StartTimer, now: int) -> list[Any]:
    at = now + dice.randrange(4000)
    if isinstance(request, StartTimer):
        return ["fired", request.id, None, max(at, request.due)]
    if dice.random() < 0.1:
        return ["failed", request.id, f"bad {dice.randrange(99)}", at]
    return ["completed", request.id, dice.randrange(999), at]


def feed(instance: Instance, entry: list[Any], replaying: bool) -> list[str]:
    kind, key, value, at = entry
    fact: Any = Fired(key)
    if kind != "fired":
        fact = Completed(key, value) if kind == "completed" else Failed(key, RuntimeError(value))
    return show(instance.activate(fact, at, replaying))


def live(seed: int) -> tuple[Journal, list[list[str]], str]:
    """One world: its journal, the requests after the start and after each fact, and how it ended."""
    dice = random.Random(seed)
    instance = instance_of(seed, set())
    asked = [show(instance.start(1_000))]
    journal: Journal = []
    while instance.outcome is None:
        request = dice.choice(list(instance.open.values()))
        entry = random_answer(dice, request, journal[-1][3] if journal else 1_000)
        journal.append(entry)
        asked.append(feed(instance, entry, False))
    result = outcome_of(instance)
    assert not instance.open
    instance.close()
    return journal, asked, result


def replay(seed: int, journal: Journal, patches: set[str], cut: int | None = None) -> tuple[list[list[str]], str]:
    """The same world again: recorded up to `cut` (the end by default), live after it."""
    cut = len(journal) if cut is None else cut
    instance = instance_of(seed, patches)
    asked = [show(instance.start(1_000, cut > 0))]
    for n, entry in enumerate(journal):
        asked.append(feed(instance, entry, n < cut))
    result = outcome_of(instance)
    instance.close()
    return asked, result


def without_notes(asked: list[list[str]]) -> list[list[str]]:
    return [sorted(line for line in lines if not line.startswith("Note")) for lines in asked]


if __name__ == "__main__":
    if sys.argv[1] == "record":
        first, count = int(sys.argv[2]), int(sys.argv[3])
        print(json.dumps([[seed, *live(seed)] for seed in range(first, first + count)]))
    else:
        for seed, journal, asked, result in json.load(sys.stdin):
            again, ended = replay(seed, journal, {"new path"})
            assert ended == result, (seed, ended, result)
            assert without_notes(again) == without_notes(asked), seed
        print("all agree")
