"""Many workers whose connections broke at once: one break and not many deaths, so only proof and clocks count."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.recovery.kit import EXPIRED, row, scanner, until
from tests.recovery.test_cut_off import LONG_AGO, SETTINGS
from tests.store.build import HOUR, answer, session, start
from tests.store.conftest import Open
from tests.store.test_conformance_masses import others, suspects
from tests.store.test_conformance_suspicion import beat

from ironflow.loops.driver import Report
from ironflow.model import recovery
from ironflow.store.base import Store

#: A suspicion that a test waits for, ms.
SOON_MS = 1_200


async def cut_off(store: Store, count: int) -> list[str]:
    """So many workers with a run each, of whose connections nothing was heard since long ago; their session ids."""
    names = [f"s{n}" for n in range(count)]
    for name in names:
        await store.open_session(session(store, name, ttl=HOUR, suspect_since=LONG_AGO))
        await answer(store, start(f"run-{name}", ttl=HOUR, session=name))
    return names


async def live(store: Store) -> list[str]:
    return sorted(row.session_id for row in await store.sessions())


async def reasons(store: Store, names: list[str]) -> set[Any]:
    """On which evidence the runs of these were taken."""
    return {(await store.journal(f"run-{name}"))[-1].data().get("reason") for name in names}


async def test_workers_that_were_cut_off_at_once_keep_their_runs_whatever_time_passes(
    store: Store, store_url: str, open_store: Open
) -> None:
    """A balancer that is away for a minute must not have every run of the cluster executed twice at the same time."""
    names = await cut_off(store, 5)
    eyes = [await scanner(one, **SETTINGS) for one in (store, await open_store(store_url))]
    for _ in range(3):
        assert [(await eye.run_once()).counts for eye in eyes] == [{}, {}]
    assert await live(store) == names
    assert {(await row(store, f"run-{name}")).execution_seq for name in names} == {1}


async def test_once_enough_are_back_the_others_have_time_to_come_back_as_well_and_then_are_replaced(
    store: Store,
) -> None:
    """Those whom one break cut off come back one after the other: the last ones are not to be taken meanwhile."""
    names = await cut_off(store, 5)
    eye = await scanner(store, **{**SETTINGS, "suspect_after_ms": SOON_MS})
    assert (await eye.run_once()).counts == {}
    last = store.now()
    for name in names[2:]:
        assert (await beat(store, name)).known
    assert (await eye.run_once()).counts == {}
    reports: list[Report] = []

    async def replaced() -> bool:
        reports.append(await eye.run_once())
        return "suspects" in reports[-1].counts

    await until(replaced)
    assert store.now() - last > SOON_MS - 2 * eye.settings.recovery_interval_ms
    assert reports[-1].counts == {"suspects": 2, "recovered": 2}
    assert await live(store) == names[2:]
    assert await reasons(store, names[:2]) == {recovery.SUSPICION}


async def test_proof_counts_among_many_that_were_cut_off_at_once(store: Store) -> None:
    names = await cut_off(store, 5)
    eye = await scanner(store, **SETTINGS)
    assert (await eye.session_died("s0")).counts == {"sessions": 1, "recovered": 1}
    assert (await eye.run_once()).counts == {}
    assert await live(store) == names[1:]
    assert await reasons(store, ["s0"]) == {recovery.GONE}


async def test_each_of_many_that_were_cut_off_at_once_ends_by_its_own_clock_the_last_three_too(store: Store) -> None:
    first, last = ["a", "b", "c"], ["d", "e", "f"]
    for name in (*first, *last):
        ttl = EXPIRED if name in first else HOUR
        await store.open_session(session(store, name, ttl=ttl, suspect_since=LONG_AGO))
        await answer(store, start(f"run-{name}", ttl=HOUR, session=name))
    eye = await scanner(store, **SETTINGS)
    assert (await eye.run_once()).counts == {"sessions": 3, "recovered": 3}
    for _ in range(3):
        assert (await eye.run_once()).counts == {}
    assert await live(store) == last
    assert await reasons(store, first) == {recovery.EXPIRED}


async def test_that_suspects_are_held_back_is_told_once_and_that_it_is_over_as_well(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ironflow.recovery")
    await others(store, 1)
    eye = await scanner(store, **SETTINGS)
    for _ in range(2):  # the next one is told again
        names = await suspects(store, *[LONG_AGO] * 4)
        for _ in range(3):
            await eye.run_once()
        (told,) = caplog.messages
        assert told.startswith("4 of 5 live sessions are cut off at once")
        assert caplog.records[0].levelno == logging.WARNING
        caplog.clear()
        for name in names:
            assert (await beat(store, name)).known
        for _ in range(3):
            await eye.run_once()
        (told,) = caplog.messages
        assert told.startswith("enough of those who were cut off at once are back or gone")
        caplog.clear()
