"""A node for each test: on both databases, or on one of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.recovery.conftest import folder, open_store, sqlite, store
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
