"""The liveness streams: one connection per worker on which the server tells, and whose break is a suspicion.

A worker that is killed, or whose host is, loses this connection at once, long before its clock runs out. A break proves
nothing (a cable does the same), so it only marks the session; the worker's next heartbeat takes the mark away. A node
that leaves by itself closes its streams and suspects nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from ironflow.store.base import Store

log = logging.getLogger("ironflow.server")

#: How often a stream says that it is there, seconds; and so many lines may wait for a worker that does not read.
PING_S: Final = 5.0
MOST_WAITING: Final = 10_000

Line = dict[str, Any]


class Stream:
    """One open connection of one session."""

    __slots__ = ("_lines", "closed", "drains", "overrun", "session_id")

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
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
            if line is None or self.overrun:
                return
            yield line


class Streams:
    """The streams that are open on this node.

    Args:
        store: where a suspicion is written.
        settled: waits until no heartbeat of a session is under way here.
    """

    def __init__(self, store: Store, settled: Callable[[str], Awaitable[None]]) -> None:
        self._store = store
        self._settled = settled
        self._open: dict[str, set[Stream]] = {}
        self._closed = False

    def open(self, session_id: str) -> Stream:
        """Begin one."""
        stream = Stream(session_id)
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
        try:
            if await self._store.suspect(stream.session_id):
                log.info("session %s lost its connection; it is given a while to come back", stream.session_id)
        except Exception as error:
            log.warning("that session %s lost its connection could not be recorded: %s", stream.session_id, error)

    def check(self, run_id: str) -> None:
        """Somebody changed this run: whoever executes it is to look."""
        self._tell_all({"check": run_id})

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

    def _tell_all(self, line: Line) -> None:
        for streams in list(self._open.values()):
            for stream in list(streams):
                stream.say(line)
