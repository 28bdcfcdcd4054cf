"""The sessions of workers on PostgreSQL: they open, end, come under suspicion, and say which workflows they have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ironflow.model.capacity import SessionRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.suspicion import Suspicion
from ironflow.store import rows
from ironflow.store.base import WorkflowSeen
from ironflow.store.postgres_change import PostgresChange
from ironflow.store.postgres_link import Connection


class PostgresSessions(PostgresChange):
    """The part of the store that changes sessions."""

    async def open_session(self, session: SessionRow) -> bool:
        """See `Store.open_session`."""
        values = rows.values_of(session)

        async def work(connection: Connection) -> bool:
            return bool(await self._execute(connection, "open_session", **values))

        return await self._change(work)

    async def move_session(self, session_id: str, wake_address: str | None, ttl_ms: int) -> SessionRow | None:
        """See `Store.move_session`."""
        values = {"session_id": session_id, "wake_address": wake_address}

        async def work(connection: Connection) -> SessionRow | None:
            now = await self._decider.now(connection)
            moved = await self._execute(connection, "move_session", now=now, expires_at=now + ttl_ms, **values)
            return SessionRow(*moved[0]) if moved else None

        return await self._change(work)

    async def close_session(self, session_id: str) -> list[str]:
        """See `Store.close_session`."""
        return await self._end_session("close_session", session_id) or []

    async def expire_session(self, session_id: str, suspicion: Suspicion | None = None) -> list[str] | None:
        """See `Store.expire_session`."""
        return await self._end_session("expire_session", session_id, **rows.of_suspicion(suspicion))

    async def _end_session(self, statement: str, session_id: str, **values: Any) -> list[str] | None:
        async def work(connection: Connection) -> list[str] | None:
            floor = self._clock.floor()
            [found] = await self._execute(connection, statement, floor=floor, session_id=session_id, **values)
            self._clock.saw(found["at"])  # what has expired now is to be found by the very next question
            return list(found["held"]) if found["ended"] else None

        return await self._change(work)

    async def suspect(self, session_id: str) -> bool:
        """See `Store.suspect`."""

        async def work(connection: Connection) -> bool:
            now = await self._decider.now(connection)
            return bool(await self._execute(connection, "suspect_session", session_id=session_id, now=now))

        return await self._change(work)

    async def hold_back(self, within: int, older_than: int) -> None:
        """See `Store.hold_back`."""

        async def work(connection: Connection) -> None:
            now = await self._decider.now(connection)
            await self._execute(connection, "hold_back", now=now, within=within, older_than=older_than)

        await self._change(work)

    async def drain(self, session_id: str) -> bool:
        """See `Store.drain`."""

        async def work(connection: Connection) -> bool:
            return bool(await self._execute(connection, "drain_session", session_id=session_id))

        return await self._change(work)

    async def saw_workflows(self, seen: Iterable[WorkflowSeen], scope: Scope = DEFAULT) -> None:
        """See `Store.saw_workflows`."""
        # In one order everywhere: two workers that start at once must not wait crosswise.
        ordered = sorted(seen, key=lambda one: (one.name, one.version))

        async def work(connection: Connection) -> None:
            now = await self._decider.now(connection)
            for one in ordered:
                values = rows.scoped(scope, now=now, **rows.values_of(one))
                [(new,)] = await self._execute(connection, "saw_workflow", **values)
                if new:
                    known = rows.scoped(scope, name=one.name, kept=rows.VERSIONS_KEPT)
                    await self._execute(connection, "forget_versions", **known)

        await self._change(work)
