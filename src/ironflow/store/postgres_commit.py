"""Group commit on PostgreSQL: three batchers (owners, starts, activations), each with its own connection.

A batcher takes what waits at the end of a tick of the loop and writes it in one statement; while that is
in flight the next batch gathers. A lone transition has a statement of its own, which is faster by a
third.

It promises that every future is answered, once, by what the database said. A connection that breaks in
mid-statement proves nothing: the same batch is sent again, and whoever is then refused is answered `applied`
if what stands in the database is its own earlier write. An unexpected error of a batch is an error of one of
its members: they are sent one by one, and only the guilty one sees it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Protocol

import asyncpg

from ironflow.model.transition import APPLIED, Transition
from ironflow.store import postgres_shapes as shapes
from ironflow.store.dialect import Statement
from ironflow.store.gather import Backlog
from ironflow.store.postgres_link import (
    BROKEN,
    TRIES,
    Clock,
    Connection,
    Link,
    Patience,
    again,
    lost,
    outdated,
    translated,
    unreachable,
)
from ironflow.tasks import begin

#: How long a store that is closed waits for a server that is away, seconds.
CLOSING_S = 0.5
#: And for one that has not said that it is away, but says nothing at all: what waits is written in far less.
SILENT_S = 2.0

Item = tuple[Transition, "asyncio.Future[str]"]


class Doubt:
    """What is not known of earlier tries of a batch: was one committed, and with which numbers?

    `lost`: an answer was lost, so everything may be there already. `last_seqs`: the journal's last number
    before a try, for runs whose events were numbered by the store.
    """

    __slots__ = ("last_seqs", "lost")

    def __init__(self) -> None:
        self.lost = False
        self.last_seqs: dict[str, int] = {}


class General(Protocol):
    """The way round for what does not fit: a transaction that looks first."""

    async def guarded(
        self, connection: Connection, transitions: Sequence[Transition], last_seqs: dict[str, int]
    ) -> list[str]:
        """Answer each of these, in one transaction; no run twice. `last_seqs` is read, then filled."""
        ...

    async def wrote(self, connection: Connection, transition: Transition, last_seq: int | None) -> bool:
        """Whether the database already holds what this transition writes (numbered after `last_seq`)."""
        ...

    async def compare(self, connection: Connection) -> None:
        """Ask the database for its own time, and go by it."""
        ...


#: What is sent for one run: a statement, and what it is given.
Alone = Callable[[int, Transition], tuple[str, tuple[Any, ...]]]


class Shape:
    """One fast way to write.

    Args:
        lone: what is sent for one run.
        many: the statement for many.
        pack_many: what that is given.
        careful: what is sent for one run in place of `lone` once that has met a row that is there already.
    """

    __slots__ = ("careful", "lone", "many", "pack_many")

    def __init__(
        self,
        lone: Alone,
        many: Statement,
        pack_many: Callable[[int, list[Transition]], dict[str, Any]],
        careful: Alone | None = None,
    ) -> None:
        self.lone = lone
        self.many = many
        self.pack_many = pack_many
        self.careful = careful


class Batcher:
    """Writes the transitions of one kind, many at a time.

    Args:
        link: the connection; nobody else uses it.
        clock: told the time of each commit.
        choose: which shape fits a batch (they differ in how much they can carry).
        general: for what fits none.
        prepare: whether statements may be prepared on the connection.
    """

    __slots__ = (
        "_away", "_choose", "_clock", "_closing", "_general", "_link", "_prepare", "_prepared", "_task", "_wake",
        "_waiting", "wrote",
    )  # fmt: skip

    def __init__(
        self,
        link: Link,
        clock: Clock,
        choose: Callable[[list[Transition]], Shape],
        general: General,
        prepare: bool,
    ) -> None:
        self._link = link
        self._clock = clock
        self._choose = choose
        self._general = general
        self._prepare = prepare
        self._prepared: tuple[Connection | None, dict[str, Any]] = (None, {})
        self._waiting: Backlog[Item] = Backlog()
        #: told how many transitions were committed together, and how long it took, seconds
        self.wrote: Callable[[int, float], None] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        #: the server was away when it was last asked
        self._away = False

    def submit(self, transition: Transition) -> asyncio.Future[str]:
        """Queue a transition. The future holds its answer, or the error that kept it from being decided."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        if self._closing:
            future.set_exception(unreachable(self._link.address.name, ConnectionError("the store is closed")))
            return future
        self._waiting.append((transition, future))
        wake = self._wake
        if self._task is None or self._task.done():  # not begun yet, or ended by somebody who cancels all tasks
            self._wake = None
            self._task = begin(self._work(), name="ironflow-commit")
        elif wake is not None:
            self._wake = None
            if not wake.done():
                wake.set_result(None)
        return future

    async def close(self) -> None:
        """Write what waits, then stop. A server that is away is not waited for: whoever waits is told that it is."""
        self._closing = True
        wake, self._wake = self._wake, None
        if wake is not None and not wake.done():
            wake.set_result(None)
        if self._task is not None:
            _, silent = await asyncio.wait({self._task}, timeout=CLOSING_S if self._away else SILENT_S)
            if silent:
                self._link.drop()  # its statement ends with an error then, and whoever waits is told
                await asyncio.wait({self._task}, timeout=CLOSING_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._link.close()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                if not self._waiting:
                    if self._closing:
                        return
                    self._wake = loop.create_future()
                    # Woken through the loop, so everything else of this tick is in the queue by then.
                    await self._wake
                    continue
                await self._write(self._waiting.next_batch())
        finally:
            # The loop is being torn down around us: nobody may wait for ever.
            _refuse(
                self._waiting.take_all(),
                unreachable(self._link.address.name, ConnectionError("the store is closed")),
            )

    async def _write(self, batch: list[Item]) -> None:
        """Answer a batch, whatever happens."""
        started = perf_counter()
        try:
            fast: list[Item] = []
            slow: list[Item] = []
            for item in batch:
                (fast if shapes.fits(item[0]) else slow).append(item)
            if fast:
                slow = slow + await self._attempt(fast, self._fast)
            if slow:
                await self._attempt(slow, self._slow)
            if self.wrote is not None:
                self.wrote(len(batch), perf_counter() - started)
            if self._clock.unchecked():
                await self._compare_clocks()
        except BaseException as error:
            _refuse(batch, error if isinstance(error, Exception) else ConnectionError("the store was stopped"))
            if not isinstance(error, Exception):
                raise

    async def _compare_clocks(self) -> None:
        """Of a process that only starts runs: where a scanner works, it has done this before."""
        with suppress(*BROKEN):  # the next commit finds that out, and what to do about it
            await self._general.compare(await self._link.get())

    async def _attempt(
        self, items: list[Item], write: Callable[[list[Item], Doubt], Any], doubt: Doubt | None = None
    ) -> list[Item]:
        """Write until the database has answered. Returns what must be written in another way."""
        doubt = doubt or Doubt()
        patience = Patience()
        tries = 0
        left: list[Item] = []
        while True:
            try:
                left.extend(await write(items, doubt))
                self._away = False
                return left
            except Exception as error:
                self._away = lost(error)
                if self._away or outdated(error):
                    doubt.lost = True
                    self._link.drop()
                    if not self._closing and await patience.wait():
                        continue
                    _refuse(items, unreachable(self._link.address.name, error))
                    return left
                tries += 1
                if again(error) and tries < TRIES:
                    continue
                if len(items) > 1:
                    for item in items:
                        left.extend(await self._attempt([item], write, doubt))
                    return left
                met = doubt.lost and isinstance(error, asyncpg.UniqueViolationError)
                if met and await self._met_itself(items[0], doubt):
                    return left
                _refuse(items, translated(error, self._link.address.name))
                return left

    async def _met_itself(self, item: Item, doubt: Doubt) -> bool:
        try:
            last = doubt.last_seqs.get(item[0].run_id)
            if not await self._general.wrote(await self._link.get(), item[0], last):
                return False
        except Exception as error:
            _refuse([item], translated(error, self._link.address.name))
            return True
        _answer(item, APPLIED)
        return True

    async def _fast(self, items: list[Item], doubt: Doubt) -> list[Item]:
        """One statement, in one round trip."""
        transitions = [item[0] for item in items]
        shape = self._choose(transitions)
        connection = await self._link.get()
        floor = self._clock.floor()
        refused: dict[int, int] = {}
        if len(items) == 1:
            packed = await self._alone(connection, shape, floor, transitions[0])
            at = packed >> 3
            if packed & 7:
                refused[0] = packed & 7
        else:
            values = shape.many.arguments(shape.pack_many(floor, transitions))
            at, numbers = await (await self._statement(connection, shape.many.text)).fetchrow(*values)
            for number in numbers:
                refused[(number >> 3) - 1] = number & 7
        self._clock.saw(at)
        if not refused:
            for item in items:
                _answer(item, APPLIED)
            return []
        return await self._refused(connection, items, refused, doubt)

    async def _alone(self, connection: Connection, shape: Shape, floor: int, change: Transition) -> int:
        text, arguments = shape.lone(floor, change)
        statement = self._known(connection, text) or await self._statement(connection, text)
        try:
            return int(await statement.fetchval(*arguments))
        except asyncpg.UniqueViolationError:
            if shape.careful is None:
                raise
        text, arguments = shape.careful(floor, change)
        return int(await (await self._statement(connection, text)).fetchval(*arguments))

    async def _refused(
        self, connection: Connection, items: list[Item], refused: dict[int, int], doubt: Doubt
    ) -> list[Item]:
        """Answer a batch of which some were refused; returns those that must look first."""
        own: set[int] = set()
        if doubt.lost:
            # Asked before anybody is answered: if this breaks too, the whole batch is simply sent again.
            for n in refused:
                if await self._general.wrote(connection, items[n][0], None):
                    own.add(n)
        elsewhere: list[Item] = []
        for n, item in enumerate(items):
            answer = refused.get(n, 0)
            if answer == 0 or n in own:
                _answer(item, APPLIED)
            elif answer == shapes.ELSEWHERE:
                elsewhere.append(item)
            else:
                _answer(item, shapes.ANSWERS[answer])
        return elsewhere

    async def _slow(self, items: list[Item], doubt: Doubt) -> list[Item]:
        """One transaction that looks first."""
        connection = await self._link.get()
        known = dict(doubt.last_seqs) if doubt.lost else {}
        answers = await self._general.guarded(connection, [item[0] for item in items], doubt.last_seqs)
        for item, answer in zip(items, answers, strict=True):
            if answer != APPLIED and doubt.lost:
                change = item[0]
                if await self._general.wrote(connection, change, known.get(change.run_id)):
                    answer = APPLIED
            _answer(item, answer)
        return []

    def _known(self, connection: Connection, text: str) -> Any:
        """The statement, if it is prepared on this connection already."""
        owner, prepared = self._prepared
        return prepared.get(text) if owner is connection else None

    async def _statement(self, connection: Connection, text: str) -> Any:
        """The statement, prepared once per connection; behind a pooler, an object that sends it each time."""
        if not self._prepare:
            return _Unprepared(connection, text)
        owner, prepared = self._prepared
        if owner is not connection:
            prepared = {}
            self._prepared = (connection, prepared)
        statement = prepared.get(text)
        if statement is None:
            statement = prepared[text] = await connection.prepare(text)
        return statement


class _Unprepared:
    """A statement that leaves nothing behind on the server."""

    __slots__ = ("_connection", "_text")

    def __init__(self, connection: Connection, text: str) -> None:
        self._connection = connection
        self._text = text

    async def fetchval(self, *arguments: Any) -> Any:
        """The first column of the first row."""
        return await self._connection.fetchval(self._text, *arguments)

    async def fetchrow(self, *arguments: Any) -> Any:
        """The first row."""
        return await self._connection.fetchrow(self._text, *arguments)


def _answer(item: Item, answer: str) -> None:
    if not item[1].done():  # its caller may have gone away; the write stands
        item[1].set_result(answer)


def _refuse(items: list[Item], error: Exception) -> None:
    for _, future in items:
        if not future.done():
            future.set_exception(error)
