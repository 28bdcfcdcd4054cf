"""The liveness streams: one connection per worker on which the server tells, and whose break is a suspicion.

A worker that is killed, or whose host is, loses this connection at once, long before its clock runs out. A break proves
nothing (a cable does the same), so it only marks the session; the worker's next heartbeat takes the mark away. A node
that leaves by itself closes its streams and suspects nobody.

A stream tells of no run that its key could not be given, and nothing once that key counts no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from ironflow.errors import StoreError
from ironflow.server.access import Caller
from ironflow.server.handed import Whose
from ironflow.store.base import Store
from ironflow.tasks import begin

log = logging.getLogger("ironflow.server")

#: How often a stream says that it is there, seconds; and so many lines may wait for a worker that does not read.
PING_S: Final = 5.0
MOST_WAITING: Final = 10_000

Line = dict[str, Any]


class Stream:
    """One open connection of one session.

    Args:
        session_id: whose it is.
        caller: who opened it.
        counts: whether the caller's key still counts.
    """

    __slots__ = ("_counts", "_lines", "caller", "closed", "drains", "overrun", "session_id")

    def __init__(self, session_id: str, caller: Caller, counts: Callable[[], Awaitable[bool]]) -> None:
        self.session_id = session_id
        self.caller = caller
        self._counts = counts
        self._lines: asyncio.Queue[Line | None] = asyncio.Queue()
        #: ended from this side
        self.closed = False
        #: it was told to leave
        self.drains = False
        #: its worker does not read: what it was to be told is lost, and it must come back and look by itself
        self.overrun = False

    def say(self, line: Line) -> None:
        """Send a line, soon."""
        if self._lines.qsize() >= MOST_WAITING:
            self.overrun = True
            self.close()
        if not self.closed:
            self._lines.put_nowait(line)

    def close(self) -> None:
        """End the stream behind what was said already."""
        if not self.closed:
            self.closed = True
            self._lines.put_nowait(None)

    async def lines(self, now: Callable[[], int]) -> AsyncIterator[Line]:
        """What is to be sent, with a sign of life whenever nothing was for a while."""
        yield {"hello": now()}
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    line = await self._lines.get()
            except TimeoutError:
                yield {"ping": now()}
                continue
            if line is None or self.overrun or await self.revoked():
                return
            yield line

    async def revoked(self) -> bool:
        """Whether its key counts no more; then it is closed. While the database is away, none is revoked."""
        try:
            counts = await self._counts()
        except StoreError:
            return False
        if not counts:
            self.close()
        return not counts


class Streams:
    """The streams that are open on this node.

    Args:
        store: where a suspicion is written.
        settled: waits until no heartbeat of a session is under way here.
        whose: tells whose a run is.
    """

    def __init__(
        self,
        store: Store,
        settled: Callable[[str], Awaitable[None]],
        whose: Callable[[str], Awaitable[Whose | None]],
    ) -> None:
        self._store = store
        self._settled = settled
        self._whose = whose
        #: runs that somebody changed, in that order; whose they are is still to be looked up
        self._changed: dict[str, None] = {}
        self._telling: asyncio.Task[None] | None = None
        self._open: dict[str, set[Stream]] = {}
        self._closed = False

    def open(self, session_id: str, caller: Caller, counts: Callable[[], Awaitable[bool]]) -> Stream:
        """Begin one; see `Stream`."""
        stream = Stream(session_id, caller, counts)
        self._open.setdefault(session_id, set()).add(stream)
        if self._closed:
            stream.close()
        return stream

    async def ended(self, stream: Stream) -> None:
        """A stream is over. One that broke makes its session a suspect, unless another one took its place."""
        others = self._open.get(stream.session_id, set())
        others.discard(stream)
        if others:
            return
        self._open.pop(stream.session_id, None)
        if stream.closed:
            return
        await self._settled(stream.session_id)
        if stream.session_id in self._open:  # it came back meanwhile
            return
        try:
            if await self._store.suspect(stream.session_id):
                log.info("session %s lost its connection; it is given a while to come back", stream.session_id)
        except Exception as error:
            log.warning("that session %s lost its connection could not be recorded: %s", stream.session_id, error)

    def check(self, run_id: str) -> None:
        """Somebody changed this run: whoever executes it is to look. Told to those whose keys reach the run, soon."""
        if not self._open or self._closed:
            return
        self._changed[run_id] = None
        if self._telling is None:
            self._telling = begin(self._tell(), name="ironflow-changed")

    async def _tell(self) -> None:
        try:
            while self._changed:
                run_id = next(iter(self._changed))
                del self._changed[run_id]
                whose = await self._whose(run_id)
                for stream in [one for streams in self._open.values() for one in streams]:
                    if whose is not None and whose.is_for(stream.caller):
                        stream.say({"check": run_id})
        except Exception as error:  # the next heartbeats find out
            self._changed.clear()
            log.warning("workers could not be told which runs were changed: %s", error)
        finally:
            self._telling = None

    async def end_revoked(self) -> None:
        """End the streams whose keys count no more."""
        for stream in [one for streams in self._open.values() for one in streams]:
            await stream.revoked()

    async def stop(self) -> None:
        """End what is under way here."""
        telling = self._telling
        if telling is not None:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)

    def drain(self, session_id: str) -> None:
        """This session is to leave."""
        for stream in self._open.get(session_id, ()):
            if not stream.drains:
                stream.drains = True
                stream.say({"drain": True})

    @property
    def sessions(self) -> list[str]:
        """Whose streams are open here."""
        return list(self._open)

    def close(self, session_id: str) -> None:
        """A session is gone or said goodbye: its stream ends, and that means nothing."""
        for stream in self._open.get(session_id, ()):
            stream.close()

    def close_all(self) -> None:
        """This node leaves."""
        self._closed = True
        for streams in self._open.values():
            for stream in streams:
                stream.close()

    def __len__(self) -> int:
        return sum(len(streams) for streams in self._open.values())
