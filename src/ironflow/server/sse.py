"""Following journals for many readers: one look at the database a tick, and the frames of a stream.

Owns how a reader gets the events of a run as they are committed, whichever node or worker writes them. Promises each
event once and in order, from the seq the reader names, and so exact resumption on any node: a reader's place is a seq
of the journal and nothing that this node remembers. However many read, one look is for all of them. Nothing is read for
a reader that has not sent what it was given before, and large payloads, which no look brings along, are read one by one
and for a few readers of each organisation at a time (`large`): a slow reader costs a short page of small events, and
holds up none but its organisation's own of large ones.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Container, Hashable, Iterable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from ironflow.engine import views
from ironflow.engine.reading import whole
from ironflow.errors import StoreError
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.server.large import PIECE, Places, pieces
from ironflow.store.base import Store
from ironflow.tasks import begin

log = logging.getLogger("ironflow.server")

#: Seconds between two looks at every run that somebody follows: what other nodes write is found by these.
TICK_S = 0.2
#: Seconds between two looks at all: a run that writes a thousand events a second is read in larger pages instead.
FLOOR_S = 0.01
#: Seconds to the next look for each reader that was given something. So the share of a node's time that streams take
#: does not grow with their number: what many read of busy runs comes in larger pages (`dev.py bench W10`).
EACH_S = 0.0003
#: Events of one run that a look brings at most. A reader keeps those that it can send together, and looks again for the
#: rest: so many of the largest that are no large ones come to a megabyte.
PAGE = 100
#: A text as JSON, in ASCII: a step's id may hold half of a surrogate pair.
_quoted = json.encoder.encode_basestring_ascii
#: Seconds of silence after which a comment keeps proxies from taking the stream for dead.
KEEP_ALIVE_S = 15.0


class Reader:
    """One reader's place in one run. Made by `Tail.open`."""

    __slots__ = ("_asks", "_missed", "_news", "_page", "_tail", "after", "run_id")

    def __init__(self, tail: Tail, run_id: str, after: int) -> None:
        self._tail = tail
        self._page: list[Event] = []
        self._news = asyncio.Event()
        self._asks = False
        self._missed = False
        self.run_id = run_id
        #: the last seq it has been given
        self.after = after

    @property
    def waits(self) -> bool:
        """Whether it has sent all that was found for it, and asks for more."""
        return self._asks and not self._page

    def miss(self) -> None:
        """There may be more, and it was not looked for because the reader has yet to send what it has."""
        self._missed = True

    def offer(self, events: list[Event], *, more: bool) -> None:
        """Give it what of these events it does not have yet."""
        page: list[Event] = []
        size = 0
        for event in events:
            if event.seq <= self.after:
                continue
            if size >= PIECE:
                more = True
                break
            size += len(event.payload or "")
            page.append(event)
        if page:
            self._page = page
            self._missed = self._missed or more
            self._news.set()
        elif more:  # they were all for readers that are further behind
            self._tail.touched((self.run_id,))

    def end(self) -> None:
        """Let it know that nothing more comes from here."""
        self._news.set()

    async def page(self, patience_s: float) -> list[Event] | None:
        """The next events; empty when none came in time, None when the tail is closed and all was given."""
        self._asks = True
        if self._missed:
            self._missed = False
            self._tail.touched((self.run_id,))
        try:
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        except TimeoutError:
            return []
        finally:
            self._asks = False
        page, self._page = self._page, []
        if not page:
            return None
        self.after = page[-1].seq
        if not self._tail.closed:
            self._news.clear()
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
        self._large = Places()
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

    @asynccontextmanager
    async def whole(self, run_id: str, event: Event, whose: Hashable) -> AsyncIterator[Event | None]:
        """An event with its large payload, for as long as the block lasts; None where the run is gone. It may have to
        wait for other readers of the same owner's runs, which have yet to send theirs.
        """
        async with self._large.of(whose):
            yield await whole(self._store, run_id, event.seq)

    async def has(self, run_id: str) -> bool:
        """Whether there is such a run still. While the database is away, none is gone."""
        try:
            return await self._store.run(run_id) is not None
        except StoreError:
            return True

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
            served = 0
            try:
                served = await self._look(due)
            except Exception as error:  # the database is away: the streams stay, and go on when it is back
                log.warning("the journals that are followed cannot be read: %s", error)
                self._due |= due
                await asyncio.sleep(self._tick_s)
            self._wake.clear()
            if not self._due:
                await self._rest(swept + self._tick_s - time.monotonic())
            await asyncio.sleep(min(max(FLOOR_S, served * EACH_S), self._tick_s))
        self._task = None

    async def _rest(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0)):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _look(self, due: Iterable[str]) -> int:
        """Look for the events of these runs. Returns how many readers were given some."""
        after: dict[str, int] = {}
        for run_id in due:
            for reader in self._readers.get(run_id, ()):
                if reader.waits:
                    after[run_id] = min(reader.after, after.get(run_id, reader.after))
                else:
                    reader.miss()
        served = 0
        if not after:
            return served
        for run_id, events in (await self._store.tail(after, PAGE)).items():
            for reader in self._readers.get(run_id, ()):
                # Who came during the look, and lacks what it did not ask for, is due already; this would leave a gap.
                if reader.waits and reader.after >= after[run_id]:
                    reader.offer(events, more=len(events) >= PAGE)
                    served += 1
        return served


def frame(event: Event) -> str:
    """An event as a frame of the stream: its seq is the id from which a reader resumes.

    The payload goes out as the text that the journal holds, once it is known to be readable. Making that text anew for
    each of many readers would take most of what a reader costs (`dev.py bench W10`).
    """
    payload = event.payload or "{}"
    if "\n" in payload or "\r" in payload or not j.readable(payload):
        return f"id: {event.seq}\ndata: {_json(views.event(event))}\n\n"
    step_id = "null" if event.step_id is None else _quoted(event.step_id)
    return (
        f'id: {event.seq}\ndata: {{"seq":{event.seq},"kind":"{event.kind}","step_id":{step_id},'
        f'"execution_seq":{event.execution_seq},"at_ms":{event.at},"at":"{views.iso(event.at)}","payload":{payload}}}\n\n'
    )


def _json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)
    # Half of a surrogate pair, which a text of a user may hold, has no UTF-8 form but an escape.
    return text if text.isascii() or text.isprintable() else json.dumps(value, separators=(",", ":"), default=str)


async def frames(
    tail: Tail,
    run_id: str,
    after: int,
    allowed: Callable[[], Awaitable[bool]],
    whose: Hashable = None,
    kinds: Container[str] | None = None,
) -> AsyncGenerator[str, None]:
    """The stream of a run: what is there behind `after`, then what comes, to the event that ends the run.

    Args:
        tail: this node's.
        run_id: the run.
        after: the last seq that the reader has.
        allowed: whether the reader may still read it; asked before anything is sent, so it must cost next to nothing.
        whose: the owner of the run: its readers, and no others, wait for each other.
        kinds: of the events that the reader wants, what ends a run among them; None: all.
    """
    reader, asked = tail.open(run_id, after), time.monotonic()
    sent = asked
    try:
        yield "retry: 1000\n\n"
        while True:
            page = await reader.page(KEEP_ALIVE_S)
            if page is None:
                return
            if time.monotonic() - asked >= KEEP_ALIVE_S:
                asked = time.monotonic()
                if not await tail.has(run_id):
                    return
            if not await allowed():
                return
            ends = bool(page) and page[-1].kind in j.TERMINAL_KINDS
            wanted = page if kinds is None else [event for event in page if event.kind in kinds]
            if not page or (not wanted and time.monotonic() - sent >= KEEP_ALIVE_S):
                sent = time.monotonic()
                yield ": keep-alive\n\n"
            async with aclosing(_chunks(tail, run_id, wanted, whose)) as chunks:
                async for chunk in chunks:
                    sent = time.monotonic()
                    yield chunk
                    if not await allowed():  # a slow reader takes a page, or one large event, for long
                        return
            if ends:
                return
    finally:
        tail.leave(reader)


async def _chunks(tail: Tail, run_id: str, page: list[Event], whose: Hashable) -> AsyncGenerator[str, None]:
    """The frames of a page: together where they are small, in pieces where one is large. What was sent is let go
    of before anything is waited for.
    """
    made: list[str] = []
    size = 0
    page.reverse()
    while page:
        event = page.pop()
        if event.payload == j.APART:
            if made:
                yield "".join(made)
                made, size = [], 0
            async with tail.whole(run_id, event, whose) as read:
                if read is None:
                    return
                text = frame(read)
                del read
                for piece in pieces(text):
                    yield piece
                del text, piece
            continue
        made.append(frame(event))
        size += len(made[-1])
        if size >= PIECE:
            yield "".join(made)
            made, size = [], 0
    if made:
        yield "".join(made)
