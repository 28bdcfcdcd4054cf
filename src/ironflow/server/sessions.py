"""What a node knows of the registered workers: their rows, read from the database and never older than a second.

A view, not a register. A session that is gone from the database is gone from here at the next look, and one that this
node has never heard of (it was registered at another one) is looked up when it first asks.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from ironflow.errors import SessionUnknown
from ironflow.model.capacity import HTTP, SessionRow
from ironflow.model.routing import Serves
from ironflow.server.access import Caller
from ironflow.store.base import Store
from ironflow.tasks import begin

#: How old a view may be before it is renewed, seconds.
FRESH_S: Final = 1.0


def unknown(session_id: str) -> SessionUnknown:
    """There is no such session, or it is none of the caller's: which of the two is not told."""
    return SessionUnknown(f"no worker is registered under the session {session_id!r}")


class Known:
    """One session, and what it serves."""

    __slots__ = ("row", "serves")

    def __init__(self, row: SessionRow) -> None:
        self.row = row
        self.serves = Serves.from_json(row.scope, row.serves)

    def is_of(self, caller: Caller) -> bool:
        """Whether this caller may act for it: with the key that registered it.

        One that an older node registered has no key noted; then any of its scope will do, if it may serve all of it.
        """
        if self.row.key_id is not None:
            return self.row.key_id == caller.key_id and self.row.scope == caller.scope
        bound = caller.workflows
        return self.row.scope == caller.scope and (bound is None or self.serves.workflows.keys() <= bound)


class Sessions:
    """See the module's docstring."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Known] = {}
        #: sessions that this node changed since the look began that is under way: that may not have seen it
        self._changed: set[str] = set()
        #: every live session, embedded ones too: whom a notification goes to
        self.rows: list[SessionRow] = []
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def known(self, session_id: str, caller: Caller) -> Known:
        """A session that this caller's key registered.

        Raises:
            SessionUnknown: there is none; another key's is answered in the same words.
        """
        asked = time.monotonic()
        found = self._known.get(session_id)
        if found is None or asked - self._read_at > FRESH_S:
            await self.refresh()
            found = self._known.get(session_id)
        if found is None and self._read_at < asked:  # that look was under way already, and may have missed it
            await self.refresh()
            found = self._known.get(session_id)
        if found is None or not found.is_of(caller):
            raise unknown(session_id)
        return found

    def add(self, row: SessionRow) -> Known:
        """A session that was just registered through this node."""
        found = self._known[row.session_id] = Known(row)
        self._changed.add(row.session_id)
        self.rows = [one for one in self.rows if one.session_id != row.session_id] + [row]
        return found

    def drain(self, session_id: str) -> None:
        """A session that was just told through this node to take nothing new."""
        for row in self.rows:
            if row.session_id == session_id:
                row.draining = 1
                self._changed.add(session_id)

    def forget(self, session_id: str) -> None:
        """A session that was just removed through this node."""
        self._known.pop(session_id, None)
        self._changed.add(session_id)
        self.rows = [one for one in self.rows if one.session_id != session_id]

    async def refresh(self) -> None:
        """Read all sessions; callers of one moment share the look."""
        if self._reading is None:
            self._reading = begin(self._read())
            self._reading.add_done_callback(self._done)
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        began = time.monotonic()
        self._changed.clear()
        read = await self._store.sessions()
        rows = [row for row in read if row.session_id not in self._changed]
        rows += [row for row in self.rows if row.session_id in self._changed]
        known: dict[str, Known] = {}
        for row in rows:
            if row.kind != HTTP:
                continue
            before = self._known.get(row.session_id)
            if before is not None and before.row.serves == row.serves:
                before.row = row
                known[row.session_id] = before
            else:
                known[row.session_id] = Known(row)
        self.rows, self._known, self._read_at = rows, known, began

    def _done(self, task: asyncio.Task[None]) -> None:
        self._reading = None
        if not task.cancelled():
            task.exception()  # whoever waited was told; nobody may have
