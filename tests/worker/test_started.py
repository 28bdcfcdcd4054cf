"""When a run started is in its row, also if all that it did at first was to leave."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recovery.kit import quick

import ironflow
from ironflow import Context, Engine


@ironflow.workflow
async def ends_at_once(ctx: Context) -> int:
    return 1


@ironflow.workflow
async def sleeps_at_once(ctx: Context) -> int:
    await ctx.sleep(0.02)
    return 1


WORKFLOWS = [ends_at_once, sleeps_at_once]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda one: one.name)
@pytest.mark.parametrize("through_the_queue", [True, False])
async def test_every_run_that_ended_says_when_it_started(
    store_url: str, workflow: ironflow.Workflow[None, int], through_the_queue: bool
) -> None:
    options: dict[str, Any] = {"workflows": WORKFLOWS, "settings": quick()}
    async with Engine(store_url, **options) as working, Engine(store_url, worker=False, **options) as other:
        run = await (other if through_the_queue else working).start(workflow)
        assert await run.result() == 1
        row = (await other.get(run.id)).row
        assert row.started_at is not None
        assert row.ended_at is not None
        assert row.created_at <= row.started_at <= row.ended_at
