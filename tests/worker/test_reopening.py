"""Retrying by hand, over several epochs: what has completed is never executed again."""

from __future__ import annotations

import asyncio

import pytest

import ironflow
from ironflow.engine import doctor
from ironflow.errors import InvalidTransition, RunCancelled, RunFailed

calls: list[str] = []
gate = asyncio.Event()
healed = False


@ironflow.step
async def first() -> str:
    calls.append("first")
    if not healed:
        raise ValueError("not yet")
    return "first"


@ironflow.step
async def second() -> str:
    calls.append("second")
    await gate.wait()
    return "second"


@ironflow.workflow
async def two_steps(ctx: ironflow.Context) -> str:
    return await first() + await second()


async def test_g36_a_step_that_failed_in_one_epoch_and_completed_in_the_next_is_kept_in_the_third(
    store_url: str,
) -> None:
    global healed, gate
    healed, gate = False, asyncio.Event()
    calls.clear()
    async with ironflow.open(store_url, workflows=[two_steps]) as engine:
        run = await engine.start(two_steps)
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        healed = True
        await run.retry()
        async with asyncio.timeout(20):
            while "second" not in calls:
                await asyncio.sleep(0)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=20)
        gate.set()
        await run.retry()
        assert await run.result(timeout=20) == "firstsecond"
        assert calls == ["first", "first", "second", "second"]
        assert await doctor.examine(engine.store, health=False) == []


async def test_g36_of_two_retries_at_once_one_is_refused(store_url: str) -> None:
    global healed, gate
    healed, gate = False, asyncio.Event()
    gate.set()
    async with ironflow.open(store_url, workflows=[two_steps]) as engine:
        run = await engine.start(two_steps)
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        healed = True
        answers = await asyncio.gather(run.retry(), run.retry(), return_exceptions=True)
        assert [type(answer) for answer in answers if answer is not True] == [InvalidTransition]
        assert await run.result(timeout=20) == "firstsecond"


effects: list[str] = []


@ironflow.step
async def charge() -> str:
    effects.append("charge")
    return "charged"


@ironflow.step
async def refund() -> None:
    effects.append("refund")


@ironflow.step
async def ship() -> str:
    if not healed:
        raise ValueError("no courier")
    effects.append("ship")
    return "shipped"


@ironflow.workflow
async def order(ctx: ironflow.Context) -> str:
    ctx.compensate(refund)
    await charge()
    return await ship()


async def test_what_was_refunded_is_never_shipped_by_a_retry(store_url: str) -> None:
    global healed
    healed = False
    effects.clear()
    async with ironflow.open(store_url, workflows=[order]) as engine:
        run = await engine.start(order)
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        healed = True
        with pytest.raises(InvalidTransition, match="--restart"):
            await run.retry()
        assert effects == ["charge", "refund"]
        await run.retry(restart=True)
        assert await run.result(timeout=20) == "shipped"
        assert effects == ["charge", "refund", "charge", "ship"]
        assert await doctor.examine(engine.store, health=False) == []


paid: list[tuple[str, str]] = []


@ironflow.step(retry=ironflow.Retry(2, backoff="1ms"))
async def pay() -> str:
    info = ironflow.step_info()
    paid.append((info.idempotency_key, info.call_key))
    if len(paid) % 2:
        raise TimeoutError("the bank did not answer")
    return info.call_key


@ironflow.step
async def pay_back() -> None:
    pass


@ironflow.step
async def pack_paid() -> None:
    if not healed:
        raise ValueError("nothing left")


@ironflow.workflow
async def paid_order(ctx: ironflow.Context) -> str:
    ctx.compensate(pay_back)
    key = await pay()
    await ctx.sleep(0.001)
    await pack_paid()
    return key


async def test_a_call_has_one_key_until_its_run_is_restarted_and_another_one_from_then_on(store_url: str) -> None:
    global healed
    healed = False
    paid.clear()
    async with ironflow.open(store_url, workflows=[paid_order]) as engine:
        run = await engine.start(paid_order)
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        healed = True
        await run.retry(restart=True)
        key = await run.result(timeout=20)
    tries, calls_made = {attempt for attempt, _ in paid}, [call for _, call in paid]
    assert (len(paid), len(tries)) == (4, 4)
    assert calls_made[0] == calls_made[1] != calls_made[2] == calls_made[3] == key
    assert not tries & set(calls_made)
