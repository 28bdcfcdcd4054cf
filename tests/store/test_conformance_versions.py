"""Which version of a workflow new runs get: that of the workers which are there, and of several the newest."""

from __future__ import annotations

import pytest
from tests.recovery.kit import until
from tests.store.build import session

from ironflow.model.routing import Served, Serves, current
from ironflow.model.scope import DEFAULT, Scope
from ironflow.store import rows
from ironflow.store.base import Store, WorkflowSeen

SHOP = Scope("shop")


async def registers(store: Store, session_id: str, version: str, *continues: str, scope: Scope = DEFAULT) -> None:
    """A worker begins that has `order` in this version."""
    await later(store)
    serves = Serves(scope, (), {"order": Served((version, *continues), ())}).to_json()
    row = session(store, session_id, org=scope.org, environment=scope.environment, serves=serves, kind="http")
    assert await store.open_session(row)
    await store.saw_workflows([WorkflowSeen("order", version, "", f'{{"doc":"{version}"}}')], scope)


async def later(store: Store) -> None:
    """Two registrations of one millisecond have no order."""
    before = store.now()
    await until(lambda: store.now() > before)


async def version(store: Store, scope: Scope = DEFAULT) -> str:
    (found,) = await store.workflows(scope)
    assert found["definition"] == f'{{"doc":"{found["version"]}"}}'
    return str(found["version"])


async def test_an_old_worker_that_registers_again_does_not_take_new_runs_back_to_its_version(store: Store) -> None:
    await registers(store, "old", "1.10")
    assert await version(store) == "1.10"
    await registers(store, "new", "1.9")  # versions are names: what counts is that it appeared later
    assert await version(store) == "1.9"
    await registers(store, "old", "1.10")
    await registers(store, "old-2", "1.10")
    assert await version(store) == "1.9"
    first_seen_at = (await store.workflows())[0]["first_seen_at"]
    await registers(store, "new-2", "1.9")
    (found,) = await store.workflows()
    assert found["first_seen_at"] == first_seen_at < found["seen_at"]


async def test_a_version_that_is_taken_back_gives_new_runs_to_the_one_before(store: Store) -> None:
    await registers(store, "old", "1")
    await registers(store, "new", "2", "1")
    assert await version(store) == "2"
    assert await store.close_session("new") == []
    assert await version(store) == "1"
    await registers(store, "new-again", "2", "1")
    assert await version(store) == "2"
    assert await store.drain("new-again")  # it takes nothing new any more
    assert await version(store) == "1"


async def test_where_no_worker_is_the_version_that_appeared_last_counts(store: Store) -> None:
    await registers(store, "old", "1")
    await registers(store, "new", "2")
    await registers(store, "old", "1")
    for session_id in ("old", "new"):
        await store.close_session(session_id)
    assert await version(store) == "2"


async def test_a_worker_whose_time_has_run_out_does_not_count(store: Store) -> None:
    await registers(store, "old", "1")
    await store.saw_workflows([WorkflowSeen("order", "2", "", '{"doc":"2"}')])
    serves = Serves(DEFAULT, (), {"order": Served(("2",), ())}).to_json()
    assert await store.open_session(session(store, "new", ttl=0, serves=serves, kind="http"))
    await later(store)
    assert await version(store) == "1"


async def test_workers_of_another_scope_do_not_count(store: Store) -> None:
    await registers(store, "ours-old", "1")
    await registers(store, "ours-new", "2")
    await store.close_session("ours-new")
    await registers(store, "theirs", "1", scope=SHOP)
    await registers(store, "theirs-new", "2", scope=SHOP)
    assert (await version(store), await version(store, SHOP)) == ("1", "2")


async def test_so_many_versions_are_remembered_and_the_oldest_are_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "VERSIONS_KEPT", 3)
    for number in range(6):
        await registers(store, f"s{number}", str(number))
    await registers(store, "s3", "3")
    await registers(store, "s6", "6")  # and with it 4 is the one that was registered least lately
    for number in (6, 5, 3):
        assert await version(store) == str(number)
        await store.close_session(f"s{number}")
    assert await version(store) == "6"  # 4 lives, and is not known any more


def test_the_rule_by_itself() -> None:
    seen = [{"name": name, "version": v, "first_seen_at": at} for name, v, at in
            (("a", "x", 2), ("a", "y", 1), ("b", "1", 5), ("b", "0", 5))]  # fmt: skip
    serves = Serves(DEFAULT, (), {"a": Served(("y", "x"), ()), "c": Served(("1",), ())}).to_json()
    assert [(row["name"], row["version"]) for row in current(seen, [serves, serves])] == [("a", "y"), ("b", "1")]
    assert [(row["name"], row["version"]) for row in current(seen, [])] == [("a", "x"), ("b", "1")]
    assert current([], [serves]) == []
