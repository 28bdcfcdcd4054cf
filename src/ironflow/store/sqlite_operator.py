"""What people change on SQLite beside their runs: workflows that are held, keys, and runs that are deleted.

Each is one transaction with its entry in the audit log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import Audit
from ironflow.store import rows
from ironflow.store.base import Deleted
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
            going, ids = self._whole(connection, [(run_id, "")], rows.ENDLESS)
            if not going:
                raise rows.still_there(run_id)
            self._remove(connection, ids)
            write_audits(connection, [entry], now)
            return True

        return await self._change(work, short=False)

    async def delete_expired(self, roots: Sequence[str], ended_before: int, scope: Scope) -> Deleted:
        """See `Store.delete_expired`."""

        def work(connection: sqlite3.Connection, now: int) -> Deleted:
            asked = rows.scoped(scope, ids=json.dumps(list(roots)), ended_before=ended_before)
            found = self._execute(connection, "lock_expired", **asked).fetchall()
            going, ids = self._whole(connection, found, ended_before)
            if going:
                self._remove(connection, ids)
                write_audits(connection, [rows.expired_audit(going.values(), len(ids), ended_before, scope)], now)
            return Deleted(len(going), len(ids))

        return await self._change(work, short=False)

    def _whole(
        self, connection: sqlite3.Connection, roots: Sequence[Sequence[Any]], ended_before: int
    ) -> tuple[dict[str, str], list[str]]:
        """See `rows.whole_trees`. The transaction locks the whole file: nothing is in anybody else's hands."""
        below = self._execute(connection, "descendants", ids=json.dumps([root for root, _ in roots])).fetchall()
        ids = json.dumps([run_id for _, run_id in below])
        ended = self._execute(connection, "lock_ended", ids=ids, ended_before=ended_before).fetchall() if below else []
        return rows.whole_trees(roots, below, ended)

    def _remove(self, connection: sqlite3.Connection, run_ids: Sequence[str]) -> None:
        """Delete everything of these runs but what the audit log has of them."""
        ids = json.dumps(run_ids)
        for name in rows.DELETIONS:
            self._execute(connection, name, ids=ids)
