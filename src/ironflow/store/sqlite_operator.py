"""What people change on SQLite beside their runs: workflows that are held, keys, and runs that are deleted.

Each is one transaction with its entry in the audit log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import Audit
from ironflow.store import rows
from ironflow.store.sqlite_batch import write_audits
from ironflow.store.sqlite_change import SqliteChange


class SqliteOperator(SqliteChange):
    """The part of the store that people change things through."""

    async def pause_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool:
        """See `Store.pause_workflow`."""
        return await self._hold("pause_workflow", "workflow.pause", workflow, actor, scope)

    async def resume_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool:
        """See `Store.resume_workflow`."""
        return await self._hold("resume_workflow", "workflow.resume", workflow, actor, scope)

    async def _hold(self, name: str, action: str, workflow: str, actor: str, scope: Scope) -> bool:
        def work(connection: sqlite3.Connection, now: int) -> bool:
            values = rows.scoped(scope, workflow=workflow, now=now, actor=actor)
            changed = bool(self._execute(connection, name, **values).fetchall())
            if changed:
                write_audits(connection, [Audit(action, actor, None, {"workflow": workflow}, scope)], now)
            return changed

        return await self._change(work)

    # ---- keys
    async def add_key(self, key: KeyRow, audit: Audit) -> bool:
        """See `Store.add_key`."""

        def work(connection: sqlite3.Connection, now: int) -> bool:
            added = bool(self._execute(connection, "add_key", **rows.values_of(key)).fetchall())
            if added:
                write_audits(connection, [audit], now)
            return added

        return await self._change(work)

    async def revoke_key(self, key_id: str, actor: str) -> bool:
        """See `Store.revoke_key`."""
        if rows.unheard_of((key_id,)):
            return False

        def work(connection: sqlite3.Connection, now: int) -> bool:
            found = self._execute(connection, "revoke_key", key_id=key_id, now=now).fetchall()
            if found:
                write_audits(connection, [rows.revoked(found[0], key_id, actor)], now)
            return bool(found)

        return await self._change(work)

    async def used_keys(self, used: Mapping[str, int]) -> None:
        """See `Store.used_keys`."""
        pairs = json.dumps(list(used.items()))
        await self._change(lambda connection, now: self._execute(connection, "used_keys", pairs=pairs))

    # ---- deleting
    async def delete_run(self, run_id: str, actor: str, scope: Scope) -> bool:
        """See `Store.delete_run`."""
        if rows.unheard_of((run_id,)):
            return False

        def work(connection: sqlite3.Connection, now: int) -> bool:
            found = self._execute(connection, "lock_to_delete", **rows.scoped(scope, run_id=run_id)).fetchall()
            if not found:
                return False
            entry = rows.deleted(found[0], actor)
            for name in rows.DELETIONS:
                self._execute(connection, name, run_id=run_id)
            write_audits(connection, [entry], now)
            return True

        return await self._change(work, short=False)
