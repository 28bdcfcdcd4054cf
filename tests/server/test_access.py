"""Keys and rates at one node: what it remembers of a key, and for how long."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest
from tests.server.asking import serving

from ironflow.config import Settings
from ironflow.errors import InvalidInput, RateLimited, Unauthenticated
from ironflow.model import key as kinds
from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.server import keys
from ironflow.server.access import FRESH_S, NOTED_S, Access
from ironflow.store import connect
from ironflow.store.base import Store


@pytest.fixture
async def store(sqlite_url: str) -> AsyncIterator[Store]:
    made = await connect(sqlite_url)
    yield made
    await made.close()


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


async def issued(store: Store, kind: str = kinds.ORG) -> tuple[KeyRow, str]:
    role = "viewer" if kind == kinds.ORG else None
    row, secret = keys.issue(kind, "k", now=store.now(), by="test", role=role)
    assert await store.add_key(row, keys.audit_of(row))
    return row, secret


async def settled(access: Access) -> None:
    await access.close()


def test_keys_tell_their_kind_hold_32_random_bytes_and_are_never_alike() -> None:
    made = [keys.issue(kind, "k", now=0, by="t", role="viewer" if kind == "org" else None) for kind in keys.PREFIXES]
    forms = [r"ifkey_\w{43}", r"ifplatform_\w{43}", r"ifworker_\w{43}"]
    assert all(re.fullmatch(form, secret, re.ASCII) for form, (_, secret) in zip(forms, made, strict=True))
    assert all(keys.well_formed(secret) and row.key_hash == keys.hash_of(secret) for row, secret in made)
    assert all(secret not in repr(row) and row.key_hash not in repr(row) for row, secret in made)
    many = {keys.issue("worker", "k", now=0, by="t") [1] for _ in range(200)}  # fmt: skip
    assert len(many) == 200
    assert not any(keys.well_formed(text) for text in ("", "ifkey_", "ifkey_" + "x" * 42, "ifkey_" + "ä" * 43))


def test_a_platform_key_is_of_no_organisation() -> None:
    row, _ = keys.issue("platform", "k", now=0, by="t")
    assert row.scope == keys.EVERYWHERE
    with pytest.raises(InvalidInput):
        keys.issue("org", "k", now=0, by="t", role="admin", scope=Scope(*keys.EVERYWHERE))


async def test_a_node_asks_the_database_for_a_key_once_a_second(store: Store) -> None:
    row, secret = await issued(store)
    clock = Clock()
    access = Access(store, Settings(), clock=clock)
    first = await access.caller(secret)
    assert (first.scope, first.role, first.actor) == (DEFAULT, "viewer", f"k ({row.key_id})")
    assert await store.revoke_key(row.key_id, "test")
    assert await access.caller(secret) is first  # not asked again yet
    assert await access.counts(first)
    clock.now += FRESH_S
    assert not await access.counts(first)  # a stream that has lasted asks
    with pytest.raises(Unauthenticated):
        await access.caller(secret)
    await settled(access)


async def test_the_node_that_revokes_a_key_forgets_it_at_once(store: Store) -> None:
    row, secret = await issued(store)
    access = Access(store, Settings(), clock=Clock())
    await access.caller(secret)
    assert await store.revoke_key(row.key_id, "test")
    access.forget(row.key_id)
    with pytest.raises(Unauthenticated):
        await access.caller(secret)
    await settled(access)


async def test_a_look_that_was_under_way_does_not_bring_a_revoked_key_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, secret = await issued(store)
    access = Access(store, Settings(), clock=Clock())
    real, has_read, may_answer = store.key_by_hash, asyncio.Event(), asyncio.Event()

    async def slow(key_hash: str) -> KeyRow | None:
        found = await real(key_hash)
        has_read.set()
        await may_answer.wait()
        return found

    monkeypatch.setattr(store, "key_by_hash", slow)
    asking = asyncio.ensure_future(access.caller(secret))
    await has_read.wait()
    assert await store.revoke_key(row.key_id, "test")
    access.forget(row.key_id)
    may_answer.set()
    await asking  # it came before the revocation
    with pytest.raises(Unauthenticated):
        await access.caller(secret)
    await settled(access)


async def test_the_last_use_of_a_key_is_written_at_most_once_a_minute(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    row, secret = await issued(store)
    clock, written = Clock(), []
    access = Access(store, Settings(), clock=clock)
    real = store.used_keys

    async def counting(used: dict[str, int]) -> None:
        written.append(used)
        await real(used)

    monkeypatch.setattr(store, "used_keys", counting)
    for _ in range(5):
        await access.caller(secret)
        clock.now += NOTED_S / 5
    await settled(access)
    assert len(written) == 1
    await access.caller(secret)
    await settled(access)
    assert [list(one) for one in written] == [[row.key_id], [row.key_id]]
    (kept,) = await store.keys(None)
    assert kept.last_used_at == written[-1][row.key_id]


async def test_a_key_may_burst_and_then_goes_at_its_rate(store: Store) -> None:
    _, secret = await issued(store)
    _, other = await issued(store)
    clock = Clock()
    access = Access(store, Settings(api_rate=10, api_burst=3), clock=clock)
    caller = await access.caller(secret)
    for _ in range(3):
        access.count(caller)
    with pytest.raises(RateLimited) as refused:
        access.count(caller)
    assert 0 < refused.value.details["retry_after_ms"] <= 101
    access.count(await access.caller(other))  # its own bucket
    clock.now += refused.value.details["retry_after_ms"] / 1000
    access.count(caller)
    with pytest.raises(RateLimited):
        access.count(caller)
    clock.now += 3600
    for _ in range(3):
        access.count(caller)
    with pytest.raises(RateLimited):
        access.count(caller)
    await settled(access)


async def test_workers_are_not_counted_and_a_rate_of_zero_counts_nobody(store: Store) -> None:
    _, worker = await issued(store, kinds.WORKER)
    _, secret = await issued(store)
    limited = Access(store, Settings(api_rate=1, api_burst=1), clock=Clock())
    free = Access(store, Settings(api_rate=0, api_burst=1), clock=Clock())
    for access, key in ((limited, worker), (free, secret)):
        caller = await access.caller(key)
        for _ in range(50):
            access.count(caller)
        await settled(access)


async def test_a_request_over_the_rate_is_told_when_to_come_again(sqlite_url: str) -> None:
    async with serving(sqlite_url, api_rate=1, api_burst=2) as api:
        key = await api.key("viewer")
        found = [await api.ask("GET", "/runs", key) for _ in range(3)]
        assert [one.status for one in found] == [200, 200, 429]
        assert (found[2].code, found[2].headers["retry-after"]) == ("RATE_LIMITED", "1")


async def test_a_use_that_cannot_be_written_refuses_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, secret = await issued(store)

    async def full(used: dict[str, int]) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(store, "used_keys", full)
    access = Access(store, Settings(), clock=Clock())
    assert (await access.caller(secret)).name == "k"
    await asyncio.sleep(0)
    await settled(access)
