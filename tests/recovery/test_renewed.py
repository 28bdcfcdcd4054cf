"""A lease that is renewed stays with its owner, whenever the renewal comes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.recovery.kit import EXPIRED, row, scanner
from tests.store.build import answer, append, session, start

from ironflow.model.transition import APPLIED
from ironflow.store.base import Store


async def test_g8_r8_p21_a_renewed_lease_is_never_taken(store: Store) -> None:
    await answer(store, start("r1", ttl=EXPIRED))
    await store.open_session(session(store))
    heart = store.heart()
    try:
        alive, _, verdicts = await asyncio.to_thread(heart.beat, "s1", 60_000, 60_000, 0, [("r1", 1, "token", True)])
        assert (alive, [v.verdict for v in verdicts]) == (True, ["refreshed"])
    finally:
        await asyncio.to_thread(heart.close)
    report = await (await scanner(store)).run_once()
    assert report.counts == {}
    assert await answer(store, append("r1", 4)) == APPLIED


async def test_g8_r8_p21_a_renewal_that_comes_while_the_scanner_looks_wins(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the scanner has found may be old by then; it looks at the expiry again where nobody can change it."""
    await answer(store, start("r1", ttl=EXPIRED))
    await store.open_session(session(store))
    heart, look = store.heart(), store.expired_leases

    async def look_and_renew(*asked: Any) -> list[str]:
        found = await look(*asked)
        await asyncio.to_thread(heart.beat, "s1", 60_000, 60_000, 0, [("r1", 1, "token", True)])
        return found

    monkeypatch.setattr(store, "expired_leases", look_and_renew)
    try:
        eye = await scanner(store)
        assert (await eye.run_once()).counts == {}
    finally:
        await asyncio.to_thread(heart.close)
    assert await look(10) == []
    assert ((await row(store)).state, (await row(store)).lease_recoveries) == ("running", 0)
    assert await answer(store, append("r1", 4)) == APPLIED
