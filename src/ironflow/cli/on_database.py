"""A command's backend that is a database, opened in this process.

What only some commands need is imported when they do: a list must not wait for the engine.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ironflow.cli.database import hints_for, opened, settings_for
from ironflow.cli.follow import events
from ironflow.engine import commands, views
from ironflow.engine.declared import Declared, unknown
from ironflow.engine.why import holds
from ironflow.errors import RunNotFound
from ironflow.model.ids import split_tags
from ironflow.model.run import RunRow
from ironflow.store.base import Store
from ironflow.store.reader import RunFilter
from ironflow.worker import evidence

if TYPE_CHECKING:
    from ironflow.context.workflows import Workflow
    from ironflow.engine.starting import Start
    from ironflow.engine.why import Hold
    from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
    from ironflow.model.journal import Event
    from ironflow.runtime.handle import RunView

#: Runs that one read of a list brings.
_PAGE = 500


@asynccontextmanager
async def database(url: str | None, *, write: bool, make: bool) -> AsyncIterator[OnDatabase]:
    """Open a database; arguments and errors as of `cli.database.opened`."""
    settings = settings_for(url)
    with hints_for(url):
        async with opened(settings.database_url, write=write, make=make) as store:
            yield OnDatabase(store, settings.max_payload_bytes)


class OnDatabase:
    """See `backend.Backend`."""

    def __init__(self, store: Store, max_payload_bytes: int) -> None:
        self._store = store
        self._max_payload_bytes = max_payload_bytes

    def now(self) -> int:
        return self._store.now()

    async def run(self, run_id: str) -> RunRow | None:
        return await self._store.run(run_id)

    async def get(self, run_id: str) -> RunView:
        from ironflow.runtime.handle import look

        row = await self._store.run(run_id)
        if row is None:
            raise RunNotFound(f"no run has the id {run_id!r}")
        return await look(self._store, row)

    async def runs(self, filter: RunFilter) -> list[RunRow]:
        found: list[RunRow] = []
        before = filter.before
        while True:
            size = min(_PAGE, filter.limit - len(found))
            # Who has the database sees what all organisations have in it.
            page = await self._store.runs(replace(filter, before=before, limit=size, scope=None))
            found += page
            if len(page) < size or len(found) >= filter.limit:
                return found
            before = (page[-1].created_at, page[-1].run_id)

    async def journal(self, run_id: str, after: int) -> list[Event]:
        return await self._store.journal(run_id, after)

    def follow(self, run_id: str) -> AsyncGenerator[list[Event], None]:
        return events(self._store, run_id)

    async def holds(self, run_id: str) -> list[Hold]:
        return await holds(self._store, run_id, evidence.living)

    async def steer(self, run_id: str, verb: str, **options: bool) -> dict[str, Any]:
        changed = await getattr(commands, verb)(self._store, run_id, commands.local_user(), **options)
        row = await self._store.run(run_id)
        return views.steered(run_id, row.state if row is not None else None, changed=changed)

    async def delete(self, row: RunRow) -> dict[str, Any]:
        if not await self._store.delete_run(row.run_id, commands.local_user(), row.scope):
            raise RunNotFound(f"no run has the id {row.run_id!r}")
        return views.steered(row.run_id, None, changed=True)

    async def create(self, wf: Workflow[Any, Any] | str, input: Any, options: Start) -> tuple[RunRow, bool]:
        from ironflow.engine import starting

        store = self._store
        spec = await self._declared(wf) if isinstance(wf, str) else wf.spec
        row, new = await starting.create(store, spec, input, options, self._max_payload_bytes)
        if new:
            store.notify("queue", await store.sessions())
        return row, new

    async def _declared(self, name: str) -> Declared:
        known = {row["name"]: row for row in await self._store.workflows()}
        if name not in known:
            raise unknown(name, known)
        return Declared(known[name])

    async def workflows(self) -> list[dict[str, Any]]:
        return [{**row, "worker_tags": split_tags(row["worker_tags"])} for row in await self._store.workflows()]

    async def switch(self, workflow: str, *, to_pause: bool) -> dict[str, Any]:
        store = self._store
        known = {row["name"] for row in await store.workflows()} | set(await store.paused_workflows())
        if workflow not in known:
            raise unknown(workflow, known)
        changed = await (store.pause_workflow if to_pause else store.resume_workflow)(workflow, commands.local_user())
        if changed and not to_pause:
            store.notify("queue", await store.sessions())
        return views.switched(workflow, (await store.paused_workflows()).get(workflow), changed=changed)

    async def leases(self) -> list[LeaseRow]:
        return await self._store.leases()

    async def sessions(self) -> list[SessionRow]:
        return await self._store.sessions()

    def living(self, sessions: list[SessionRow]) -> list[SessionRow]:
        return evidence.living(sessions)

    async def queue(self, limit: int) -> list[QueueRow]:
        return await self._store.queue(limit)

    async def lanes(self) -> list[dict[str, Any]]:
        return await self._store.lanes()

    async def stats(self) -> dict[str, Any]:
        store = self._store
        leases, due = len(await store.leases()), await store.next_due()
        return views.stats(await store.counts(), self.living(await store.sessions()), leases, due)

    async def audits(self, limit: int, run_id: str | None) -> list[dict[str, Any]]:
        return await self._store.audits(limit, run_id)
