"""Connections that break in mid-commit, a server that dies under load: every caller is told the truth."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import asyncpg
import pytest
from tests.recovery.kit import until
from tests.store.postgres_cases import (
    appended,
    assert_dense,
    ended,
    new_id,
    queued,
    session_row,
    started,
    taken,
)

from ironflow.errors import StoreUnreachable
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_LOCKED, GUARD_OWNER, Locked, Transition
from ironflow.store import postgres, postgres_link
from ironflow.store.heart import Beat
from ironflow.store.postgres import PostgresStore
from ironflow.testing._processes import children
from ironflow.testing.postgres import PostgresServer

_KILL = (
    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


#: How often every connection is killed.
KILLS = 8


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with PostgresServer(fsync=False) as server:
        yield server


Open = Callable[[str], Awaitable[PostgresStore]]


@pytest.fixture
async def open_postgres() -> AsyncIterator[Open]:
    """Opens stores, and closes them whatever the test did."""
    opened: list[PostgresStore] = []

    async def open_one(url: str) -> PostgresStore:
        store = await postgres.open_postgres(url)
        opened.append(store)
        return store

    yield open_one
    for store in opened:
        await store.close()


async def live(store: PostgresStore, counts: dict[str, int]) -> str:
    """One run from its creation over the queue to its end; every answer must be `applied`."""
    run_id = new_id()
    assert await store.submit(queued(run_id)) == "applied"
    assert await store.submit(taken(run_id, 0, 2, "t1")) == "applied"
    for n in range(3):
        assert await store.submit(appended(run_id, 3 + 2 * n)) == "applied"

    def note(locked: Locked) -> Transition:
        change = Transition(run_id, GUARD_LOCKED)
        change.events = [Event(0, "status_set", None, '{"text":"seen"}', locked.row.execution_seq)]
        change.changes = {"facts": locked.row.facts + 1}
        return change

    decided = await store.decide([run_id], note)
    assert isinstance(decided[run_id], Transition), decided
    final = ended(run_id, 10)
    final.facts = 1
    assert await store.submit(final) == "applied"
    counts["done"] += 1
    return run_id


async def live_through(store: PostgresStore, callers: int, runs: int, counts: dict[str, int]) -> list[str]:
    async def caller() -> list[str]:
        return [await live(store, counts) for _ in range(runs)]

    return [run_id for ids in await asyncio.gather(*[caller() for _ in range(callers)]) for run_id in ids]


async def more_done(counts: dict[str, int], runs: int) -> None:
    """Return when so many more have come to their end."""
    wanted = counts["done"] + runs
    await until(lambda: counts["done"] >= wanted)


async def assert_written_once(store: PostgresStore, runs: list[str]) -> None:
    for run_id, journal in (await store.journals(runs)).items():
        assert_dense(journal)
        assert [event.kind for event in journal].count("status_set") == 1, run_id
        assert len(journal) == 11
    assert await store.leases() == []
    assert await store.queue() == []


async def test_a_connection_killed_in_mid_commit_loses_nothing_and_writes_nothing_twice(
    postgres_url: str, open_postgres: Open
) -> None:
    store = await open_postgres(postgres_url)
    counts = {"done": 0}
    killed: list[int] = []
    runs: list[str] = []

    async def load() -> None:
        while len(killed) < KILLS:
            runs.extend(await live_through(store, 5, 4, counts))

    killer = await asyncpg.connect(postgres_url)
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(load())
        for _ in range(KILLS):
            await more_done(counts, 5)  # there is load at every kill
            killed.append(await killer.fetchval(_KILL))
    await killer.close()
    assert sum(killed) >= 2 * KILLS
    await assert_written_once(store, runs)


async def test_an_answer_that_was_lost_is_found_in_the_database(postgres_url: str, open_postgres: Open) -> None:
    """The commit succeeds and the connection breaks before its answer arrives, for every kind of write."""
    store = await open_postgres(postgres_url)
    run_id, queued_id = new_id(), new_id()
    large = appended(run_id, 6, payload='"' + "x" * 10_000 + '"')
    for committer, change in (
        (store._starts, started(run_id)),
        (store._starts, queued(queued_id)),
        (store._owners, appended(run_id, 4)),
        (store._owners, large),
        (store._activations, taken(queued_id, 0, 2, "t2")),
        (store._owners, ended(run_id, 8)),
    ):
        lose_one_answer(committer)
        assert await store.submit(change) == "applied"
    assert_dense(await store.journal(run_id))
    assert len(await store.journal(queued_id)) == 2


async def test_a_lost_answer_is_not_taken_for_the_work_of_somebody_else(postgres_url: str, open_postgres: Open) -> None:
    """Another worker claimed the run with the very same events: the token tells whose claim it was."""
    mine, other = await open_postgres(postgres_url), await open_postgres(postgres_url)
    run_id = new_id()
    await mine.submit(queued(run_id))
    committer = mine._activations

    async def lose(items: object, doubt: object) -> object:
        del committer_fast["now"]
        assert await other.submit(taken(run_id, 0, 2, "theirs")) == "applied"
        raise ConnectionResetError("lost")

    committer_fast = {"now": lose}
    real = committer._fast
    replace_fast(committer, lambda items, doubt: committer_fast.get("now", real)(items, doubt))
    assert await mine.submit(taken(run_id, 0, 2, "mine")) == "lost"


async def test_a_decision_whose_answer_was_lost_is_not_decided_twice(postgres_url: str, open_postgres: Open) -> None:
    store = await open_postgres(postgres_url)
    run_id = new_id()
    await store.submit(started(run_id))
    seen: list[int] = []

    def note(locked: Locked) -> Transition:
        seen.append(locked.last_seq)
        change = Transition(run_id, GUARD_LOCKED)
        change.events = [Event(0, "status_set", None, '{"text":"same"}', locked.row.execution_seq)]
        change.changes = {"facts": locked.row.facts + 1}
        return change

    # The very same event stands there from an earlier decision: that one must not be taken for this one.
    await store.decide([run_id], note)
    real = store._decider
    losses = ["before the commit", "after it"]

    class Losing:
        lanes = real.lanes

        async def decide(self, connection: object, *arguments: object) -> object:
            loss = losses.pop(0) if losses else None
            if loss == "before the commit":
                await real.decide(Uncommitted(connection), *arguments)  # type: ignore[arg-type]
            found = await real.decide(connection, *arguments)  # type: ignore[arg-type]
            if loss is not None:
                raise ConnectionResetError("the answer was lost")
            return found

    class Uncommitted:
        def __init__(self, connection: object) -> None:
            self.connection = connection

        def __getattr__(self, name: str) -> object:
            return getattr(self.connection, name)

        async def execute(self, statement: str) -> None:
            commits = statement.startswith("COMMIT")
            await self.connection.execute("ROLLBACK" if commits else statement)  # type: ignore[attr-defined]
            if commits:
                raise ConnectionResetError("lost before the commit")

    store._decider = Losing()  # type: ignore[assignment]
    found = await store.decide([run_id], note)
    assert isinstance(found[run_id], Transition)
    assert seen == [3, 4, 4]
    journal = await store.journal(run_id)
    assert_dense(journal)
    assert len(journal) == 5
    row = await store.run(run_id)
    assert row is not None
    assert row.facts == 2


async def test_events_without_a_number_are_written_once_when_an_answer_is_lost(
    postgres_url: str, open_postgres: Open
) -> None:
    store = await open_postgres(postgres_url)
    run_id = new_id()
    await store.submit(started(run_id))
    for _ in range(2):
        change = Transition(run_id, GUARD_OWNER, 1, "t1")
        change.events = [Event(0, "status_set", None, '{"text":"same"}')]
        lose_one_answer(store._owners)
        assert await store.submit(change) == "applied"
    assert_dense(await store.journal(run_id))
    assert len(await store.journal(run_id)) == 5


def lose_one_answer(committer: object) -> None:
    """Let the next write commit, and drop its answer."""
    real_fast, real_slow = committer._fast, committer._slow  # type: ignore[attr-defined]
    state = {"lost": False}

    def losing(real: object) -> object:
        async def write(items: list, doubt: object) -> list:  # type: ignore[type-arg]
            if state["lost"]:
                return await real(items, doubt)  # type: ignore[operator, no-any-return]
            # The same transitions with futures of their own: written, and nobody hears of it.
            loop = asyncio.get_running_loop()
            shadow = [(change, loop.create_future()) for change, _ in items]
            left = await real(shadow, doubt)  # type: ignore[operator]
            if left:
                return [items[[s[0] for s in shadow].index(one[0])] for one in left]
            state["lost"] = True
            assert [future.result() for _, future in shadow] == ["applied"] * len(items)
            raise ConnectionResetError("the answer was lost")

        return write

    replace_fast(committer, losing(real_fast), losing(real_slow))


def replace_fast(committer: object, fast: object, slow: object = None) -> None:
    """Committers have slots: give this one a class of its own whose writes go through the test."""
    names = {"__slots__": (), "_fast": lambda self, items, doubt: fast(items, doubt)}  # type: ignore[operator]
    if slow is not None:
        names["_slow"] = lambda self, items, doubt: slow(items, doubt)  # type: ignore[operator]
    base = type(committer)
    committer.__class__ = type(base.__name__, (base,), names)


async def test_a_server_that_is_killed_and_comes_back_is_a_pause(
    own_server: PostgresServer, open_postgres: Open
) -> None:
    url = own_server.create_database("outage")
    store = await open_postgres(url)
    await store.open_session(session_row("s1", store.now()))
    heard: list[str] = []
    await store.listen(heard.append)
    counts = {"done": 0}
    working = asyncio.create_task(live_through(store, 16, 25, counts))
    for _ in range(2):
        await more_done(counts, 20)
        assert not working.done()
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.restart)
    runs = await working
    assert len(runs) == 400
    await assert_written_once(store, runs)
    alive, _, _ = await asyncio.to_thread(_beat, store)
    assert alive
    while "waits" not in heard:  # after a break the listener says that anything may have happened
        await asyncio.sleep(0.01)


async def test_who_listens_does_so_again_whoever_cancelled_its_task(postgres_url: str, open_postgres: Open) -> None:
    here = asyncio.current_task()
    store = await open_postgres(postgres_url)
    heard: list[str] = []
    await store.listen(heard.append)
    killer = await asyncpg.connect(postgres_url)
    _cancel_all_but(here)
    for _ in range(2):
        assert await killer.fetchval(_KILL) >= 1
        await until(lambda: _listens(killer, 0))
        _cancel_all_but(here)  # while it is being mended, too
        await until(lambda: _listens(killer, 1))
        await until(lambda: "waits" in heard)  # whatever may have happened meanwhile
        heard.clear()
    await killer.close()


def _cancel_all_but(here: asyncio.Task[None] | None) -> None:
    for task in asyncio.all_tasks():
        if task is not here:
            task.cancel()


async def _listens(killer: asyncpg.Connection, count: int) -> bool:
    found = await killer.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
    )
    return bool(found == count)


def _beat(store: PostgresStore) -> Beat:
    heart = store.heart()
    try:
        return heart.beat("s1", 1000, 1000, 0, [])
    finally:
        heart.close()


async def test_a_heart_survives_the_loss_of_its_connection(postgres_url: str, open_postgres: Open) -> None:
    store = await open_postgres(postgres_url)
    await store.open_session(session_row("s1", store.now()))
    killer = await asyncpg.connect(postgres_url)
    heart = await asyncio.to_thread(store.heart)
    assert (await asyncio.to_thread(heart.beat, "s1", 1000, 1000, 0, []))[0]
    assert await killer.fetchval(_KILL) >= 1
    assert (await asyncio.to_thread(heart.beat, "s1", 1000, 1000, 0, []))[0]
    await asyncio.to_thread(heart.close)
    await killer.close()


async def test_a_server_that_stays_away_is_an_error_in_the_end(
    own_server: PostgresServer, open_postgres: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_link.Patience, "limit_ms", 200)
    store = await open_postgres(own_server.create_database("gone"))
    run_id = new_id()
    assert await store.submit(started(run_id)) == "applied"
    own_server.kill()
    writing = [store.submit(appended(run_id, 4)), store.submit(started(new_id())), store.run(run_id)]
    answers = await asyncio.wait_for(asyncio.gather(*writing, return_exceptions=True), 20)
    assert [type(answer) for answer in answers] == [StoreUnreachable] * 3
    for ids in ([run_id], [run_id, *(new_id() for _ in range(7))]):  # a batch does not wait once for each of its runs
        with pytest.raises(StoreUnreachable):
            await store.decide(ids, lambda locked: None)


@contextlib.contextmanager
def silent(server: PostgresServer) -> Iterator[None]:
    """The server takes packets and says nothing, like one whose network is gone."""
    every = [*children(server.pid), server.pid]
    for pid in every:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in every:
            os.kill(pid, signal.SIGCONT)


async def test_closing_does_not_wait_for_a_server_that_says_nothing(
    own_server: PostgresServer, open_postgres: Open
) -> None:
    store = await open_postgres(own_server.create_database("silent"))
    await store.submit(queued(new_id()))
    await store.counts()
    with silent(own_server):
        waits = [asyncio.ensure_future(store.submit(queued(new_id()))), asyncio.ensure_future(store.counts())]
        await asyncio.sleep(0)
        waits[1].cancel()
        async with asyncio.timeout(30):
            await asyncio.wait({waits[1]})
            await store.close()
            with pytest.raises(StoreUnreachable):
                await waits[0]
