"""Errors of steps that Python cannot raise at an `await`: the workflow gets them, and may catch them, all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.harness import Harness

from ironflow.context import Context, step, workflow


class Closing(GeneratorExit):
    pass


UNRAISABLE = [GeneratorExit("from a library"), Closing("from a library"), StopIteration("from a library")]


@step
async def a() -> Any: ...


@step
async def cleanup() -> Any: ...


@workflow
async def catches(ctx: Context) -> Any:
    try:
        await a()
    except Exception as error:
        return [await cleanup(), type(error).__name__, type(error.__cause__).__name__, str(error)]


@workflow
async def cleans_up(ctx: Context) -> Any:
    try:
        await a()
    finally:
        await cleanup()


@workflow
async def gathers(ctx: Context) -> Any:
    (first, second) = await asyncio.gather(a(), cleanup(), return_exceptions=True)
    (collected,) = await ctx.parallel([a()], on_error="collect")
    return [type(first).__name__, second, type(collected).__name__]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("error", UNRAISABLE, ids=lambda error: type(error).__name__)
def test_the_workflow_catches_what_could_not_be_raised_in_it(error: BaseException, crash: bool) -> None:
    h = Harness(catches).fresh().fail("a", error)
    assert h.names() == ["cleanup"]
    if crash:
        h.recover()
    told = h.end("cleanup", "clean").output
    assert told[:2] == ["clean", "RuntimeError"]
    assert told[2] in (type(error).__name__, "StepFailed")
    assert told[3].startswith("the step raised")
    assert "from a library" in told[3]


@pytest.mark.parametrize("error", UNRAISABLE, ids=lambda error: type(error).__name__)
def test_its_clean_up_runs_and_the_run_fails_with_it(error: BaseException) -> None:
    h = Harness(cleans_up).fresh().fail("a", error).end("cleanup")
    assert "from a library" in str(h.error)
    assert h.result["failed_steps"] == ["main/1:a"]


def test_others_in_its_group_come_to_their_end() -> None:
    h = Harness(gathers).fresh().fail("a", UNRAISABLE[0]).end("cleanup", "clean").fail("a", UNRAISABLE[0])
    assert h.output == ["RuntimeError", "clean", "RuntimeError"]
