"""Races between stores on one PostgreSQL database: two processes' worth of connections, and more, collide."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import AsyncIterator, Callable

import asyncpg
import pytest
from tests.recovery.kit import until
from tests.store.postgres_cases import (
    ROUTE,
    TTL_MS,
    appended,
    assert_dense,
    ended,
    new_id,
    queued,
    recovered,
    session_row,
    started,
    taken,
)

from ironflow.errors import StoreError
from ironflow.model.capacity import LeaseRow
from ironflow.model.fold import fold
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_LOCKED, Locked, Transition
from ironflow.store.heart import LEASE_STALE, LEASE_UNKNOWN, REFRESHED, Beat
from ironflow.store.postgres import PostgresStore, open_postgres

Open = Callable[[], "asyncio.Future[PostgresStore]"]


@pytest.fixture
async def stores(postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    """Two stores, as two processes would have them."""
    opened = [await open_postgres(postgres_url) for _ in range(2)]
    yield opened
    for store in opened:
        await store.close()


async def test_of_two_claims_of_one_run_exactly_one_is_applied(stores: list[PostgresStore]) -> None:
    runs = [new_id() for _ in range(60)]
    await asyncio.gather(*[stores[0].submit(queued(run_id)) for run_id in runs])
    claims = [store.submit(taken(run_id, 0, 2, f"t{n}")) for run_id in runs for n, store in enumerate(stores)]
    answers = await asyncio.gather(*claims)
    for n in range(len(runs)):
        assert sorted(answers[2 * n : 2 * n + 2]) == ["applied", "lost"]
    assert len(await stores[0].leases()) == len(runs)
    for run_id in runs:
        assert_dense(await stores[0].journal(run_id))


async def test_an_owner_that_was_replaced_writes_nothing_more(stores: list[PostgresStore]) -> None:
    """The zombie and the scanner meet on the run row: whoever is second sees what the first one did."""
    zombie, scanner = stores
    for _ in range(40):
        run_id = new_id()
        await zombie.submit(started(run_id))
        late, decided = await asyncio.gather(zombie.submit(appended(run_id, 4)), scanner.decide([run_id], recovered))
        assert isinstance(decided[run_id], Transition)
        assert await zombie.submit(appended(run_id, 6)) == "stale"
        assert await zombie.submit(ended(run_id, 6)) == "stale"
        journal = await scanner.journal(run_id)
        assert_dense(journal)
        assert len(journal) == (6 if late == "applied" else 4)
        assert journal[-1].kind == "run_recovered"
        assert not fold(journal).breaches


async def test_the_next_number_is_learned_after_the_lock(stores: list[PostgresStore]) -> None:
    """Takeovers while the owner appends at full speed: none meets a number that is taken."""
    owner, other = stores
    run_id = new_id()
    await owner.submit(started(run_id))
    notes = 0

    def note(locked: Locked) -> Transition:
        change = Transition(run_id, GUARD_LOCKED)
        change.events = [Event(0, "status_set", None, '{"text":"hello"}', locked.row.execution_seq)]
        return change

    async def write(count: int) -> None:
        for _ in range(count):
            last = (await owner.journal(run_id))[-1].seq
            # A note may come between the look and the write: then the number is taken, and the key says so.
            with contextlib.suppress(StoreError):
                await owner.submit(appended(run_id, last + 1))

    async def interrupt(count: int) -> None:
        nonlocal notes
        for _ in range(count):
            found = await other.decide([run_id], note)
            assert isinstance(found[run_id], Transition), found
            notes += 1

    await asyncio.gather(write(120), interrupt(120))
    journal = await owner.journal(run_id)
    assert_dense(journal)
    assert sum(event.kind == "status_set" for event in journal) == notes == 120


async def test_two_scanners_recover_a_run_once(stores: list[PostgresStore]) -> None:
    runs = [new_id() for _ in range(30)]
    await asyncio.gather(*[stores[0].submit(started(run_id)) for run_id in runs])

    def recover(locked: Locked) -> Transition | None:
        return recovered(locked) if locked.lease is not None else None

    found = await asyncio.gather(*[store.decide(runs, recover) for store in stores])
    for run_id in runs:
        assert sorted(isinstance(one[run_id], Transition) for one in found) == [False, True]
        row = await stores[0].run(run_id)
        assert row is not None
        assert row.execution_seq == 2


async def test_a_sweep_leaves_alone_what_somebody_has_locked(stores: list[PostgresStore], postgres_url: str) -> None:
    free, held = new_id(), new_id()
    await asyncio.gather(*[stores[0].submit(started(run_id)) for run_id in (free, held)])
    other = await asyncpg.connect(postgres_url)
    async with other.transaction():
        await other.execute("select 1 from runs where run_id = $1 for no key update", held)
        found = await asyncio.wait_for(stores[1].decide([free, held], recovered, skip_locked=True), 10)
    assert isinstance(found[free], Transition)
    assert found[held] is None
    await other.close()


async def test_a_lease_that_somebody_works_on_is_unknown_and_not_stale(
    stores: list[PostgresStore], postgres_url: str
) -> None:
    store = stores[0]
    await store.open_session(session_row("s1", store.now()))
    locked, free, gone = new_id(), new_id(), new_id()
    await asyncio.gather(*[store.submit(started(run_id)) for run_id in (locked, free)])
    other = await asyncpg.connect(postgres_url)
    async with other.transaction():
        await other.execute("select 1 from concurrency_leases where run_id = $1 for update", locked)
        held = [(run_id, 1, "t1", True) for run_id in (locked, free, gone)]
        alive, _, verdicts = await asyncio.to_thread(_beat_once, store, held)
    assert alive
    assert [one.verdict for one in verdicts] == [LEASE_UNKNOWN, REFRESHED, LEASE_STALE]
    alive, _, verdicts = await asyncio.to_thread(_beat_once, store, held)
    assert [one.verdict for one in verdicts] == [REFRESHED, REFRESHED, LEASE_STALE]
    executing = {lease.run_id: lease.executing for lease in await store.leases()}
    assert executing == {locked: 1, free: 1}
    await other.close()


def _beat_once(store: PostgresStore, held: list[tuple[str, int, str, bool]]) -> Beat:
    heart = store.heart()
    try:
        return heart.beat("s1", TTL_MS, TTL_MS, 3, held)
    finally:
        heart.close()


async def test_of_two_claims_of_the_last_place_in_a_lane_one_is_held_back(stores: list[PostgresStore]) -> None:
    for _ in range(25):
        pair = [new_id(), new_id()]
        for run_id in pair:
            change = queued(run_id, limits="[]")
            change.lanes = [("lane", 1)]
            assert await stores[0].submit(change) == "applied"
        claims = [store.submit(taken(run_id, 0, 2, "t1")) for run_id, store in zip(pair, stores, strict=True)]
        answers = await asyncio.gather(*claims)
        assert sorted(answers) == ["applied", "lost"]
        held_back = next(row for row in await stores[0].queue() if row.run_id in pair)
        assert (held_back.status, held_back.blocked_lane) == ("blocked", "lane")
        winner = pair[answers.index("applied")]
        assert await stores[0].submit(ended(winner, 3)) == "applied"
        next_one = next(row for row in await stores[0].queue() if row.run_id in pair)
        assert (next_one.status, next_one.blocked_lane) == ("ready", None)
        assert await stores[0].submit(taken(next_one.run_id, 0, 2, "t1")) == "applied"
        assert await stores[0].submit(ended(next_one.run_id, 3)) == "applied"


async def test_a_lane_is_never_over_admitted_by_claims_from_two_sides(stores: list[PostgresStore]) -> None:
    limit, total = 3, 24
    runs = [new_id() for _ in range(total)]
    for run_id in runs:
        change = queued(run_id, limits='[["lane",3]]')
        change.lanes = [("lane", limit)]
        assert await stores[0].submit(change) == "applied"
    done: set[str] = set()

    async def work(n: int, store: PostgresStore) -> None:
        for turn in range(400):
            if len(done) == total:
                return
            heads = await store.reserve([ROUTE], 2, f"s{n}", TTL_MS) if turn % 2 else await store.peek([ROUTE], 2)
            for head in heads:
                change = taken(head.run_id, 0, 2, f"t{n}")
                change.reservation = head.reservation
                if await store.submit(change) != "applied":
                    continue
                executing = [lease.run_id for lease in await store.leases()]
                assert len(executing) <= limit, executing
                assert await store.submit(ended(head.run_id, 3, f"t{n}")) == "applied"
                done.add(head.run_id)

    await asyncio.gather(*[work(n, store) for n, store in enumerate(stores * 2)])
    assert done == set(runs)
    assert await stores[0].queue() == []


#: How often each is to succeed: some seconds' worth.
ENOUGH = {"claimed": 100, "recovered": 10, "renewed": 1_000, "cancelled": 40}


class Crowd:
    """Claimers, renewers, scanners and a canceller on the same few runs."""

    def __init__(self, stores: list[PostgresStore], runs: list[str]) -> None:
        self.stores = stores
        self.runs = runs
        self.tokens: dict[str, tuple[int, str]] = {}
        self.stop = threading.Event()
        self.counts = dict.fromkeys(ENOUGH, 0)

    def met_enough(self) -> bool:
        """Whether everybody has done what it takes for all of them to have met."""
        return all(self.counts[name] >= often for name, often in ENOUGH.items())

    async def claim(self, n: int) -> None:
        store = self.stores[n % 2]
        while not self.stop.is_set():
            for head in await store.reserve([ROUTE], 5, "s1", TTL_MS):
                last = (await store.journal(head.run_id))[-1].seq
                token = f"{n}-{last}"
                change = taken(head.run_id, head.execution_seq, last + 1, token)
                change.reservation, change.facts = head.reservation, head.facts
                change.lease = LeaseRow(head.run_id, head.execution_seq + 1, token, "s1", 0, 30)
                if await store.submit(change) == "applied":
                    self.tokens[head.run_id] = (head.execution_seq + 1, token)
                    self.counts["claimed"] += 1
            await store.promote()

    def renew(self) -> None:
        heart = self.stores[0].heart()
        try:
            while not self.stop.wait(0.005):
                # In any order, and not all of them: some leases are left to the scanners.
                named = random.sample(list(self.tokens.items()), len(self.tokens) // 4)
                held = [(run_id, seq, token, False) for run_id, (seq, token) in named]
                _, _, verdicts = heart.beat("s1", 30, 30, 0, held)
                self.counts["renewed"] += sum(one.verdict == REFRESHED for one in verdicts)
        finally:
            heart.close()

    async def scan(self, n: int) -> None:
        def recover(locked: Locked) -> Transition | None:
            if locked.lease is None or locked.lease.expires_at > locked.now:
                return None
            return recovered(locked)

        while not self.stop.is_set():
            expired = await self.stores[n].expired_leases(20)
            found = await self.stores[n].decide(expired, recover, skip_locked=True)
            self.counts["recovered"] += written(found)
            await asyncio.sleep(0.01)

    async def cancel(self) -> None:
        def give_back(locked: Locked) -> Transition | None:
            return recovered(locked) if locked.lease is not None else None

        while not self.stop.is_set():
            self.counts["cancelled"] += written(await self.stores[1].decide(random.sample(self.runs, 2), give_back))
            await asyncio.sleep(0.02)


def written(found: dict[str, Transition | Exception | None]) -> int:
    """How many were decided; none of them may have failed."""
    assert not [one for one in found.values() if isinstance(one, Exception)]
    return sum(one is not None for one in found.values())


async def test_claims_renewals_sweeps_and_cancels_never_deadlock(
    stores: list[PostgresStore], postgres_url: str
) -> None:
    """Eight claimers, four renewers, two scanners and a canceller."""
    store = stores[0]
    runs = [new_id() for _ in range(40)]
    await store.open_session(session_row("s1", store.now()))
    await asyncio.gather(*[store.submit(queued(run_id)) for run_id in runs])
    crowd = Crowd(stores, runs)
    threads = [threading.Thread(target=crowd.renew) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        async with asyncio.TaskGroup() as group:
            for work in (*map(crowd.claim, range(8)), crowd.scan(0), crowd.scan(1), crowd.cancel()):
                group.create_task(work)
            await until(crowd.met_enough, "each of them did its work often enough", patience=60)
            crowd.stop.set()
    finally:
        crowd.stop.set()
        for thread in threads:
            await asyncio.to_thread(thread.join)
    watcher = await asyncpg.connect(postgres_url)
    deadlocks = await watcher.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    await watcher.close()
    assert deadlocks == 0
    for run_id in runs:
        journal = await store.journal(run_id)
        assert_dense(journal)
        assert not fold(journal).breaches


async def test_processes_wake_each_other_and_not_themselves(stores: list[PostgresStore]) -> None:
    heard: list[list[str]] = [[], []]
    told = asyncio.Event()

    def hear(n: int) -> Callable[[str], None]:
        def wake(topic: str) -> None:
            heard[n].append(topic)
            if topic == "last":
                told.set()

        return wake

    for n, store in enumerate(stores):
        assert await store.listen(hear(n)) is None
    for topic in ("queue", "queue", "runs:1", "last"):
        stores[0].notify(topic)
    await asyncio.wait_for(told.wait(), 10)
    assert heard[1] == ["queue", "runs:1", "last"]
    assert heard[0] == []
