"""Errors of authors whose classes misbehave: they fail what raised them, once, and never the engine around it."""

from __future__ import annotations

import asyncio

import pytest
from tests.recovery.kit import quick

import ironflow
from ironflow.errors import RunFailed
from ironflow.model import journal as j


class Silent(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise LookupError("no text")

    __repr__ = __str__


class SilentRuntimeError(Silent, RuntimeError):
    """As above, of a class that asyncio raises, too."""


class Throttled(Exception):
    """Says how long to wait in a form of its own."""

    after_ms = "soon"


class Moody(Exception):
    """Is asked for what it does not have."""

    def __getattr__(self, name: str) -> object:
        raise LookupError(name)


class Offhand(ironflow.RetryAfterError):
    """Never says how long to wait."""

    def __init__(self) -> None:
        Exception.__init__(self, "later")


ODD = (Silent, SilentRuntimeError, Throttled, Moody, Offhand)


@ironflow.step(retry=ironflow.Retry(2, backoff=0))
async def breaks(which: int) -> None:
    raise ODD[which]


@ironflow.workflow(retry=ironflow.Retry(2, backoff=0))
async def breaks_in_a_step(ctx: ironflow.Context, which: int) -> None:
    await breaks(which)


@ironflow.workflow(retry=ironflow.Retry(2, backoff=0))
async def breaks_itself(ctx: ironflow.Context, which: int) -> None:
    raise ODD[which]


@ironflow.workflow(retry=ironflow.Retry(2, backoff=0))
async def breaks_behind_itself(ctx: ironflow.Context, which: int) -> None:
    async def unseen() -> None:
        raise ODD[which]

    kept = asyncio.create_task(unseen())
    await ctx.sleep(0)
    assert kept.done()
    raise ValueError("seen")


@pytest.mark.parametrize("which", range(len(ODD)), ids=[kind.__name__ for kind in ODD])
@pytest.mark.parametrize("flow", [breaks_in_a_step, breaks_itself, breaks_behind_itself], ids=lambda flow: flow.name)
async def test_an_error_whose_class_misbehaves_fails_its_run_and_nothing_else(
    sqlite_url: str, flow: ironflow.Workflow[int, None], which: int
) -> None:
    async with ironflow.open(sqlite_url, settings=quick()) as engine:
        run = await engine.start(flow, which)
        with pytest.raises(RunFailed):
            await run.result(timeout=10)
        kinds = [event.kind for event in await engine.store.journal(run.id)]
        assert (kinds.count(j.RUN_RETRYING), kinds.count(j.RUN_RECOVERED)) == (1, 0)
