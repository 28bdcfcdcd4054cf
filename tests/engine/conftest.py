"""Closes what the tests of this folder leave open, as a worker would."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.engine import harness


@pytest.fixture(autouse=True)
def _close_executions() -> Iterator[None]:
    yield
    while harness.made:
        harness.made.pop().close()
