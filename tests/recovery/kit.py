"""What the tests of workers and recovery share: short settings, a condition to wait for, a scanner with a clock."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.store.build import activate, answer

from ironflow.config import Settings
from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.model.run import RunRow
from ironflow.model.transition import APPLIED
from ironflow.store.base import Store

#: Nothing here takes so long, in seconds; a condition that has not come true by then never will.
PATIENCE = 15.0
#: A time to live that was over a second ago: a reader's view of the database's clock may be some ms behind.
EXPIRED = -1_000


def quick(**changes: Any) -> Settings:
    """Settings under which clocks speak within a second, and a healthy worker on a busy machine is still safe."""
    values: dict[str, Any] = {
        "renewal_interval_ms": 100,
        "lease_ttl_ms": 1_000,
        "session_ttl_ms": 1_000,
        "reservation_ttl_ms": 500,
        "recovery_interval_ms": 50,
        "stale_claim_recovery_interval_ms": 50,
        "stale_claim_threshold_ms": 1_000,
        "suspect_after_ms": None,
        "drain_timeout_ms": 0,
    }
    return Settings(**{**values, **changes})


async def until(condition: Callable[[], Any | Awaitable[Any]], what: str = "", patience: float = PATIENCE) -> Any:
    """Return the condition's value once it is true; the test fails if it never is."""
    deadline = time.monotonic() + patience
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"never came true: {what or inspect.getsource(condition).strip()}"
        await asyncio.sleep(0.005)


class Clock:
    """The monotonic clock of a scanner, by hand. Seconds."""

    def __init__(self) -> None:
        self.at = 1_000.0

    def __call__(self) -> float:
        return self.at


class Trusting(CapacityScanner):
    """A scanner that takes every clock at its word, however slow the machine of the test is."""

    def _may_trust_clocks(self) -> bool:
        return True

    _may_trust_silence = _may_trust_clocks


async def scanner(store: Store, clock: Clock | None = None, **settings: Any) -> CapacityScanner:
    """A scanner that trusts the clocks, or (with a clock of its own) one that has just made its first pass."""
    if clock is None:
        return Trusting(store, quick(**settings), lambda: 0.0)
    made = CapacityScanner(store, quick(recovery_interval_ms=1_000, **settings), clock)
    made._last = (clock(), store.now())
    return made


async def row(store: Store, run_id: str = "r1") -> RunRow:
    """The row of a run that exists."""
    found = await store.run(run_id)
    assert found is not None
    return found


async def audits(store: Store, run_id: str = "r1") -> list[str]:
    """What the audit log says was done to a run."""
    return sorted(entry["action"] for entry in await store.audits(run_id=run_id))


async def lose(store: Store, run_id: str = "r1", *, seq: int) -> None:
    """A worker takes the queued run and is never heard of again."""
    head = next(head for head in await store.peek(["order"], 10) if head.run_id == run_id)
    assert await answer(store, activate(head, seq, ttl=EXPIRED)) == APPLIED
