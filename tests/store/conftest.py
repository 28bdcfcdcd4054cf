"""Stores for the tests of this folder; each is closed again, whatever its test did."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ironflow.store import connect
from ironflow.store.base import Store

Open = Callable[..., Awaitable[Store]]


@pytest.fixture
async def open_store() -> AsyncIterator[Open]:
    """Opens stores by address."""
    opened: list[Store] = []

    async def open_one(url: str, **options: object) -> Store:
        store = await connect(url, **options)  # type: ignore[arg-type]
        opened.append(store)
        return store

    yield open_one
    for store in reversed(opened):
        await store.close()


@pytest.fixture
async def store(store_url: str, open_store: Open) -> Store:
    """An empty store, once on each database."""
    return await open_store(store_url)


@pytest.fixture
async def sqlite(sqlite_url: str, open_store: Open) -> Store:
    """An empty SQLite store."""
    return await open_store(sqlite_url)
