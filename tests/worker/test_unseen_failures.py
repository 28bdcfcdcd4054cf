"""A failure that nobody in a run looked at is told in the log with the run's end, and stands in its terminal event."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

import ironflow
from ironflow.errors import RunFailed


@ironflow.step
async def last(n: int) -> int:
    return n


@ironflow.workflow
async def forgetful(ctx: ironflow.Context, how_many: int) -> int:
    async def fail() -> None:
        raise ValueError("nobody looks")

    forgotten = [asyncio.create_task(fail()) for _ in range(how_many)]
    return await last(len(forgotten))


@ironflow.workflow
async def leaves(ctx: ironflow.Context) -> int:
    async def leave() -> None:
        raise SystemExit(3)

    left = asyncio.create_task(leave(), name="who leaves")
    await last(1)
    return left.done()


MORE = {0: None, 1: "", 1_234: " (and 1,233 more, see its terminal event)"}


@pytest.mark.parametrize("how_many", MORE)
async def test_what_nobody_looked_at_is_told_once_with_the_end(
    how_many: int, sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ironflow.open(sqlite_url) as engine:
        with caplog.at_level(logging.WARNING, "ironflow.runs"):
            assert await engine.run(forgetful, how_many, id="r") == how_many
        told = json.loads((await engine.journal("r"))[-1].payload or "{}").get("unreported", [])
    assert len(told) == how_many
    first = "in run r of forgetful, task main.1 failed and was never awaited: ValueError('nobody looks')"
    lines = [record.getMessage() for record in caplog.records if record.name == "ironflow.runs"]
    more = MORE[how_many]
    assert lines == ([] if more is None else [first + more])


async def test_an_exit_in_a_task_that_nobody_awaited_fails_the_run(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ironflow.open(sqlite_url) as engine:
        with pytest.raises(RunFailed, match="SystemExit: 3") as failed:
            await engine.run(leaves)
        assert isinstance(failed.value.__cause__, SystemExit)
        assert await engine.run(forgetful, 1) == 1, "the worker goes on"
    assert "task who leaves failed and was never awaited: SystemExit(3)" in caplog.text
