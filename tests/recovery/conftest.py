"""Stores for these tests, as for those of the store itself; and a folder that all their processes share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.conftest import open_store, sqlite, store

__all__ = ["folder", "open_store", "sqlite", "store"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where bodies leave their lines and look for their gates, in this process and in those it starts."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("IRONFLOW_TEST_FOLDER", str(shared))
    return shared
