"""The driver of the loops: no interval, no error and no full batch ends one."""

from __future__ import annotations

import logging

import pytest
from tests.recovery.kit import until

from ironflow.config import Settings
from ironflow.errors import StoreUnreachable
from ironflow.loops.driver import Driver, Report


class Loop:
    """Does what its script says, pass after pass: an error, or a report."""

    name = "scripted"

    def __init__(self, script: list[Report | Exception]) -> None:
        self.script = script
        self.passes = 0

    async def run_once(self) -> Report:
        self.passes += 1
        step = self.script.pop(0) if self.script else Report()
        if isinstance(step, Exception):
            raise step
        return step


async def test_p19_an_error_in_one_pass_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop([RuntimeError("once"), Report({"found": 2})])
    driver = Driver(loop, 1)
    with caplog.at_level(logging.ERROR):
        driver.start()
        await until(lambda: loop.passes > 2)
        await driver.stop()
    assert (driver.failures, driver.counts) == (1, {"found": 2})
    assert "scripted" in caplog.text


async def test_a_database_that_is_away_is_told_once_without_a_traceback_and_once_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = Loop([*(StoreUnreachable("cannot reach it") for _ in range(3)), Report()])
    driver = Driver(loop, 1)
    with caplog.at_level(logging.INFO, "ironflow.loops"):
        driver.start()
        await until(lambda: loop.passes > 4)
        await driver.stop()
    assert driver.failures == 3
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("WARNING", None), ("INFO", None)]
    assert "a pass of scripted failed, and is tried until it succeeds: cannot reach it" in caplog.text
    assert "a pass of scripted succeeds again" in caplog.text


@pytest.mark.parametrize("value", ["abc", "0", "-5s", ""])
def test_p19_no_value_of_the_interval_stops_the_scanner(value: str) -> None:
    assert Settings.load(env={"IRONFLOW_RECOVERY_INTERVAL": value}).recovery_interval_ms == 1_000
    assert Settings.load(env={"IRONFLOW_RECOVERY_INTERVAL": "5s"}).recovery_interval_ms == 5_000


async def test_a_full_batch_is_followed_by_the_next_at_once_and_a_kick_shortens_the_wait() -> None:
    loop = Loop([Report(more=True), Report(more=True)])
    driver = Driver(loop, 3_600_000)
    driver.start()
    await until(lambda: loop.passes == 3)
    driver.kick()
    await until(lambda: loop.passes == 4)
    await driver.stop()
