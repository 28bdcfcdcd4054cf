"""The worker's port over HTTP: what it commits, reads and gives back is asked of a server.

A lease's token is the raw one here; the server hashes what it receives, so that no token lies in the database. What a
poll brought along (the journals of the runs it handed out) is kept until the door asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

from ironflow.errors import IronflowError, RunNotFound, SessionUnknown
from ironflow.model import wire
from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED, STALE, Transition
from ironflow.remote.batch import Batches
from ironflow.remote.connection import Connection
from ironflow.remote.heart import HttpHeart
from ironflow.remote.parts import in_parts
from ironflow.store.base import OpenTransaction
from ironflow.store.heart import Heart
from ironflow.worker.port import Holding, Owner

log = logging.getLogger("ironflow.worker")

#: Rounds of tries for a page of a journal: the other runs of its batch wait for it, and one that was not read is handed
#: out again.
READ_TRIES: Final = 2
#: An item up to this many events is not looked at for its size before it is encoded.
_FEW: Final = 2


class HttpPort:
    """See the module's docstring, and `worker.port.Port` for what each method promises.

    Args:
        connection: to the servers, open.
        reads_as: of a child process: its parent's session, to which its run is promised.
    """

    #: a transaction of a user's writes needs the database, see `begin`
    transactions = exclusive_transactions = False

    def __init__(self, connection: Connection, reads_as: str | None = None) -> None:
        self.connection = connection
        self._reads_as = reads_as
        self.name = connection.name
        self.now: Callable[[], int] = connection.clock.now
        self.concurrent_writers = 0
        self.batches = Batches(connection)
        #: how long a renewal lasts, ms; told by the server
        self.lease_ttl_ms = 0
        self._journals: dict[str, tuple[list[Event], bool]] = {}

    def submit(self, transition: Transition) -> str | Awaitable[str]:
        """See `Outside`."""
        item = wire.item_of(transition)
        if len(transition.events) > _FEW and self.connection.most_bytes is not None:
            size = sum(len(event.payload or "") for event in transition.events)
            if 2 * size > self.batches.most_bytes:
                return self._in_parts(transition)
        return self.batches.add(item)

    async def _in_parts(self, whole: Transition) -> str:
        """Commit a change that may be too large for one message: its events first, and what follows from them last.

        Each part is what a worker that died behind it would have left: whole events, in order.
        """
        parts = in_parts(whole, self.batches.most_bytes)
        for number, part in enumerate(parts):
            answer = await self.batches.add(wire.item_of(part))
            if answer != APPLIED:
                # News behind the first part cannot be answered as such: the caller would send that part again.
                return answer if not number else STALE
        return APPLIED

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
        """Never asked for: there is no database here, and a run that needs one pauses before the step begins."""
        raise NotImplementedError

    # ---- reading

    def brought(self, run_id: str, events: list[Event], more: bool) -> None:
        """A poll brought the journal of a run along, or its beginning."""
        self._journals[run_id] = (events, more)

    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]:
        """See `Port`. Those of which a poll brought only the beginning are read side by side."""
        found: dict[str, list[Event]] = {}
        begun: dict[str, list[Event]] = {}
        for run_id in run_ids:
            events, more = self._journals.pop(run_id, ([], True))
            (begun if more else found)[run_id] = events
        read = await asyncio.gather(*(self._rest(*one) for one in begun.items()), return_exceptions=True)
        for run_id, result in zip(begun, read, strict=True):
            if isinstance(result, IronflowError):
                log.warning("run %s is not taken: its journal could not be read: %s", run_id, result.message)
            elif isinstance(result, BaseException):
                raise result
            else:
                found[run_id] = result
        return found

    def forget(self, run_ids: Sequence[str]) -> None:
        """Nobody will ask for these journals."""
        for run_id in run_ids:
            self._journals.pop(run_id, None)

    async def _rest(self, run_id: str, events: list[Event]) -> list[Event]:
        more = True
        session_id = self._reads_as or self.batches.session_id
        while more:
            after = events[-1].seq if events else 0
            page = await self.connection.ask(
                "GET",
                f"/runs/{quote(run_id, safe='')}/journal",
                query={"session_id": session_id, "after": str(after)},
                tries=READ_TRIES,
            )
            events += wire.events_from_json(page["events"])
            more = bool(page.get("more")) and bool(page["events"])
        return events

    async def owner(self, run_id: str, since: int | None = None) -> Owner | None:
        """See `Port`."""
        query = {"session_id": self.batches.session_id}
        if since is not None:
            query["since"] = str(since)
        try:
            found = await self.connection.ask("GET", f"/runs/{quote(run_id, safe='')}/owner", query=query)
        except (RunNotFound, SessionUnknown):  # a session that was taken for dead is told of no run: none is its own
            return None
        return Owner(found["execution_seq"], found["state"], frozenset(found.get("kinds", ())))

    async def backlog(self) -> dict[str, int]:
        """How many queued runs this worker could take, by the full group they wait for ("": only for a worker)."""
        query = {"session_id": self.batches.session_id}
        return dict((await self.connection.ask("GET", "/backlog", query=query))["waiting"])

    # ---- giving back

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """See `Port`."""
        body = {"session_id": self.batches.session_id, "reservations": [list(one) for one in reservations]}
        await self.connection.ask("POST", "/unreserve", body)

    async def keep(self, run_id: str, reservation: str, ttl_ms: int) -> bool:
        """See `Port`. For how long, the server decides."""
        body = {"session_id": self.batches.session_id, "run_id": run_id, "reservation": reservation}
        return bool((await self.connection.ask("POST", "/keep", body))["kept"])

    async def release(self, held: Sequence[Holding], session_id: str) -> None:
        """See `Port`."""
        body = {"session_id": session_id, "runs": [list(one) for one in held]}
        await self.connection.ask("POST", "/release", body)

    async def give_back(self, run_id: str, session_id: str) -> None:
        """See `Port`."""
        path = f"/sessions/{quote(session_id, safe='')}"
        with suppress(SessionUnknown):  # it never began, or has said goodbye itself: it holds nothing
            await self.connection.ask("DELETE", path, query={"give_back": run_id})

    # ---- renewing

    def heart(self) -> Heart:
        """See `Port`."""
        return HttpHeart(self.connection, self.renewed)

    def renewed(self, asked_at: float) -> None:
        """What was taken at this time (monotonic, seconds) or renewed, is alive for a lease's time."""
        self.batches.alive_until = max(self.batches.alive_until, asked_at + self.lease_ttl_ms / 1000)

    def hurry(self) -> None:
        """See `Port`."""
        self.connection.hurry()

    def new_token(self) -> str:
        """See `Port`: the raw token."""
        return secrets.token_hex(16)

    async def close(self) -> None:
        """End what is under way, and close the connections."""
        await self.batches.close()
        await self.connection.close()
