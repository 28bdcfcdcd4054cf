"""A command's backend that is a server, asked over HTTP with a key."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from ironflow.client import Client
from ironflow.client.address import api_key
from ironflow.context.workflows import Workflow
from ironflow.engine import views
from ironflow.engine.starting import Start
from ironflow.engine.why import Hold
from ironflow.errors import RunNotFound
from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.runtime.handle import RunView
from ironflow.store.reader import RunFilter


@asynccontextmanager
async def server(url: str | None, key_file: str | None) -> AsyncIterator[OnServer]:
    """Make the client of a server; the first request finds out whether there is one."""
    async with Client(url, api_key(key_file)) as client:
        yield OnServer(client)


class OnServer:
    """See `backend.Backend`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    async def run(self, run_id: str) -> RunRow | None:
        try:
            return (await self._client.get(run_id)).row
        except RunNotFound:
            return None

    async def get(self, run_id: str) -> RunView:
        return await self._client.get(run_id)

    async def runs(self, filter: RunFilter) -> list[RunRow]:
        return await self._client.list(filter)

    async def journal(self, run_id: str, after: int) -> list[Event]:
        return await self._client.journal(run_id, after)

    async def follow(self, run_id: str) -> AsyncGenerator[list[Event], None]:
        async with aclosing(self._client.events(run_id)) as events:
            async for event in events:
                yield [event]

    async def holds(self, run_id: str) -> list[Hold]:
        return await self._client.why(run_id)

    async def steer(self, run_id: str, verb: str, **options: bool) -> dict[str, Any]:
        return await self._client.steer(run_id, verb, **options)

    async def delete(self, row: RunRow) -> dict[str, Any]:
        await self._client.delete(row.run_id)
        return views.steered(row.run_id, None, changed=True)

    async def create(self, wf: Workflow[Any, Any] | str, input: Any, options: Start) -> tuple[RunRow, bool]:
        return await self._client.create(wf, input, **options)

    async def workflows(self) -> list[dict[str, Any]]:
        return await self._client.workflows()

    async def switch(self, workflow: str, *, to_pause: bool) -> dict[str, Any]:
        return await self._client.switch(workflow, "pause" if to_pause else "resume")

    async def leases(self) -> list[LeaseRow]:
        return await self._client.leases()

    async def sessions(self) -> list[SessionRow]:
        return await self._client.sessions()

    def living(self, sessions: list[SessionRow]) -> list[SessionRow]:
        return sessions  # the locks that would tell are for the server to see

    async def queue(self, limit: int) -> list[QueueRow]:
        return await self._client.queue(limit)

    async def lanes(self) -> list[dict[str, Any]]:
        return await self._client.lanes()

    async def stats(self) -> dict[str, Any]:
        return await self._client.stats()

    async def audits(self, limit: int, run_id: str | None) -> list[dict[str, Any]]:
        return await self._client.audits(limit, run_id)
