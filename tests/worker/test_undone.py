"""Transactional steps whose connection breaks at the commit: the run goes on at once, with what runs beside them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest
from tests.recovery.kit import quick, until
from tests.recovery.program import hold as hold_at
from tests.recovery.program import lines, open_gate, tell
from tests.store.relay import relayed
from tests.worker.sales import SHOP

import ironflow
from ironflow import Context, Engine
from ironflow.errors import RunFailed, StoreUnreachable
from ironflow.model import journal as j
from ironflow.model.transition import UNDONE, Transition
from ironflow.store import postgres_link
from ironflow.store.base import OpenTransaction
from ironflow.testing.relay import Relay
from ironflow.worker import undone

pytestmark = pytest.mark.usefixtures("folder")

#: A run that is left to its lease stands still for longer than any test waits.
LONG = {"lease_ttl_ms": 60_000, "session_ttl_ms": 60_000}


async def sell(connection: Any, item: str) -> str:
    """A line, and a row."""
    tell(f"sale {item}")
    await connection.execute("insert into shop values ($1)", item)
    return item.upper()


async def quarrel(connection: Any) -> None:
    """Fails with an outage of its own."""
    raise StoreUnreachable("another database")


@ironflow.step
async def undo(item: str) -> None:
    """A line."""
    tell(f"undo {item}")


@ironflow.step(at_most_once=True)
async def hold_once(name: str) -> str:
    """Holds, and must not be cut off."""
    return await hold_at.fn(name)  # type: ignore[attr-defined, no-any-return]


@ironflow.workflow
async def deal(ctx: Context, item: str) -> str:
    """One sale, which is undone if the run fails."""
    ctx.compensate(undo, item)
    return await ctx.transaction(sell, item)


@ironflow.workflow
async def fair(ctx: Context, item: str) -> list[str]:
    """A sale beside a step that goes on."""
    return list(await ctx.parallel([hold_once("beside"), ctx.transaction(sell, item)]))


@ironflow.workflow
async def dispute(ctx: Context) -> None:
    """A transactional step whose own error looks like an outage."""
    await ctx.transaction(quarrel)


WORKFLOWS = [deal, fair, dispute]


@pytest.fixture
async def shop(postgres_url: str) -> AsyncIterator[tuple[str, Relay, str]]:
    """A database with the user's table: its address through a relay, the relay, and the address past it."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(SHOP)
    await connection.close()
    async with relayed(postgres_url) as (url, relay):
        yield url, relay, postgres_url


async def sold(url: str) -> list[str]:
    connection = await asyncpg.connect(url)
    found = [row[0] for row in await connection.fetch("select item from shop")]
    await connection.close()
    return found


async def kinds(engine: Engine, run_id: str) -> list[str]:
    return [event.kind for event in await engine.store.journal(run_id)]


def engine_on(url: str, **settings: Any) -> Engine:
    return ironflow.open(url, workflows=WORKFLOWS, settings=quick(**{**LONG, **settings}))


async def test_a_run_whose_commit_came_to_nothing_goes_on_at_once_and_nothing_is_charged(
    shop: tuple[str, Relay, str],
) -> None:
    url, relay, past = shop
    async with engine_on(url) as engine:
        relay.lose_request(rb"RELEASE SAVEPOINT")
        run = await engine.start(deal, "tea")
        assert await run.result(timeout=20) == "TEA"
        assert relay.lost == 1
        journal = await kinds(engine, run.id)
        assert (journal.count(j.RUN_RELEASED), journal.count(j.RUN_RECOVERED)) == (1, 0)
        assert journal.count(j.STEP_COMPLETED) == 1
    assert await sold(past) == ["tea"]
    assert len(lines("sale tea")) == 2
    assert lines("undo") == []


async def test_what_runs_beside_it_is_not_cut_off(shop: tuple[str, Relay, str]) -> None:
    """It is executed by the next segment, which adopts it: a step that must not be repeated is none the wiser."""
    url, relay, past = shop
    async with engine_on(url) as engine:
        relay.lose_request(rb"RELEASE SAVEPOINT")
        run = await engine.start(fair, "tea")
        await until(lambda: len(lines("sale tea")) == 2 and lines("beside"))
        open_gate("beside")
        assert await run.result(timeout=20) == ["beside", "TEA"]
        assert relay.lost == 1
    assert await sold(past) == ["tea"]
    assert len(lines("beside")) == 1
    assert lines("cancelled") == []


async def test_commits_that_always_come_to_nothing_leave_the_run_to_its_lease_and_its_ceiling(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(undone, "LONGEST_S", 0.001)
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(SHOP)
    await connection.close()
    settings = {"lease_ttl_ms": 1_000, "session_ttl_ms": 1_000}
    async with engine_on(postgres_url, **settings) as engine:
        begin = engine.store.begin

        class Undoing:
            """Its connection always breaks."""

            def __init__(self, transaction: OpenTransaction) -> None:
                self.rollback = transaction.rollback

            async def commit(self, transition: Transition) -> str:
                await self.rollback()
                return UNDONE

        async def begin_undoing(body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
            value, transaction = await begin(body, deadline_ms=deadline_ms)
            return value, Undoing(transaction)

        engine.store.begin = begin_undoing  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING, "ironflow.worker"):
            run = await engine.start(deal, "tea")
            await until(lambda: "left to its lease" in caplog.text)
        assert len(lines("sale tea")) == undone.TRIES + 1
        engine.store.begin = begin  # type: ignore[method-assign]
        assert await run.result(timeout=20) == "TEA"
        assert (await engine.get(run.id)).row.lease_recoveries == 1
    assert await sold(postgres_url) == ["tea"]


async def test_a_transaction_that_cannot_be_had_is_an_outage_and_no_failure_of_the_step(
    shop: tuple[str, Relay, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The run failed, and was undone, because its database was away for a moment longer than it is waited for."""
    url, relay, past = shop
    async with engine_on(url, lease_ttl_ms=1_000, session_ttl_ms=1_000) as engine:
        begin = engine.store.begin

        async def begin_cut(body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
            engine.store.begin = begin  # type: ignore[method-assign]
            relay.cut()
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(postgres_link.Patience, "limit_ms", 50)
                try:
                    return await begin(body, deadline_ms=deadline_ms)
                finally:
                    await relay.up()

        engine.store.begin = begin_cut  # type: ignore[method-assign]
        with caplog.at_level(logging.WARNING, "ironflow.worker"):
            run = await engine.start(deal, "tea")
            assert await run.result(timeout=20) == "TEA"
        assert f"run {run.id} is left to its lease" in caplog.text
        assert j.STEP_FAILED not in await kinds(engine, run.id)
    assert await sold(past) == ["tea"]
    assert lines("undo") == []


async def test_an_outage_that_a_body_tells_of_is_its_own(postgres_url: str) -> None:
    async with engine_on(postgres_url) as engine:
        run = await engine.start(dispute)
        with pytest.raises(RunFailed, match="another database"):
            await run.result(timeout=20)
