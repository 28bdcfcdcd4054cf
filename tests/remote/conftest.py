"""A folder that all processes of a test share, as the tests of recovery have it."""

from __future__ import annotations

from tests.recovery.conftest import folder

__all__ = ["folder"]
