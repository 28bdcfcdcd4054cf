"""What is advised after a failure can be copied: it names the run, and `--restart` only where it is needed."""

from __future__ import annotations

import pytest

import ironflow
from ironflow import Context, Engine, RunFailed, StepInterrupted
from ironflow.errors import InvalidTransition


@ironflow.step
async def book(seat: int) -> int:
    return seat


@ironflow.workflow
async def fails(ctx: Context, undo: bool) -> None:
    if undo:
        ctx.compensate(book, await book(1))
    raise LookupError("no seats left")


@ironflow.workflow
async def cut_off(ctx: Context, among_others: bool) -> None:
    error = StepInterrupted("step main/1:pay was cut off")
    raise ExceptionGroup("of a group", [LookupError(), error]) if among_others else error


@pytest.mark.parametrize("among_others", [False, True])
async def test_who_may_pay_twice_by_a_retry_is_told_to_look_first(store_url: str, among_others: bool) -> None:
    async with Engine(store_url, workflows=[fails, cut_off]) as engine:
        for workflow, given, told in ((cut_off, among_others, True), (fails, False, False)):
            with pytest.raises(RunFailed) as failed:
                await engine.run(workflow, given)
            assert ("whether the step that was cut off took effect" in str(failed.value)) is told


@pytest.mark.parametrize("undo", [False, True])
async def test_the_advice_after_a_failure_fits_the_run(store_url: str, undo: bool) -> None:
    async with Engine(store_url, workflows=[fails]) as engine:
        run = await engine.start(fails, undo)
        with pytest.raises(RunFailed) as failed:
            await run.result()
        hint = failed.value.hint
        assert hint is not None
        assert "RUN" not in hint
        assert f"`ironflow runs journal {run.id}`" in hint
        assert (f"`ironflow runs retry {run.id}` keeps the finished steps" in hint) is not undo
        assert (f"`ironflow runs retry --restart {run.id}` executes every step again" in hint) is undo
        assert await run.retry(restart=undo) is True, "the advice can be followed"


async def test_a_refused_command_names_the_run_to_look_at(store_url: str) -> None:
    async with Engine(store_url, workflows=[fails]) as engine:
        run = await engine.start(fails, False)
        with pytest.raises(RunFailed):
            await run.result()
        for refused in (run.pause, run.resume):
            with pytest.raises(InvalidTransition) as told:
                await refused()
            assert told.value.hint == f"Look at the state with `ironflow runs get {run.id}`; nothing was changed."


async def test_whether_it_was_undone_may_be_unknown(store_url: str) -> None:
    async with Engine(store_url, worker=False) as engine:
        assert await engine.handle("gone")._undone() is False
