"""What people change on PostgreSQL beside their runs: workflows that are held, keys, and runs that are deleted.

Each is one transaction with its entry in the audit log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import Audit
from ironflow.store import rows
from ironflow.store.base import Deleted
from ironflow.store.postgres_change import PostgresChange
from ironflow.store.postgres_link import Connection, atomically
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
            async with atomically(connection):
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
            async with atomically(connection):
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
            async with atomically(connection):
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
            async with atomically(connection):
                await self._execute(connection, "straight")
                found = await self._execute(connection, "lock_to_delete", **rows.scoped(scope, run_id=run_id))
                if not found:
                    return False
                entry = rows.deleted(found[0], actor)
                going, ids = await self._whole(connection, [(run_id, "")], rows.ENDLESS)
                if not going:
                    raise rows.still_there(run_id)
                await self._remove(connection, ids)
                await self._tell(connection, [entry], await self._decider.now(connection))
                return True

        return await self._change(work)

    async def delete_expired(self, roots: Sequence[str], ended_before: int, scope: Scope) -> Deleted:
        """See `Store.delete_expired`."""
        asked = rows.scoped(scope, ids=list(roots), ended_before=ended_before)

        async def work(connection: Connection) -> Deleted:
            async with atomically(connection):
                await self._execute(connection, "straight")
                found = await self._execute(connection, "lock_expired", **asked)
                going, ids = await self._whole(connection, found, ended_before)
                if going:
                    await self._remove(connection, ids)
                    entry = rows.expired_audit(going.values(), len(ids), ended_before, scope)
                    await self._tell(connection, [entry], await self._decider.now(connection))
                return Deleted(len(going), len(ids))

        return await self._change(work)

    async def _whole(
        self, connection: Connection, roots: Sequence[Sequence[Any]], ended_before: int
    ) -> tuple[dict[str, str], list[str]]:
        """Lock what is below these locked roots; see `rows.whole_trees`.

        Asked once the roots are locked, so that none of them is opened again, and begins children, meanwhile.
        """
        below = await self._execute(connection, "descendants", ids=[root for root, _ in roots]) if roots else []
        ids = [run_id for _, run_id in below]
        ended = await self._execute(connection, "lock_ended", ids=ids, ended_before=ended_before) if ids else []
        return rows.whole_trees(roots, below, ended)

    async def _remove(self, connection: Connection, run_ids: Sequence[str]) -> None:
        """Delete everything of these runs but what the audit log has of them."""
        for name in rows.DELETIONS:
            await self._execute(connection, name, ids=list(run_ids))
