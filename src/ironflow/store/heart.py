"""The renewal path: what the thread that renews says to a store, and what it hears.

Apart from `Store` because it is another kind of thing: synchronous, on a connection of its own, in a thread that shares
nothing with the loop whose leases it keeps alive. One implementation speaks to each database, a third to a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

REFRESHED = "refreshed"
LEASE_STALE = "stale"
LEASE_UNKNOWN = "unknown"

#: A lease that is to be renewed: (run_id, execution_seq, token_hash, executing).
Held = tuple[str, int, str, bool]


@dataclass(slots=True)
class Verdict:
    """The answer to a heartbeat for one lease: refreshed, stale or unknown (asked again at the next one)."""

    run_id: str
    execution_seq: int
    verdict: str


class Beat(NamedTuple):
    """The answer to a heartbeat.

    `known`: the session still exists. `draining`: somebody wishes that it takes nothing new and leaves. `verdicts`: one
    for each lease that was named, in that order.
    """

    known: bool
    draining: bool
    verdicts: list[Verdict]


class Heart(Protocol):
    """See the module's docstring. Made, used and closed in one thread."""

    def beat(self, session_id: str, session_ttl_ms: int, lease_ttl_ms: int, credits: int, held: Sequence[Held]) -> Beat:
        """Push the clocks of one session and of the leases it names. A suspicion against the session ends with it.

        Args:
            session_id: the session.
            session_ttl_ms, lease_ttl_ms: how long session and leases hold from now, in milliseconds.
            credits: its free slots.
            held: every lease to renew; others are left to expire.

        Raises:
            StoreError, ServerError: nothing is known to be renewed; the worker tries again.
        """
        ...

    def close(self) -> None:
        """Give the connection back."""
        ...
