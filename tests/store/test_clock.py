"""The clock of a store on this host: small steps back are waited for, a clock that was wrong is not."""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.recovery.kit import Clock, scanner
from tests.store.build import session
from tests.store.conftest import Open

import ironflow
from ironflow import Context, workflow
from ironflow.engine.doctor import examine
from ironflow.store import clock as clocks
from ironflow.store.clock import CREDIBLE_MS, Floored

#: Milliseconds since 1970 at the first of December 2026, 6 o'clock; and how wrong the clock of a test is, ms.
SIX = 1_796_104_800_000
WRONG_MS = 50 * 60_000


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ironflow.store"]


def test_a_small_step_back_makes_time_stand_still(caplog: pytest.LogCaptureFixture) -> None:
    host = [SIX]
    clock = Floored(lambda: host[0])
    for step, now, ahead in ((0, 0, 0), (-CREDIBLE_MS, 0, CREDIBLE_MS), (-1, 0, 1), (1, 1, 0)):
        host[0] = SIX + step
        assert (clock() - SIX, clock.ahead()) == (now, ahead)
    assert warnings(caplog) == []


def test_a_clock_that_was_wrong_is_followed_back_and_both_times_are_told(caplog: pytest.LogCaptureFixture) -> None:
    host = [SIX + WRONG_MS]
    clock = Floored(lambda: host[0])
    clock()
    host[0] = SIX
    assert (clock.ahead(), clock(), clock()) == (0, SIX, SIX)
    [told] = warnings(caplog)
    assert "set back from 2026-12-01 06:50:00 UTC to 2026-12-01 06:00:00 UTC" in told


def test_a_stored_time_is_waited_for_only_if_it_is_credible(caplog: pytest.LogCaptureFixture) -> None:
    clock = Floored(lambda: SIX)
    clock.saw(None)
    clock.saw(SIX + CREDIBLE_MS)
    assert clock() == SIX + CREDIBLE_MS
    assert warnings(caplog) == []
    for stored in (SIX + WRONG_MS, SIX + WRONG_MS, SIX + WRONG_MS - 1):
        clock.saw(stored)
    assert clock() == SIX + CREDIBLE_MS
    [told] = warnings(caplog)
    assert "knows of 2026-12-01 06:50:00 UTC, and the clock of this host says 2026-12-01 06:00:00 UTC" in told


def test_a_time_beyond_the_calendar_is_told_as_well(caplog: pytest.LogCaptureFixture) -> None:
    Floored(lambda: SIX).saw(1 << 62)
    assert f"knows of {1 << 62} ms" in warnings(caplog)[0]


async def test_a_stored_time_that_cannot_be_true_is_not_waited_for(sqlite_url: str, open_store: Open) -> None:
    first = await open_store(sqlite_url, clock=lambda: SIX + WRONG_MS)
    await first.open_session(session(first))
    second = await open_store(sqlite_url, clock=lambda: SIX)
    assert second.now() == SIX


async def test_a_scanner_is_not_patient_until_a_time_that_was_wrong(sqlite_url: str, open_store: Open) -> None:
    host = [SIX]
    store = await open_store(sqlite_url, clock=lambda: host[0])
    eye = await scanner(store, Clock())
    for wrong in (WRONG_MS, 0):
        host[0] = SIX + wrong
        await eye.run_once()
    assert eye._grace_until <= SIX + eye.settings.renewal_interval_ms


@workflow
async def nap(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


async def test_timers_fire_after_the_clock_was_wrong_for_a_while(
    sqlite_url: str, open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    host_is_wrong_by = 0
    monkeypatch.setattr(clocks, "_time_ns", lambda: time.time_ns() + host_is_wrong_by)
    async with asyncio.timeout(30):
        async with ironflow.open(sqlite_url, workflows=[nap]) as engine:
            for wrong_ms in (0, WRONG_MS, 0):
                host_is_wrong_by = wrong_ms * 1_000_000
                assert await engine.run(nap, 0.05) == "slept"
        async with ironflow.open(sqlite_url, workflows=[nap]) as engine:
            assert await engine.run(nap, 0.05) == "slept"
    assert await examine(await open_store(sqlite_url)) == []
