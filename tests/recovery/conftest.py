"""Stores for these tests, as for those of the store itself."""

from __future__ import annotations

from tests.store.conftest import open_store, store

__all__ = ["open_store", "store"]
