"""What tests ask of any journal."""

from __future__ import annotations

from collections.abc import Sequence

from ironflow.model.journal import Event


def dense(events: Sequence[Event], after: int = 0) -> bool:
    """Whether these events follow `after` without a gap."""
    return all(event.seq == after + i for i, event in enumerate(events, 1))
