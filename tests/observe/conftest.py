"""A registry that is closed again, and the folder and stores that the tests of recovery have."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.recovery.conftest import folder, open_store, sqlite, store

from ironflow.observe.metrics import Metrics

__all__ = ["folder", "metrics", "open_store", "sqlite", "store"]


@pytest.fixture(scope="session", autouse=True)
def _quiet_exporters() -> None:
    """Some tests have no collector on purpose, and what exporters say of that would outlast them."""
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    """The registry of this process, for one test."""
    made = Metrics()
    yield made
    made.close()
