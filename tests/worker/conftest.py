"""The same stores and the same shared folder as the tests of recovery have."""

from __future__ import annotations

from tests.recovery.conftest import folder, open_store, sqlite, store

__all__ = ["folder", "open_store", "sqlite", "store"]
