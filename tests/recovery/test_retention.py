"""The loop that deletes what is old enough: its walk, what it does not touch, and where it is driven."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing

import asyncpg
import pytest
from tests.recovery.kit import quick, until
from tests.server.kit import patient, served
from tests.store.build import answer, create, ended
from tests.store.conftest import Open

import ironflow
from ironflow import Context, Engine
from ironflow.engine.doctor import examine
from ironflow.errors import RunFailed, StoreReadOnly
from ironflow.loops import retention
from ironflow.loops.retention import Retention
from ironflow.model.scope import DEFAULT, Scope
from ironflow.store.base import Store
from ironflow.store.reader import RunFilter

HOUR = 3_600_000
#: Keeps nothing, not even what ends within the next minute: for runs that have just ended.
NOTHING = -60_000
OTHER = Scope("other", "test")


async def at_once(seconds: float) -> None:
    """A sweep that rests for no time."""


def sweep(store: Store, keep_ms: int = HOUR) -> Retention:
    return Retention(store, keep_ms, at_once)


async def aged(store: Store, run_id: str, hours: float, **row: object) -> None:
    """A run that ended so many hours ago, and began not long before."""
    at = store.now() - round(hours * HOUR)
    await ended(store, run_id, at, **{"created_at": at - 1_000, **row})


async def left(store: Store) -> list[str]:
    return sorted(row.run_id for row in await store.runs(RunFilter(scope=None, limit=10_000)))


async def swept(loop: Retention) -> list[tuple[dict[str, int], bool]]:
    """The passes of one driver's turn: until none asks for another at once."""
    passes = []
    while not passes or passes[-1][1]:
        report = await loop.run_once()
        passes.append((report.counts, report.more))
    return passes


@ironflow.step
async def one() -> int:
    return 1


@ironflow.step
async def broken() -> None:
    raise ValueError("no")


@ironflow.workflow
async def steps(ctx: Context) -> int:
    return await one() + await one()


@ironflow.workflow
async def fails(ctx: Context) -> None:
    await broken()


@ironflow.workflow
async def sleeps(ctx: Context) -> None:
    await ctx.sleep("1h")


# ---- what it deletes
async def test_it_deletes_what_ended_longer_ago_than_it_is_kept_and_nothing_else(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    await aged(store, "older", 1.01)
    await aged(store, "younger", 0.99)
    await ended(store, "long", store.now() - HOUR // 2, created_at=1_000)  # it took years, and has just ended
    await answer(store, create("queued"))
    with caplog.at_level(logging.INFO, "ironflow.retention"):
        assert await swept(sweep(store)) == [({"trees": 1, "runs": 1}, True), ({}, False)]
    assert await left(store) == ["long", "queued", "younger"]
    assert [record.getMessage() for record in caplog.records] == ["runs deleted because they ended more than 1h ago: 1"]
    caplog.clear()
    assert await swept(sweep(store)) == [({}, False)]
    assert not caplog.records


async def test_a_clean_database_is_clean_behind_it(store_url: str, open_store: Open) -> None:
    async with Engine(settings=quick(database_url=store_url), workflows=[steps, fails, sleeps]) as engine:
        for _ in range(3):
            assert await engine.run(steps) == 2
        with pytest.raises(RunFailed):
            await engine.run(fails)
        asleep = await engine.start(sleeps)
        store = await open_store(store_url)
        await until(lambda: store.waits(asleep.id))
        assert (await sweep(store, NOTHING).run_once()).counts == {"trees": 4, "runs": 4}
        assert await left(store) == [asleep.id]
        assert await engine.run(steps) == 2, "and it goes on"
        assert await examine(store, health=False) == []


# ---- its walk
async def test_it_goes_on_at_once_while_it_deletes_and_begins_anew_behind_the_last(store: Store) -> None:
    for n in range(retention.BATCH + 2):
        await aged(store, f"r{n:03d}", 2)
    loop = sweep(store)
    full = retention.BATCH
    assert await swept(loop) == [({"trees": full, "runs": full}, True), ({"trees": 2, "runs": 2}, True), ({}, False)]
    await aged(store, "again", 3)
    assert await swept(loop) == [({"trees": 1, "runs": 1}, True), ({}, False)]
    assert await left(store) == []


async def test_runs_that_live_cost_a_page_at_a_time_and_do_not_hide_what_is_behind_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "PAGE", 4)
    for n in range(9):
        await answer(store, create(f"live{n}", created_at=1_000 + n))
    await ended(store, "old", 3_000, created_at=2_000)
    loop = sweep(store)
    assert await swept(loop) == [({}, False)], "the first four: nothing to delete is no reason to hurry"
    assert await swept(loop) == [({}, False)]
    assert await swept(loop) == [({"trees": 1, "runs": 1}, True), ({}, False)]
    await ended(store, "early", 3_000, created_at=500)
    assert await swept(loop) == [({"trees": 1, "runs": 1}, True), ({}, False)], "from the beginning"


async def test_every_scope_is_walked_and_each_is_told_of_its_own(store: Store) -> None:
    for n in range(3):
        await aged(store, f"mine{n}", 2)
        await aged(store, f"theirs{n}", 2, org=OTHER.org, environment=OTHER.environment)
    assert await swept(sweep(store)) == [({"trees": 3, "runs": 3}, True)] * 2 + [({}, False)]
    assert await left(store) == []
    for scope in (DEFAULT, OTHER):
        (told,) = await store.audits(scope=scope)
        assert (told["action"], told["fields"]["runs"]) == ("run.expire", 3)


async def test_a_transaction_is_bounded_by_events_as_well_as_by_trees(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        await aged(store, f"r{n}", 2)
    monkeypatch.setattr(retention, "EVENTS", 9)  # each has four
    assert (await sweep(store).run_once()).counts == {"trees": 5, "runs": 5}
    assert sorted(entry["fields"]["runs"] for entry in await store.audits()) == [1, 2, 2]
    await aged(store, "large", 2)
    monkeypatch.setattr(retention, "EVENTS", 1)
    assert (await sweep(store).run_once()).counts == {"trees": 1, "runs": 1}, "a tree is not cut"


async def test_it_rests_as_long_as_a_deletion_took(store: Store) -> None:
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    await aged(store, "old", 2)
    loop = Retention(store, HOUR, rest)
    began = asyncio.get_running_loop().time()
    await loop.run_once()
    assert 0 < rested[0] <= asyncio.get_running_loop().time() - began
    await loop.run_once()
    assert len(rested) == 1, "there was nothing to rest from"


# ---- what goes wrong, and who else is there
async def refuse_to_delete(url: str, run_id: str) -> None:
    """A rule of somebody else's in the database that forbids the deletion of one run."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite, lite:
            lite.execute(
                f"create trigger keep before delete on runs when old.run_id = '{run_id}' "
                "begin select raise(abort, 'somebody wants to keep it'); end"
            )
        return
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(
            "create function keep() returns trigger language plpgsql as "
            "$$ begin raise exception 'somebody wants to keep it'; end $$;"
            f"create trigger keep before delete on runs for each row when (old.run_id = '{run_id}') "
            "execute function keep()"
        )
    finally:
        await connection.close()


async def test_one_tree_that_cannot_be_deleted_stops_no_other(
    store: Store, store_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(5):
        await aged(store, f"r{n}", 2)
    await refuse_to_delete(store_url, "r2")
    loop = sweep(store)
    with caplog.at_level(logging.ERROR, "ironflow.retention"):
        assert await swept(loop) == [({"trees": 4, "runs": 4, "failed": 1}, True), ({}, False)]
    assert "run r2, which is old enough, cannot be deleted; the others are" in caplog.text
    assert "somebody wants to keep it" in caplog.text
    assert await left(store) == ["r2"]
    assert len(await store.journal("r2")) == 4, "nothing of it went"
    assert await swept(loop) == [({"failed": 1}, False)], "it is tried again, and not at once"


async def test_a_database_that_takes_nothing_is_no_bad_tree(store: Store, store_url: str, open_store: Open) -> None:
    await aged(store, "old", 2)
    reader = await open_store(store_url, read_only=True)
    with pytest.raises(StoreReadOnly):
        await sweep(reader).run_once()
    assert await left(store) == ["old"]


async def test_two_nodes_sweep_and_each_tree_is_deleted_once(store: Store, store_url: str, open_store: Open) -> None:
    count = 2 * retention.BATCH
    for n in range(count):
        await aged(store, f"r{n:03d}", 2)
    loops = [sweep(store), sweep(await open_store(store_url))]
    passes = await asyncio.gather(*map(swept, loops))
    while await left(store):  # a node that finds all of a page in the other's hands rests
        passes = [*passes, *await asyncio.gather(*map(swept, loops))]
    assert sum(counts.get("runs", 0) for one in passes for counts, _ in one) == count
    assert sum(entry["fields"]["runs"] for entry in await store.audits()) == count


# ---- where it is driven
async def test_off_there_is_no_such_loop(sqlite_url: str) -> None:
    async with Engine(settings=quick(database_url=sqlite_url), workflows=[steps]) as engine:
        assert engine.worker is not None
        assert "retention" not in [driver.loop.name for driver in engine.worker.dispatcher.drivers]
    async with served(sqlite_url) as here:
        assert "retention" not in [driver.loop.name for driver in here.node._drivers]


async def test_a_worker_deletes_what_is_old_enough(store: Store, store_url: str) -> None:
    await aged(store, "old", 2)
    await aged(store, "young", 0.5)
    settings = quick(database_url=store_url, run_retention_ms=HOUR)
    async with Engine(settings=settings, workflows=[steps]):
        await until(lambda: _is(store, ["young"]))


async def test_a_server_deletes_what_is_old_enough(store: Store, store_url: str) -> None:
    await aged(store, "old", 2)
    await aged(store, "young", 0.5)
    async with served(store_url, patient(run_retention_ms=HOUR)) as here:
        await until(lambda: _is(store, ["young"]))
        assert here.node.silent_loops() == []


async def _is(store: Store, expected: list[str]) -> bool:
    return await left(store) == expected
