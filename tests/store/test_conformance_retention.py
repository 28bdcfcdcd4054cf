"""Trees that are deleted because of their age: which of them, whole or not at all, and each by one node."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

import asyncpg
import pytest
from tests.store.build import answer, answers, changed, create, ended, leave, plan_of, start, timer
from tests.store.conftest import Open

from ironflow.errors import InvalidTransition, RunNotFound
from ironflow.model import operator
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import APPLIED, Locked, Transition
from ironflow.store import connect
from ironflow.store.base import INLINE_PAYLOAD, Deleted, Store
from ironflow.store.reader import RunFilter

OTHER = Scope("other", "test")
#: When runs ended, ms.
THEN = 50_000
START = (0, "")


def reopened(locked: Locked) -> Transition | None:
    return operator.reopen(locked, "bob", [])


async def left(store: Store) -> list[str]:
    """The runs that are still there."""
    return sorted(row.run_id for row in await store.runs(RunFilter(scope=None, limit=1_000)))


async def family(store: Store, *, grandchild: str | None = None) -> None:
    """A root with two children and a grandchild, all ended at `THEN`, but the grandchild where it has a state."""
    await ended(store, "root", THEN)
    for child in ("child1", "child2"):
        await ended(store, child, THEN, root_run_id="root", parent_run_id="root")
    if grandchild is None:
        await ended(store, "grandchild", THEN, root_run_id="root", parent_run_id="child1")
    else:
        assert await answer(store, start("grandchild", root_run_id="root", parent_run_id="child1")) == APPLIED
        await store.decide(["grandchild"], changed(state=grandchild))


# ---- which
async def test_what_ended_after_the_time_stays_and_what_ended_at_it_goes(store: Store) -> None:
    for n in (-1, 0, 1):
        await ended(store, f"r{n}", THEN + n)
    page = await store.expired_trees(DEFAULT, THEN, START, 100, 100)
    assert (page.roots, page.after) == ([("r-1", 4), ("r0", 4)], None)
    assert await store.delete_expired(["r-1", "r0", "r1", "never"], THEN, DEFAULT) == Deleted(2, 2)
    assert await left(store) == ["r1"]
    assert [len(await store.journal(run_id)) for run_id in ("r-1", "r0", "r1")] == [0, 0, 4]


async def test_a_run_that_lives_stays_however_old_it_is(store: Store) -> None:
    await answers(store, start("busy"), start("asleep"), create("queued"))
    await answer(store, leave("asleep", 4, "sleeping", waits=[timer("asleep", 1)]))
    forever = store.now() + 1_000
    assert (await store.expired_trees(DEFAULT, forever, START, 100, 100)).roots == []
    assert await store.delete_expired(["busy", "asleep", "queued"], forever, DEFAULT) == Deleted(0, 0)
    assert await left(store) == ["asleep", "busy", "queued"]
    assert await store.audits() == []


async def test_every_kind_of_end_is_one(store: Store) -> None:
    for state in ("completed", "failed", "cancelled", "warning"):
        await ended(store, state, THEN, state=state, warnings=int(state == "warning"))
    assert len((await store.expired_trees(DEFAULT, THEN, START, 100, 100)).roots) == 4


async def test_a_scope_is_looked_at_and_deleted_from_by_itself(store: Store) -> None:
    await ended(store, "mine", THEN)
    await ended(store, "theirs", THEN, org=OTHER.org, environment=OTHER.environment)
    assert sorted(await store.scopes()) == [DEFAULT, OTHER]
    assert [run_id for run_id, _ in (await store.expired_trees(OTHER, THEN, START, 100, 100)).roots] == ["theirs"]
    assert await store.delete_expired(["mine", "theirs"], THEN, OTHER) == Deleted(1, 1)
    assert await left(store) == ["mine"]
    (told,) = await store.audits()
    assert (told["org"], told["environment"]) == OTHER


# ---- whole trees
async def test_a_tree_goes_with_everything_below_its_root(store: Store) -> None:
    await family(store)
    assert (await store.expired_trees(DEFAULT, THEN, START, 100, 100)).roots == [("root", 4)]
    assert await store.delete_expired(["root"], THEN, DEFAULT) == Deleted(1, 4)
    assert await left(store) == []
    assert await store.journal("grandchild") == []


@pytest.mark.parametrize("state", ["running", "sleeping", "pending"])
async def test_a_tree_stays_whole_while_one_run_of_it_lives(store: Store, state: str) -> None:
    await family(store, grandchild=state)
    await ended(store, "lone", THEN)
    assert await store.delete_expired(["lone", "root"], THEN, DEFAULT) == Deleted(1, 1)
    assert await left(store) == ["child1", "child2", "grandchild", "root"]
    assert [len(await store.journal(run_id)) for run_id in ("root", "child1")] == [4, 4]
    await store.decide(["grandchild"], changed(state="completed", ended_at=THEN + 1))
    assert await store.delete_expired(["root"], THEN, DEFAULT) == Deleted(0, 0), "it ended later"
    assert await store.delete_expired(["root"], THEN + 1, DEFAULT) == Deleted(1, 4)


async def test_a_root_with_a_child_that_goes_on_is_not_found_and_a_child_is_no_tree(store: Store) -> None:
    await family(store)
    assert await store.delete_expired(["child1", "grandchild"], THEN, DEFAULT) == Deleted(0, 0)
    await store.decide(["child2"], changed(ended_at=None, state="running"))
    assert (await store.expired_trees(DEFAULT, THEN, START, 100, 100)).roots == []
    await store.decide(["child2"], changed(ended_at=THEN + 1, state="failed"))
    assert (await store.expired_trees(DEFAULT, THEN, START, 100, 100)).roots == []
    assert len((await store.expired_trees(DEFAULT, THEN + 1, START, 100, 100)).roots) == 1


async def test_who_deletes_one_run_by_hand_deletes_its_tree_or_is_refused(store: Store) -> None:
    await family(store, grandchild="sleeping")
    with pytest.raises(InvalidTransition, match="children that have not ended"):
        await store.delete_run("root", "ann", DEFAULT)
    assert len(await left(store)) == 4
    await store.decide(["grandchild"], changed(state="completed", ended_at=store.now()))
    assert await store.delete_run("root", "ann", DEFAULT)
    assert await left(store) == []


# ---- what goes, and what is kept
async def test_nothing_of_a_deleted_run_is_left_but_one_audit_entry_for_all_of_them(store: Store) -> None:
    change = start("r1", limits="{}", idempotency_key="k")
    change.lanes = [("group:api", 5)]
    change.events[0].payload = f'{{"input":"{"x" * INLINE_PAYLOAD}"}}'
    assert await answer(store, change) == APPLIED
    assert await answer(store, leave("r1", 4, "completed")) == APPLIED
    for n in (2, 3):
        await ended(store, f"r{n}", THEN, workflow="bill")
    now = store.now() + 1_000
    assert await store.delete_expired(["r1", "r2", "r3"], now, DEFAULT) == Deleted(3, 3)
    (told,) = await store.audits()
    assert (told["action"], told["actor"], told["run_id"]) == ("run.expire", "retention", None)
    assert told["fields"] == {"runs": 3, "trees": 3, "workflows": {"bill": 2, "order": 1}, "ended_before": now}
    assert await store.find_key("idempotency_key", "k", "order") is None
    assert await answer(store, start("r1", idempotency_key="k")) == APPLIED
    assert len(await store.journal("r1")) == 3
    assert await store.delete_expired(["r2", "r3"], now, DEFAULT) == Deleted(0, 0)
    assert len(await store.audits()) == 1, "nothing was done, so nothing is told"


async def execute(url: str, *statements: str) -> Any:
    """What somebody else's program does to the database; returns what the last statement gave."""
    found: Any = None
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as lite, lite:
            for statement in statements:
                found = lite.execute(statement).fetchall()
        return found
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            for statement in statements:
                found = [tuple(row) for row in await connection.fetch(statement)]
    finally:
        await connection.close()
    return found


async def test_p8_retention_lets_go_of_the_journals_it_deletes_and_of_no_other(store: Store, store_url: str) -> None:
    await ended(store, "old", THEN)
    await ended(store, "kept", THEN + 1)
    assert await store.delete_expired(["old", "kept"], THEN, DEFAULT) == Deleted(1, 1)
    assert await execute(store_url, "select run_id from retention_passes") == []
    for table in ("journal_events", "journal_payloads"):
        if table == "journal_payloads":
            await execute(store_url, "insert into journal_payloads (run_id, seq, payload) values ('kept', 1, 'x')")
        with pytest.raises((sqlite3.IntegrityError, asyncpg.RaiseError), match="append-only"):
            await execute(store_url, f"delete from {table} where run_id = 'kept'")
        with pytest.raises((sqlite3.IntegrityError, asyncpg.RaiseError), match="append-only"):
            await execute(
                store_url,
                "insert into retention_passes (run_id) values ('other')",
                f"delete from {table} where run_id = 'kept'",
            )
    assert len(await store.journal("kept")) == 4


# ---- pages
async def test_pages_go_on_behind_each_other_until_the_scope_ends(store: Store) -> None:
    for n in range(7):
        await (ended(store, f"r{n}", THEN, created_at=1_000 + n) if n % 2 else answer(store, start(f"r{n}")))
        await store.decide([f"r{n}"], changed(priority=n))
    await ended(store, "later", THEN, created_at=THEN + 1)
    seen, after, pages = [], START, 0
    while after is not None:
        page = await store.expired_trees(DEFAULT, THEN, after, 3, 100)
        seen += [run_id for run_id, _ in page.roots]
        after, pages = page.after, pages + 1
    assert (seen, pages) == (["r1", "r3", "r5"], 3), "what was created after the time has not ended before it"


async def test_a_page_ends_at_its_last_find(store: Store) -> None:
    for n in range(5):
        await ended(store, f"r{n}", THEN, created_at=1_000 + n)
    page = await store.expired_trees(DEFAULT, THEN, START, 100, 2)
    assert (page.roots, page.after) == ([("r0", 4), ("r1", 4)], (1_001, "r1"))
    page = await store.expired_trees(DEFAULT, THEN, (1_001, "r1"), 3, 3)
    assert ([run_id for run_id, _ in page.roots], page.after) == (["r2", "r3", "r4"], (1_004, "r4"))
    page = await store.expired_trees(DEFAULT, THEN, (1_004, "r4"), 3, 3)
    assert (page.roots, page.after) == ([], None)


async def test_looks_and_deletions_walk_indexes_and_no_whole_table(store: Store, store_url: str) -> None:
    """Of tables that nobody has analysed: a young database is what planners are wrong about."""
    await asyncio.gather(*(answer(store, create(f"r{n}")) for n in range(300)))
    named: dict[str, Any] = {
        "org": "default", "environment": "default", "created_by": 1 << 50, "after_at": 0, "after_id": "",
        "until_at": 1 << 50, "until_id": "", "ended_before": 1 << 50, "page": 100, "limit": 10,
    }  # fmt: skip
    names = ("page_end", "expired_trees", "lock_expired", "descendants", "lock_ended", "delete_journals", "delete_runs")
    for name in names:
        text = await plan_of(store_url, name, {**named, "ids": ["r1", "r2"]})
        assert "SCAN runs" not in text, text
        assert "Seq Scan on" not in text, text
        if name in ("page_end", "expired_trees"):
            assert "runs_created" in text, text
            assert "TEMP B-TREE" not in text, text
            assert "Sort" not in text, text
        elif name != "delete_journals":
            assert "runs_created" not in text, text


# ---- others at the same time
async def test_a_run_that_was_opened_again_since_it_was_found_stays(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)
    for run_id in ("r1", "r2"):
        await ended(store, run_id, THEN, state="failed")
    page = await store.expired_trees(DEFAULT, THEN, START, 100, 100)
    await other.decide(["r1"], reopened)
    assert await store.delete_expired([run_id for run_id, _ in page.roots], THEN, DEFAULT) == Deleted(1, 1)
    row = await store.run("r1")
    assert row is not None
    assert (row.state, row.ended_at, len(await store.journal("r1"))) == ("pending", None, 5)


async def test_of_a_deletion_by_age_and_a_reopening_at_once_one_happens(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)
    for n in range(12):
        run_id = f"r{n}"
        await ended(store, run_id, THEN, state="failed")
        gone, found = await asyncio.gather(
            store.delete_expired([run_id], THEN, DEFAULT), other.decide([run_id], reopened)
        )
        row, events = await store.run(run_id), await store.journal(run_id)
        if gone == Deleted(1, 1):
            assert isinstance(found[run_id], RunNotFound)
            assert (row, events) == (None, [])
        else:
            assert gone == Deleted(0, 0)
            assert row is not None
            assert (row.state, len(events)) == ("pending", 5)
    assert {row.run_id for row in await store.queue()} == set(await left(store))


@pytest.mark.parametrize("held", ["root", "grandchild"])
async def test_a_tree_that_somebody_has_in_hand_is_left_and_not_waited_for(postgres_url: str, held: str) -> None:
    """The lock is kept for as long as the test likes, so whoever waited for it would never come back."""
    store = await connect(postgres_url)
    connection = await asyncpg.connect(postgres_url)
    try:
        await family(store)
        await ended(store, "lone", THEN)
        async with connection.transaction():
            await connection.execute("update runs set state = 'running', ended_at = null where run_id = $1", held)
            async with asyncio.timeout(20):
                assert await store.delete_expired(["lone", "root"], THEN, DEFAULT) == Deleted(1, 1)
        assert await left(store) == ["child1", "child2", "grandchild", "root"]
        assert await store.delete_expired(["root"], THEN, DEFAULT) == Deleted(0, 0)
    finally:
        await connection.close()
        await store.close()


async def test_two_nodes_delete_each_tree_once(store: Store, store_url: str, open_store: Open) -> None:
    other = await open_store(store_url)
    names = [f"r{n:02d}" for n in range(24)]
    for name in names:
        await ended(store, name, THEN)
    batches = [names[start : start + 6] for start in range(0, 24, 6)]
    gone = await asyncio.gather(
        *(node.delete_expired(batch, THEN, DEFAULT) for batch in batches for node in (store, other))
    )
    assert sum(one.trees for one in gone) == sum(one.runs for one in gone) == 24
    assert sum(entry["fields"]["runs"] for entry in await store.audits()) == 24
    assert await left(store) == []
