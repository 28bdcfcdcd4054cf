"""A process without a worker tells the others of its starts, without reading who they are for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

import ironflow
from ironflow.model.capacity import SessionRow
from ironflow.runtime.bell import KNOWN_S, NOBODY_S, Bell
from ironflow.store.base import Store


@ironflow.workflow
async def nothing(ctx: ironflow.Context) -> None: ...


class Workers:
    """A store of which only this is asked: who works here, and to tell them."""

    def __init__(self) -> None:
        self.reads, self.told, self.away = 0, 0, False
        self.there = [cast(SessionRow, object())]
        self.go = asyncio.Event()

    async def sessions(self) -> list[SessionRow]:
        self.reads += 1
        await self.go.wait()
        if self.away:
            raise ConnectionError("away")
        return self.there

    def notify(self, topic: str, sessions: Sequence[SessionRow] = ()) -> None:
        self.told += 1


async def test_many_starts_read_the_workers_once_and_the_last_is_told_too() -> None:
    workers, now = Workers(), [0.0]
    bell = Bell(cast(Store, workers), lambda: now[0])
    for _ in range(100):
        bell.ring()
    assert (workers.reads, workers.told) == (0, 0)
    workers.go.set()
    await bell.close()
    assert (workers.reads, workers.told) == (1, 1)
    bell.ring()
    assert (workers.reads, workers.told) == (1, 2)
    now[0] += KNOWN_S
    bell.ring()
    await bell.close()
    assert (workers.reads, workers.told) == (2, 3)


async def test_where_nobody_works_nobody_is_told_and_the_first_to_come_is_soon_seen() -> None:
    workers, now = Workers(), [0.0]
    workers.there, someone = [], workers.there
    workers.go.set()
    bell = Bell(cast(Store, workers), lambda: now[0])
    for _ in range(3):
        bell.ring()
        await bell.close()
    assert (workers.reads, workers.told) == (1, 0)
    workers.there = someone
    now[0] += NOBODY_S
    bell.ring()
    await bell.close()
    assert (workers.reads, workers.told) == (2, 1)


async def test_a_database_that_is_away_harms_no_start_and_is_asked_again() -> None:
    workers = Workers()
    workers.away = True
    workers.go.set()
    bell = Bell(cast(Store, workers))
    bell.ring()
    await bell.close()
    workers.away = False
    bell.ring()
    await bell.close()
    assert (workers.reads, workers.told) == (2, 1)


async def test_an_engine_without_a_worker_reads_the_sessions_once_for_many_starts(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ironflow.open(store_url, worker=False) as engine:
        reads: list[Any] = []
        real = engine.store.sessions

        async def counted() -> list[SessionRow]:
            reads.append(1)
            return await real()

        monkeypatch.setattr(engine.store, "sessions", counted)
        for _ in range(20):
            await engine.start(nothing)
    assert len(reads) <= 2
