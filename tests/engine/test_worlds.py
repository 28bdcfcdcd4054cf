"""Random worlds through an execution: bodies end in random order and ways, owners die at random moments, and the
run comes to the same end as the same world without a crash.

A world is decided by its seed alone: what a body returns, how long it takes and whether it fails follow from the
seed and the step's id, so that two executions of one world may be compared however they were interrupted. What
a crash may change is the order in which bodies end; so each world is driven twice from the journal it left.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from typing import Any

import pytest
from tests.engine.harness import Harness

from ironflow.context import Context, Retry, step, workflow
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.fold import fold

WORLDS = 240


@step
async def work(*what: Any) -> Any: ...


@step(retry=Retry(3, backoff="2s"))
async def flaky(*what: Any) -> Any: ...


@step(retry=Retry(2, backoff="20s"), on_cancel="abandon")
async def patient(*what: Any) -> Any: ...


@step
async def undo(*what: Any) -> Any: ...


async def chain(label: str, length: int) -> list[Any]:
    out: list[Any] = []
    for n in range(length):
        try:
            out.append(await (work, flaky, patient)[n % 3](label, n))
        except RuntimeError as error:
            out.append(str(error))
    return out


async def limits(out: list[Any]) -> None:
    for seconds in (3, 30):
        try:
            async with asyncio.timeout(seconds):
                out.append(await chain("timeout", 3))
        except TimeoutError:
            out.append("timeout")
        try:
            out.append(await asyncio.wait_for(chain("wait_for", 2), seconds))
        except TimeoutError:
            out.append("late")


async def races(ctx: Context, out: list[Any]) -> None:
    pending = {asyncio.ensure_future(chain(f"r{n}", 1 + n % 3)) for n in range(4)}
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            out.append(task.result())
    index, value = await ctx.first(chain("x", 3), chain("y", 2), ctx.sleep("9s"))
    out.append((index, value))
    async with aclosing(ctx.as_completed([flaky("o", n) for n in range(4)], concurrency=2)) as outcomes:
        async for outcome in outcomes:
            out.append((outcome.index, outcome.ok))
            if len(out) % 3 == 0:
                break


async def groups(ctx: Context, out: list[Any]) -> None:
    out.append(await asyncio.gather(*(chain(f"g{n}", 2) for n in range(3))))
    results = await ctx.parallel([work("p", n) for n in range(4)], concurrency=2, on_error="collect")
    out.append([repr(result) for result in results])
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(flaky("t", n)) for n in range(3)]
        out.append([task.result() for task in tasks])
    except* RuntimeError as errors:
        out.append(len(errors.exceptions))
    with suppress(RuntimeError):
        out.append(await asyncio.shield(work("shielded")))
    if len(str(out)) % 2:
        ctx.skip("nothing", "odd")
    ctx.set_status(f"{len(out)} results")
    out.append((str(ctx.uuid4()), ctx.random.random(), ctx.now().isoformat(), ctx.patched("new")))


@workflow(retry=Retry(3, backoff="1m"))
async def world(ctx: Context, seed: int) -> Any:
    dice = random.Random(seed)
    outs: list[list[Any]] = [[], [], []]
    ctx.compensate(undo, "first")
    if dice.random() < 0.5:
        ctx.warn("it may rain")
    left = asyncio.create_task(chain("left behind", 50))
    async with asyncio.TaskGroup() as group:
        group.create_task(limits(outs[0]))
        group.create_task(races(ctx, outs[1]))
        group.create_task(groups(ctx, outs[2]))
    ctx.compensate(undo, "second")
    outs.append(await chain("last", 2))
    await work("may fail the attempt")
    return [outs, left.done()]


class World:
    """One run of the world. `crash` is how likely the owner dies after a commit."""

    def __init__(self, seed: int, crash: float) -> None:
        self.dice = random.Random(f"{seed} {crash}")
        self.seed, self.crash = seed, crash
        self.h = Harness(world, seed, chance=0.3)
        self.crashes = 0
        self.finished: dict[str, int] = {}
        self.cancels = self.dice.random() < 0.1

    def drive(self) -> World:
        h = self.h.fresh()
        while h.state not in runs.TERMINAL:
            self._look()
            assert len(h.journal) < 2_000
            if self.dice.random() < self.crash and h.state in (runs.RUNNING, runs.CANCELLING):
                self.crashes += 1
                h.later(self.dice.randrange(2_000)).recover()
            elif h.state == runs.RETRYING:
                h.later(max(0, h.queued_at - h.now)).replay()
            elif h.state == runs.SLEEPING:
                self._wake()
            elif h.running and self.dice.random() < 0.9:
                self._end_some()
            elif h.plan.wake_at is not None:
                h.later(max(0, h.plan.wake_at - h.now)).settle()
            elif self.cancels and h.state == runs.RUNNING and self.dice.random() < 0.2:
                h.cancel().replay()
        return self

    def _wake(self) -> None:
        h = self.h
        h.later(max(0, min(due for due in h.waits.values() if due is not None) - h.now))
        if self.dice.random() < 0.5:
            h.wake()
        else:
            h.replay()

    def _end_some(self) -> None:
        h = self.h
        defer = self.dice.random() < 0.2
        for _ in range(self.dice.choice((1, 1, 1, 2, 5))):
            if h.running:
                h.later(self.dice.randrange(700))
                self._end(self.dice.choice(list(h.running)), defer)
        if defer:
            h._commit(h.execution.facts())
            if self.dice.random() < self.crash:
                self.crashes += 1
                h.recover()
                return
        h.settle()

    def _end(self, step_id: str, defer: bool) -> None:
        h = self.h
        fate = random.Random(f"{self.seed} {step_id} {h.running[step_id].try_no}")
        if step_id in h.execution.stopping:
            h.end(step_id, error=asyncio.CancelledError(), settle=False, defer=defer)
        elif fate.random() < 0.2:
            h.end(step_id, error=RuntimeError(f"bad {fate.randrange(99)}"), settle=False, defer=defer)
        else:
            h.end(step_id, fate.randrange(999), settle=False, defer=defer)

    def _look(self) -> None:
        """No step that has completed is ever started again within an attempt."""
        started = {key for key, _, _ in self.h.started}
        completed: set[str] = set()
        for event in self.h.journal:
            if event.kind == j.STEP_STARTED:
                assert event.step_id not in completed, event
                assert event.step_id in started
            elif event.kind == j.STEP_COMPLETED:
                completed.add(event.step_id or "")


def again(w: World, cut: int) -> Harness:
    """The same journal up to `cut`, then whatever is left of the recorded world: facts in their recorded order."""
    h = Harness(world, w.seed, chance=0.3)
    h.journal = w.h.journal[:cut]
    h.now = w.h.journal[cut - 1].at
    return h


@pytest.mark.parametrize("batch", range(4))
def test_a_world_with_crashes_ends_and_its_journal_replays_to_the_same_end(batch: int) -> None:
    seen: set[str] = set()
    crashes = 0
    for seed in range(batch, WORLDS, 4):
        w = World(seed, 0.08).drive()
        crashes += w.crashes
        seen.update(event.kind for event in w.h.journal)
        # The journal without its terminal event, taken up by another worker, must come to that very event.
        h = again(w, len(w.h.journal) - 1).recover()
        assert told(h) == told(w.h), seed
    assert crashes > WORLDS // 8
    assert {
        j.STEP_COMPLETED, j.STEP_FAILED, j.STEP_RETRYING, j.STEP_INTERRUPTED, j.STEP_CANCELLED, j.TIMER_FIRED,
        j.TIMER_STARTED, j.RUN_RETRYING, j.RUN_SUSPENDED, j.VALUE_RECORDED,
    } <= seen  # fmt: skip


def told(h: Harness) -> Any:
    """How a run ended, without the times and the tracebacks of the telling."""
    result = h.result
    error = result.get("error", {})
    rest = [result.get(key) for key in ("output", "failed_steps", "unreported")]
    return [h.state, error.get("type"), error.get("message"), *rest]


def test_every_prefix_of_a_world_s_commits_replays_without_a_divergence_and_asks_for_what_was_open() -> None:
    for seed in range(12):
        w = World(seed, 0.0).drive()
        ends = dict.fromkeys(w.h.commits)
        for cut in list(ends)[:-1][:: max(1, len(ends) // 25)]:
            h = again(w, cut)
            before = fold(h.journal)
            h.recover()
            assert h.row.reason != "REPLAY_DIVERGENCE", (seed, cut, h.last(j.RUN_PAUSED))
            was_open = {s.step_id for s in before.steps.values() if s.state == "running" and s.step_id in h.running}
            assert was_open <= h.running.keys()
            assert not {s.step_id for s in before.steps.values() if s.state == "completed"} & h.running.keys()


def _end_next(h: Harness, seed: int) -> None:
    step_id = min(h.running)
    fate = random.Random(f"{seed} {step_id} {h.running[step_id].try_no}")
    if fate.random() < 0.15:
        h.end(step_id, error=RuntimeError(f"bad {fate.randrange(99)}"))
    else:
        h.end(step_id, fate.randrange(999))


def test_a_world_crashed_after_every_commit_comes_to_the_same_output() -> None:
    """With bodies that end in the order of their start, a crash after each commit changes nothing at all."""

    def ordered(seed: int, crash: bool) -> Harness:
        h = Harness(world, seed, chance=0.3).fresh()
        while h.state not in runs.TERMINAL:
            if h.state == runs.RETRYING:
                h.later(max(0, h.queued_at - h.now)).replay()
            elif h.state == runs.SLEEPING:
                h.later(max(0, min(due for due in h.waits.values() if due is not None) - h.now)).replay()
            elif h.execution.stopping:
                h.end(next(iter(h.execution.stopping)), error=asyncio.CancelledError())
            elif h.running:
                _end_next(h.later(100), seed)
            else:
                assert h.plan.wake_at is not None
                h.later(max(0, h.plan.wake_at - h.now)).settle()
            if crash and h.state in (runs.RUNNING, runs.CANCELLING):
                h.recover()
        return h

    for seed in range(8):
        assert told(ordered(seed, False)) == told(ordered(seed, True)), seed


def test_the_same_world_is_the_same_twice() -> None:
    for seed in range(5):
        one, two = World(seed, 0.08).drive().h, World(seed, 0.08).drive().h
        assert [(e.kind, e.step_id, e.payload) for e in one.journal if e.kind != j.RUN_FAILED] == [
            (e.kind, e.step_id, e.payload) for e in two.journal if e.kind != j.RUN_FAILED
        ]
