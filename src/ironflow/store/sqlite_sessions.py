"""The sessions of workers on SQLite: they open, end, come under suspicion, and say which workflows they have."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from ironflow.model.capacity import SessionRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.suspicion import Suspicion
from ironflow.store import rows
from ironflow.store.base import WorkflowSeen
from ironflow.store.sqlite_change import SqliteChange


class SqliteSessions(SqliteChange):
    """The part of the store that changes sessions."""

    async def open_session(self, session: SessionRow) -> bool:
        """See `Store.open_session`."""
        values = rows.values_of(session)

        def work(connection: sqlite3.Connection, now: int) -> bool:
            return bool(self._execute(connection, "open_session", **values).fetchall())

        return await self._change(work)

    async def move_session(self, session_id: str, wake_address: str | None, ttl_ms: int) -> SessionRow | None:
        """See `Store.move_session`."""
        values = {"session_id": session_id, "wake_address": wake_address}

        def work(connection: sqlite3.Connection, now: int) -> SessionRow | None:
            moved = self._execute(connection, "move_session", now=now, expires_at=now + ttl_ms, **values).fetchall()
            return SessionRow(*moved[0]) if moved else None

        return await self._change(work)

    async def close_session(self, session_id: str) -> list[str]:
        """See `Store.close_session`."""
        return await self._change(lambda connection, now: self._end(connection, session_id, now))

    async def expire_session(self, session_id: str, suspicion: Suspicion | None = None) -> list[str] | None:
        """See `Store.expire_session`."""
        asked = {"session_id": session_id, **rows.of_suspicion(suspicion)}

        def work(connection: sqlite3.Connection, now: int) -> list[str] | None:
            lost = self._execute(connection, "session_lost", now=now, **asked).fetchall()
            return self._end(connection, session_id, now) if lost else None

        return await self._change(work)

    def _end(self, connection: sqlite3.Connection, session_id: str, now: int) -> list[str]:
        held = self._execute(connection, "runs_of_session", session_id=session_id).fetchall()
        self._execute(connection, "expire_leases_of_session", session_id=session_id, now=now)
        self._execute(connection, "expire_reservations_of_session", session_id=session_id, now=now)
        self._execute(connection, "delete_session", session_id=session_id)
        return [run_id for (run_id,) in held]

    async def suspect(self, session_id: str) -> bool:
        """See `Store.suspect`."""

        def work(connection: sqlite3.Connection, now: int) -> bool:
            return bool(self._execute(connection, "suspect_session", session_id=session_id, now=now).fetchall())

        return await self._change(work)

    async def hold_back(self, within: int, older_than: int) -> None:
        """See `Store.hold_back`."""

        def work(connection: sqlite3.Connection, now: int) -> None:
            self._execute(connection, "hold_back", now=now, within=within, older_than=older_than)

        await self._change(work)

    async def drain(self, session_id: str) -> bool:
        """See `Store.drain`."""

        def work(connection: sqlite3.Connection, now: int) -> bool:
            return bool(self._execute(connection, "drain_session", session_id=session_id).fetchall())

        return await self._change(work)

    async def saw_workflows(self, seen: Iterable[WorkflowSeen], scope: Scope = DEFAULT) -> None:
        """See `Store.saw_workflows`."""

        def work(connection: sqlite3.Connection, now: int) -> None:
            for one in seen:
                values = rows.scoped(scope, now=now, **rows.values_of(one))
                [(new,)] = self._execute(connection, "saw_workflow", **values).fetchall()
                if new:
                    known = rows.scoped(scope, name=one.name, kept=rows.VERSIONS_KEPT)
                    self._execute(connection, "forget_versions", **known)

        await self._change(work)
