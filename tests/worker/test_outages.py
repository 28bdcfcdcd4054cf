"""A database that goes away under a worker: it stays calm, says so in a line, and leaves when it is told to."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import pytest
from tests.recovery.kit import until

from ironflow import Context, Engine, step, workflow
from ironflow.config import Settings
from ironflow.errors import EngineClosed
from ironflow.store import postgres_link
from ironflow.testing.postgres import PostgresServer

DRAIN_S = 0.5


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with PostgresServer(fsync=False) as server:
        yield server


@step
async def endless() -> None:
    await asyncio.Event().wait()


@workflow
async def held(ctx: Context) -> None:
    await endless()


async def test_a_worker_that_is_told_to_leave_does_not_wait_for_a_database_that_is_away(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(database_url=own_server.url("postgres"), drain_timeout_ms=round(DRAIN_S * 1000))
    engine = Engine(settings=settings, workflows=[held])
    await engine.__aenter__()
    assert engine.worker is not None
    worker = engine.worker
    await engine.start(held)
    await until(lambda: any(segment.executing for segment in worker.segments.values()))
    own_server.stop()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        await engine.close()
    assert time.monotonic() - began < DRAIN_S + 3.5, "2 s are promised; the rest is for a busy machine"
    assert not [record for record in caplog.records if record.exc_info]


async def test_an_outage_is_a_line_per_part_and_no_traceback(
    own_server: PostgresServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link.Patience, "limit_ms", 50)
    settings = Settings(
        database_url=own_server.url("postgres"), drain_timeout_ms=0, recovery_interval_ms=20,
        stale_claim_recovery_interval_ms=20, waker_interval_ms=20, renewal_interval_ms=100, lease_ttl_ms=300,
        session_ttl_ms=3_000, suspect_after_ms=None,
    )  # fmt: skip
    engine = Engine(settings=settings, workflows=[held])
    await engine.__aenter__()
    assert engine.worker is not None
    scanner = engine.worker.dispatcher.drivers[0]
    with caplog.at_level(logging.WARNING, "ironflow"):
        own_server.stop()
        await until(lambda: scanner.failures >= 5)
        await engine.close()
    told = [record.getMessage() for record in caplog.records]
    assert sum("a pass of capacity-scanner failed" in line for line in told) == 1, told
    assert not [record for record in caplog.records if record.exc_info]
    assert not [line for line in told if "given up" in line], "nothing executed here, so nothing is given up"
    with pytest.raises(EngineClosed):
        await engine.get("anything")
