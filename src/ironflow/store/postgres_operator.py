"""What people change on PostgreSQL beside their runs: workflows that are held, keys, and runs that are deleted.

Each is one transaction with its entry in the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import Audit
from ironflow.store import rows
from ironflow.store.postgres_change import PostgresChange
from ironflow.store.postgres_link import Connection
from ironflow.store.postgres_write import audits


class PostgresOperator(PostgresChange):
    """The part of the store that people change things through."""

    async def _tell(self, connection: Connection, entries: Sequence[Audit], now: int) -> None:
        await self._execute(connection, "insert_audits", **audits(entries, now))

    async def pause_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool:
        """See `Store.pause_workflow`."""
        return await self._hold("pause_workflow", "workflow.pause", workflow, actor, scope)

    async def resume_workflow(self, workflow: str, actor: str, scope: Scope = DEFAULT) -> bool:
        """See `Store.resume_workflow`."""
        return await self._hold("resume_workflow", "workflow.resume", workflow, actor, scope)

    async def _hold(self, name: str, action: str, workflow: str, actor: str, scope: Scope) -> bool:
        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                now = await self._decider.now(connection)
                values = rows.scoped(scope, workflow=workflow, now=now, actor=actor)
                changed = await self._execute(connection, name, **values)
                if changed:
                    await self._tell(connection, [Audit(action, actor, None, {"workflow": workflow}, scope)], now)
                return bool(changed)

        return await self._change(work)

    # ---- keys
    async def add_key(self, key: KeyRow, audit: Audit) -> bool:
        """See `Store.add_key`."""

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                now = await self._decider.now(connection)
                added = await self._execute(connection, "add_key", **rows.values_of(key))
                if added:
                    await self._tell(connection, [audit], now)
                return bool(added)

        return await self._change(work)

    async def revoke_key(self, key_id: str, actor: str) -> bool:
        """See `Store.revoke_key`."""
        if rows.unheard_of((key_id,)):
            return False

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                now = await self._decider.now(connection)
                found = await self._execute(connection, "revoke_key", key_id=key_id, now=now)
                if found:
                    await self._tell(connection, [rows.revoked(found[0], key_id, actor)], now)
                return bool(found)

        return await self._change(work)

    async def used_keys(self, used: Mapping[str, int]) -> None:
        """See `Store.used_keys`."""
        ids, times = list(used), list(used.values())
        await self._change(lambda connection: self._execute(connection, "used_keys", ids=ids, times=times))

    # ---- deleting
    async def delete_run(self, run_id: str, actor: str, scope: Scope) -> bool:
        """See `Store.delete_run`."""
        if rows.unheard_of((run_id,)):
            return False

        async def work(connection: Connection) -> bool:
            async with connection.transaction():
                found = await self._execute(connection, "lock_to_delete", **rows.scoped(scope, run_id=run_id))
                if not found:
                    return False
                entry = rows.deleted(found[0], actor)
                for name in rows.DELETIONS:
                    await self._execute(connection, name, run_id=run_id)
                await self._tell(connection, [entry], await self._decider.now(connection))
                return True

        return await self._change(work)
