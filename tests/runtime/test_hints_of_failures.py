"""What is advised after a failure can be copied: it names the run, and `--restart` only where it is needed."""

from __future__ import annotations

import pytest

import ironflow
from ironflow import Context, Engine, RunFailed
from ironflow.errors import InvalidTransition


@ironflow.step
async def book(seat: int) -> int:
    return seat


@ironflow.workflow
async def fails(ctx: Context, undo: bool) -> None:
    if undo:
        ctx.compensate(book, await book(1))
    raise LookupError("no seats left")


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
