"""A node for each test: on both databases, or on one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.recovery.conftest import folder, open_store, sqlite, store
from tests.server.asking import Api, serving
from tests.server.kit import Served, served

__all__ = ["folder", "open_store", "sqlite", "store"]


@pytest.fixture
async def here(store_url: str) -> AsyncIterator[Served]:
    """A node on an empty database, once on each."""
    async with served(store_url) as one:
        yield one


@pytest.fixture
async def on_sqlite(sqlite_url: str) -> AsyncIterator[Served]:
    """A node on an empty SQLite file."""
    async with served(sqlite_url) as one:
        yield one


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Api]:
    """A node's app, asked without a socket, with a workflow `order`; once on each database."""
    async with serving(store_url) as made:
        await made.declare("order")
        yield made


@pytest.fixture
async def key(api: Api) -> str:
    """An admin's key for it."""
    return await api.key()
