"""Runs that are deleted because of their age are counted by whoever deleted them: a worker, or a server."""

from __future__ import annotations

import asyncio

from tests.observe.build import value
from tests.observe.test_serving import get
from tests.recovery.kit import quick, until
from tests.server.kit import patient
from tests.store.build import ended

from ironflow import Engine
from ironflow.observe.metrics import Metrics
from ironflow.server.serving import bind, serving
from ironflow.store.base import Store

HOUR = 3_600_000
NAME = "ironflow_runs_deleted_total"


async def old(store: Store, count: int) -> None:
    for n in range(count):
        await ended(store, f"r{n}", store.now() - 2 * HOUR)


async def test_a_worker_counts_the_runs_that_it_deleted(store: Store, store_url: str) -> None:
    await old(store, 3)
    settings = quick(database_url=store_url, run_retention_ms=HOUR)
    async with Engine(settings=settings, metrics_address="127.0.0.1:0") as engine:
        listener = engine._observation._listener
        assert listener is not None
        port = listener.port

        async def counted() -> bool:
            status, body = await asyncio.to_thread(get, port)
            return status == 200 and f"{NAME} 3.0" in body.decode()

        await until(counted)


async def test_a_server_counts_the_runs_that_it_deleted(store: Store, store_url: str) -> None:
    await old(store, 3)
    settings = patient(run_retention_ms=HOUR)
    async with serving(settings, store_url, bind("127.0.0.1", 0), metrics=True) as node:
        assert node.observation is not None
        metrics = node.observation.metrics
        assert isinstance(metrics, Metrics)
        await until(lambda: value(metrics, NAME) == 3)
