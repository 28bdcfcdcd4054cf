"""A person takes a run away in the middle of a body: what is undone is undone behind that body, and none goes on for
long beside its successor. On both databases.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate, tell

import ironflow
from ironflow import Context, Engine, RunCancelled
from ironflow.config import Settings
from ironflow.model.fold import fold

pytestmark = pytest.mark.usefixtures("folder")


@ironflow.step
def charge_in_thread(name: str) -> None:
    """Cannot be stopped, and takes effect when its gate opens."""
    tell("charging")
    while not (program.folder() / name).exists():
        time.sleep(0.005)
    tell("charged")


@ironflow.step
async def charge(name: str) -> None:
    """Is told to stop, and takes effect all the same."""
    tell("charging")
    try:
        await asyncio.Event().wait()
    finally:
        tell("told")
        while not (program.folder() / name).exists():
            await asyncio.sleep(0.005)
        tell("charged")


@ironflow.step(on_cancel="abandon")
async def charge_alone(name: str) -> None:
    """Nobody waits for its end."""
    await charge.fn(name)


@ironflow.step
async def refund() -> None:
    tell("refunded")


CHARGES = {"thread": charge_in_thread, "async": charge, "abandoned": charge_alone}


@ironflow.workflow
async def order(ctx: Context, how: str) -> None:
    ctx.compensate(refund)
    await CHARGES[how]("gate")


def engine(url: str, settings: Settings | None = None, **more: Any) -> Engine:
    settings = settings or quick(lease_ttl_ms=20_000, session_ttl_ms=20_000, reservation_ttl_ms=10_000)
    return ironflow.open(url, workflows=[order, program.line], settings=settings, **more)


def told() -> list[str]:
    return [what for what, _, _ in lines()]


@pytest.mark.parametrize("how", ["thread", "async"])
@pytest.mark.parametrize("by_another", [False, True], ids=["by this process", "by another one"])
async def test_a_cancelled_run_is_undone_behind_the_body_that_still_executes(
    store_url: str, how: str, by_another: bool
) -> None:
    async with engine(store_url) as one, engine(store_url, worker=False) as other:
        run = await one.start(order, how)
        await until(lambda: "charging" in told())
        await (other.handle(run.id) if by_another else run).cancel()
        # The segment that undoes it has adopted the body, and waits.
        await until(lambda: one.worker is not None and run.id in one.worker.segments and _adopted(one, run.id))
        assert "refunded" not in told()
        open_gate("gate")
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        assert [what for what in told() if what != "told"] == ["charging", "charged", "refunded"]
        view = fold(await one.store.journal(run.id))
        assert view.breaches == []
        assert [(step.name, step.state) for step in view.steps.values()] == [
            (CHARGES[how].name, "cancelled"),
            ("refund", "completed"),
        ]


def _adopted(one: Engine, run_id: str) -> bool:
    assert one.worker is not None
    return any(body.cancelled and body.owner is not None for body in one.worker.segments[run_id].bodies)


async def test_a_body_that_its_author_lets_go_is_not_waited_for(store_url: str) -> None:
    async with engine(store_url) as one:
        run = await one.start(order, "abandoned")
        await until(lambda: "charging" in told())
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        assert "charged" not in told()
        open_gate("gate")
        await until(lambda: "charged" in told())


async def test_a_body_whose_run_goes_on_in_another_worker_is_told_to_end(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ironflow.worker.orphans.LOOK_AGAIN_S", 0.01)
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        await run.pause()
        worker = one.worker
        assert worker is not None
        await until(lambda: worker.segments == {})
        worker.slots = 0  # it takes nothing any more
        async with engine(store_url) as two:
            assert not lines("cancelled x-2"), "it is only paused: its body goes on"
            await two.resume(run.id)
            await until(lambda: len(lines("x-2")) == 2)
            await until(lambda: lines("cancelled x-2"))
            open_gate("x-2")
            assert await two.handle(run.id, program.line).result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert fold(await one.store.journal(run.id)).breaches == []


async def test_a_look_that_began_at_an_earlier_pause_does_not_stop_what_a_later_one_kept(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies between the two, this process's own resumption, looks to the first one like somebody else's."""
    monkeypatch.setattr("ironflow.worker.orphans.LOOK_AGAIN_S", 0.3)
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        worker = one.worker
        assert worker is not None
        looks, owner = [0], worker.port.owner

        async def counted(*which: Any, **since: Any) -> Any:
            looks[0] += 1
            return await owner(*which, **since)

        monkeypatch.setattr(worker.port, "owner", counted)
        await run.pause()
        await until(lambda: worker.segments == {} and looks[0])
        await run.resume()
        await until(lambda: run.id in worker.segments)
        await run.pause()
        await until(lambda: worker.segments == {})
        seen = looks[0]
        await until(lambda: looks[0] >= seen + 3, "both have looked once more")
        assert not lines("cancelled x-2")
        await run.resume()
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
    assert len(lines("x-2")) == 1


@ironflow.step
async def charge_again(name: str) -> None:
    """What comes after a try that was stopped has nothing to wait for."""
    if "charging" in told():
        tell("charging again")
    else:
        await charge.fn(name)


@ironflow.workflow
async def plain_order(ctx: Context) -> None:
    await charge_again("gate")


async def test_a_run_that_is_retried_waits_for_the_end_of_the_body_that_its_cancellation_stopped(
    store_url: str,
) -> None:
    async with ironflow.open(store_url, workflows=[plain_order], settings=quick()) as one:
        run = await one.start(plain_order)
        await until(lambda: "charging" in told())
        await run.cancel()
        await until(lambda: "told" in told())
        await run.retry()
        await until(lambda: one.worker is not None and run.id in one.worker.taking)
        open_gate("gate")
        await run.result(timeout=20)
        assert told() == ["charging", "told", "charged", "charging again"]
