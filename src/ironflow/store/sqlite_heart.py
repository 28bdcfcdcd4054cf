"""The renewal path on SQLite: one short transaction per heartbeat, in the thread that renews.

It has a connection of its own and waits for its turn like any writer, so a loop that is blocked, or a batch
that is under way, does not cost a worker its leases.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence

from ironflow.store.dialect import Statement
from ironflow.store.heart import LEASE_STALE, REFRESHED, Beat, Held, Verdict
from ironflow.store.sqlite_connection import explained
from ironflow.store.sqlite_file import DatabaseFile
from ironflow.store.turnstile import Turnstile


class SqliteHeart:
    """See `Heart`."""

    def __init__(
        self,
        file: DatabaseFile,
        turnstile: Turnstile,
        now: Callable[[], int],
        statements: Mapping[str, Statement],
    ) -> None:
        self._file = file
        self._turnstile = turnstile
        self._now = now
        self._beat_session = statements["beat_session"].text
        self._renew_leases = statements["renew_leases"].text
        with explained(file.name):
            self._connection = file.connect(cache_kib=2 * 1024)

    def beat(
        self, session_id: str, session_ttl_ms: int, lease_ttl_ms: int, credits: int, held: Sequence[Held]
    ) -> Beat:
        """See `Heart.beat`."""
        with explained(self._file.name), self._turnstile.turn():
            self._file.check()
            connection = self._connection
            connection.execute("begin immediate")
            try:
                draining, renewed = self._renew(connection, session_id, (session_ttl_ms, lease_ttl_ms), credits, held)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
        verdicts = [
            Verdict(run_id, seq, REFRESHED if (run_id, seq) in renewed else LEASE_STALE) for run_id, seq, _, _ in held
        ]
        return Beat(draining is not None, bool(draining), verdicts)

    def _renew(
        self,
        connection: sqlite3.Connection,
        session_id: str,
        ttls_ms: tuple[int, int],
        credits: int,
        held: Sequence[Held],
    ) -> tuple[int | None, set[tuple[str, int]]]:
        """Whether the session is wished to drain (None: it is gone), and which leases were renewed."""
        now = self._now()
        session = {"session_id": session_id, "now": now, "expires_at": now + ttls_ms[0], "credits": credits}
        alive = connection.execute(self._beat_session, session).fetchall()
        if not alive:
            return None, set()  # declared dead: its leases expired with it, and renewing one would revive it
        draining: int = alive[0][0]
        if not held:
            return draining, set()
        named = {"held": json.dumps(held), "expires_at": now + ttls_ms[1], "session_id": session_id}
        return draining, set(connection.execute(self._renew_leases, named).fetchall())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
