"""Keys: kept by their hash, found by it, taken back once, and written down when they are."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.store.conftest import Open

from ironflow.errors import StoreReadOnly
from ironflow.model.key import KeyRow
from ironflow.model.scope import Scope
from ironflow.model.transition import Audit
from ironflow.store.base import Store


def key(key_id: str = "k1", **values: Any) -> KeyRow:
    fixed: dict[str, Any] = {
        "org": "a", "environment": "default", "kind": "org", "role": "admin", "name": "ann's", "key_hash": f"#{key_id}",
        "workflows": None, "created_at": 1, "created_by": "ann",
    }  # fmt: skip
    return KeyRow(key_id, **{**fixed, **values})


async def add(store: Store, row: KeyRow) -> bool:
    return await store.add_key(row, Audit("key.create", "ann", None, {"key_id": row.key_id}, row.scope))


async def test_a_key_is_found_by_its_hash_as_it_was_added(store: Store) -> None:
    row = key("k1", kind="worker", role=None, workflows='["order"]', expires_at=9)
    assert await add(store, row)
    assert await store.key_by_hash("#k1") == row
    assert await store.key_by_hash("k1") is None
    assert await store.key_by_hash("#k\0") is None
    (told,) = await store.audits()
    assert (told["action"], told["org"], told["fields"]) == ("key.create", "a", {"key_id": "k1"})


@pytest.mark.parametrize("taken", [key("k1", key_hash="#other"), key("k2", key_hash="#k1")], ids=["id", "hash"])
async def test_a_second_key_of_one_id_or_hash_is_not_added(store: Store, taken: KeyRow) -> None:
    assert await add(store, key("k1"))
    assert not await add(store, taken)
    assert await store.keys(None) == [key("k1")]
    assert len(await store.audits()) == 1


async def test_an_organisation_lists_its_own_keys(store: Store) -> None:
    rows = [key("k2", created_at=1), key("k1", created_at=2, environment="staging"), key("k3", org="b", created_at=0)]
    for row in rows:
        await add(store, row)
    assert [row.key_id for row in await store.keys("a")] == ["k2", "k1"]
    assert [row.key_id for row in await store.keys("b")] == ["k3"]
    assert [row.key_id for row in await store.keys(None)] == ["k3", "k2", "k1"]
    assert await store.keys("nobody") == []


async def test_a_key_is_taken_back_once(store: Store) -> None:
    await add(store, key("k1", environment="staging"))
    assert not await store.revoke_key("nobody", "ann")
    assert not await store.revoke_key("k\0", "ann")
    before = store.now()
    assert await store.revoke_key("k1", "ann")
    assert not await store.revoke_key("k1", "ann")
    (row,) = await store.keys("a")
    assert row.revoked_at is not None
    assert row.revoked_at >= before
    assert not row.usable(store.now())
    told = [one for one in await store.audits(scope=Scope("a", "staging")) if one["action"] == "key.revoke"]
    assert [(one["actor"], one["fields"]) for one in told] == [
        ("ann", {"key_id": "k1", "kind": "org", "name": "ann's"})
    ]


async def test_of_two_who_take_a_key_back_at_once_one_is_told_and_one_entry_is_written(
    store: Store, store_url: str, open_store: Open
) -> None:
    other = await open_store(store_url)
    for n in range(10):
        await add(store, key(f"k{n}"))
        done = await asyncio.gather(store.revoke_key(f"k{n}", "ann"), other.revoke_key(f"k{n}", "bob"))
        assert sorted(done) == [False, True]
    assert len([one for one in await store.audits() if one["action"] == "key.revoke"]) == 10


async def test_when_a_key_was_used_only_grows(store: Store) -> None:
    await add(store, key("k1"))
    await add(store, key("k2"))
    await store.used_keys({"k1": 50, "k2": 60, "nobody": 70})
    await store.used_keys({"k1": 40, "k2": 80})
    await store.used_keys({})
    assert {row.key_id: row.last_used_at for row in await store.keys(None)} == {"k1": 50, "k2": 80}
    assert await store.audits() != []


def test_a_key_opens_until_it_expires_and_never_shows_its_hash() -> None:
    row = key(expires_at=10)
    assert (row.usable(9), row.usable(10)) == (True, False)
    assert key().usable(1 << 60)
    assert "#k1" not in repr(row)


async def test_a_store_that_only_reads_adds_no_key(store: Store, store_url: str, open_store: Open) -> None:
    reader = await open_store(store_url, read_only=True)
    with pytest.raises(StoreReadOnly):
        await add(reader, key())
    assert await reader.keys(None) == []
