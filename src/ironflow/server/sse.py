"""Following journals for many readers: one look at the database a tick, and the frames of a stream.

Owns how a reader gets the events of a run as they are committed, whichever node or worker writes them. Promises each
event once and in order, from the seq the reader names, and so exact resumption on any node: a reader's place is a seq
of the journal and nothing that this node remembers. However many read, one query looks for all of them; a reader that
does not take what it has been given is not read for, so a slow one costs a page of memory and holds nobody up.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Any

from ironflow.engine import views
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.store.base import Store
from ironflow.tasks import begin

_log = logging.getLogger("ironflow.server")

#: Seconds between two looks at every run that somebody follows: what other nodes write is found by these.
TICK_S = 0.2
#: Seconds between two looks at all: a run that writes a thousand events a second is read in larger pages instead.
FLOOR_S = 0.01
#: Events of one run that a look brings at most.
PAGE = 200
#: Seconds of silence after which a comment keeps proxies from taking the stream for dead.
KEEP_ALIVE_S = 15.0


class Reader:
    """One reader's place in one run. Made by `Tail.open`."""

    __slots__ = ("_missed", "_news", "_page", "_tail", "after", "run_id")

    def __init__(self, tail: Tail, run_id: str, after: int) -> None:
        self._tail = tail
        self._page: list[Event] = []
        self._news = asyncio.Event()
        self._missed = False
        self.run_id = run_id
        #: the last seq it has been given
        self.after = after

    @property
    def waits(self) -> bool:
        """Whether it has taken all that was found for it."""
        return not self._page

    def miss(self) -> None:
        """There may be more, and it was not looked for because the reader has yet to take what it has."""
        self._missed = True

    def offer(self, events: list[Event], *, more: bool) -> None:
        """Give it what of these events it does not have yet."""
        page = [event for event in events if event.seq > self.after]
        if page:
            self._page = page
            self._missed = self._missed or more
            self._news.set()

    def end(self) -> None:
        """Let it know that nothing more comes from here."""
        self._news.set()

    async def page(self, patience_s: float) -> list[Event] | None:
        """The next events; empty when none came in time, None when the tail is closed and all was given."""
        try:
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        except TimeoutError:
            return []
        page, self._page = self._page, []
        if not page:
            return None
        self.after = page[-1].seq
        if not self._tail.closed:
            self._news.clear()
            if self._missed:
                self._missed = False
                self._tail.touched((self.run_id,))
        return page


class Tail:
    """The one that looks, for every reader of this node. It works only while somebody reads.

    Args:
        store: the database.
        tick_s: seconds between two looks at every followed run.
    """

    def __init__(self, store: Store, *, tick_s: float = TICK_S) -> None:
        self._store = store
        self._tick_s = tick_s
        self._readers: dict[str, set[Reader]] = {}
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.closed = False

    def open(self, run_id: str, after: int) -> Reader:
        """A reader of the events of a run behind a seq; `leave` it when done."""
        reader = Reader(self, run_id, after)
        self._readers.setdefault(run_id, set()).add(reader)
        self.touched((run_id,))
        if self.closed:
            reader.end()
        elif self._task is None:
            self._task = begin(self._follow(), name="ironflow-tail")
        return reader

    def leave(self, reader: Reader) -> None:
        """The reader is gone."""
        own = self._readers.get(reader.run_id, set())
        own.discard(reader)
        if not own:
            self._readers.pop(reader.run_id, None)

    def touched(self, run_ids: Iterable[str]) -> None:
        """These runs have new events: look now."""
        for run_id in run_ids:
            if run_id in self._readers:
                self._due.add(run_id)
                self._wake.set()

    async def close(self) -> None:
        """End every stream; its reader comes back to another node and goes on from where it was."""
        self.closed = True
        for readers in self._readers.values():
            for reader in readers:
                reader.end()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _follow(self) -> None:
        swept = time.monotonic()
        while self._readers:
            due, self._due = self._due, set()
            if time.monotonic() - swept >= self._tick_s:
                due, swept = set(self._readers), time.monotonic()
            try:
                await self._look(due)
            except Exception as error:  # the database is away: the streams stay, and go on when it is back
                _log.warning("the journals that are followed cannot be read: %s", error)
                self._due |= due
                await asyncio.sleep(self._tick_s)
            self._wake.clear()
            if not self._due:
                await self._rest(swept + self._tick_s - time.monotonic())
            await asyncio.sleep(FLOOR_S)
        self._task = None

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _look(self, due: Iterable[str]) -> None:
        after: dict[str, int] = {}
        for run_id in due:
            for reader in self._readers.get(run_id, ()):
                if reader.waits:
                    after[run_id] = min(reader.after, after.get(run_id, reader.after))
                else:
                    reader.miss()
        if not after:
            return
        for run_id, events in (await self._store.tail(after, PAGE)).items():
            for reader in self._readers.get(run_id, ()):
                if reader.waits:
                    reader.offer(events, more=len(events) >= PAGE)


def frame(event: Event) -> str:
    """An event as a frame of the stream: its seq is the id from which a reader resumes."""
    return f"id: {event.seq}\ndata: {_json(views.event(event))}\n\n"


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    # Half of a surrogate pair, which a text of a user may hold, has no UTF-8 form but an escape.
    return text if text.isascii() or text.isprintable() else json.dumps(value, separators=(",", ":"), default=str)


async def frames(
    tail: Tail, run_id: str, after: int, allowed: Callable[[], Awaitable[bool]]
) -> AsyncGenerator[str, None]:
    """The stream of a run: what is there behind `after`, then what comes, to the event that ends the run.

    Args:
        tail: this node's.
        run_id: the run.
        after: the last seq that the reader has.
        allowed: whether the reader may still read it; asked at every keep-alive, and as often while events come.
    """
    reader, asked = tail.open(run_id, after), time.monotonic()
    try:
        yield "retry: 1000\n\n"
        while True:
            page = await reader.page(KEEP_ALIVE_S)
            if page is None:
                return
            if time.monotonic() - asked >= KEEP_ALIVE_S:
                asked = time.monotonic()
                if not await allowed():
                    return
            if not page:
                yield ": keep-alive\n\n"
                continue
            yield "".join(map(frame, page))
            if page[-1].kind in j.TERMINAL_KINDS:
                return
    finally:
        tail.leave(reader)
