"""The same shared folder as the tests of recovery have."""

from __future__ import annotations

from tests.recovery.conftest import folder

__all__ = ["folder"]
