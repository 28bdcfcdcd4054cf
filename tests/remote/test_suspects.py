"""Suspects of a worker over HTTP: executed by processes of their own, of which there are few; the others wait."""

from __future__ import annotations

import os
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import WORKFLOWS, lines, open_gate
from tests.remote.kit import client, served, working
from tests.store.build import changed

from ironflow.config import Settings
from ironflow.model import journal as j
from ironflow.worker import isolation
from ironflow.worker.local import LocalPort
from ironflow.worker.worker import Worker

pytestmark = pytest.mark.usefixtures("folder")

CHARGED = {"lease_recoveries": 2, "consecutive_recoveries": 2, "charged_recoveries": 2}


async def suspect(looking: Any, workflow: Any, name: str) -> Any:
    """A run in the queue that was charged with two losses in a row."""
    run = await looking.start(workflow, name)
    await looking.store.decide([run.id], changed(**CHARGED))
    return run


def returned(worker: Worker) -> list[str]:
    """Fills with the runs that this worker gives back."""
    given: list[str] = []
    send = worker.port.unreserve

    async def unreserve(reservations: Any) -> None:
        given.extend(run_id for run_id, _ in reservations)
        await send(reservations)

    worker.port.unreserve = unreserve  # type: ignore[method-assign]
    return given


async def test_a_suspect_without_room_waits_at_its_worker_and_is_not_handed_out_again_and_again(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MOST", 0)
    async with served(sqlite_url, Settings(suspect_after_ms=None)) as server, client(sqlite_url, WORKFLOWS) as looking:
        run = await suspect(looking, program.short, "late")
        async with working(server.url, server.key, WORKFLOWS) as worker:
            given = returned(worker)
            for n in range(20):  # each is a round of the same questions
                assert await looking.run(program.short, f"n{n}") == f"n{n}"
            [queued] = await looking.store.queue()
            assert (queued.run_id, queued.status) == (run.id, "reserved")
            assert given == []
            monkeypatch.setattr(isolation, "MOST", 1)
            worker.dispatcher.wake()  # as the end of a process does
            assert await run.result(timeout=20) == "late"
            assert {pid for _, pid, _ in lines("late")}.isdisjoint({os.getpid()})
            assert given == []


async def test_suspects_take_turns_where_there_is_room_for_one(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "MOST", 1)
    async with served(sqlite_url, Settings(suspect_after_ms=None)) as server, client(sqlite_url, WORKFLOWS) as looking:
        runs = [await suspect(looking, program.line, name) for name in ("a", "b")]
        async with working(server.url, server.key, WORKFLOWS) as worker:
            given = returned(worker)
            [(first, *_)] = await until(lambda: lines("a-2") + lines("b-2"))
            for name in ("a-2", "b-2"):
                open_gate(name)
            assert sorted([await run.result(timeout=30) for run in runs]) == [
                ["a-1", "a-2", "a-3"],
                ["b-1", "b-2", "b-3"],
            ]
            assert first in ("a-2", "b-2")
            assert len({pid for _, pid, _ in lines()}) == 2
            assert given == []


@pytest.mark.parametrize("over", ["http", "database"])
async def test_a_run_whose_process_left_without_it_is_given_back_and_charged_with_nothing(
    sqlite_url: str, over: str
) -> None:
    """By its parent, whichever way that speaks to the database; a second time, there is nothing to give back."""
    async with (
        served(sqlite_url, Settings(suspect_after_ms=None)) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS) as worker,
    ):
        run = await looking.start(program.line, "a")
        await until(lambda: lines("a-2"))
        port = worker.port if over == "http" else LocalPort(looking.store)
        session_id = worker.session.row.session_id
        for _ in range(2):
            await port.give_back(run.id, session_id)
        kinds = [event.kind for event in await looking.journal(run.id)]
        assert (kinds.count(j.RUN_RELEASED), kinds.count(j.RUN_RECOVERED)) == (1, 0)
        row = (await looking.get(run.id)).row
        assert (row.lease_recoveries, row.consecutive_recoveries, row.charged_recoveries) == (0, 0, 0)


async def test_a_suspect_waits_no_longer_than_its_promise_lasts(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then others may have it; and what a leaving worker kept goes back at once."""
    monkeypatch.setattr(isolation, "MOST", 0)
    settings = quick(reservation_ttl_ms=1_000)
    async with served(sqlite_url, settings) as server, client(sqlite_url, WORKFLOWS) as looking:
        run = await suspect(looking, program.short, "late")
        async with working(server.url, server.key, WORKFLOWS) as worker:
            given = returned(worker)
            await until(lambda: len(given) >= 2)
            assert set(given) == {run.id}
            await until(lambda: _reserved(looking))
        await until(lambda: _ready(looking))


async def _reserved(looking: Any) -> bool:
    return [queued.status for queued in await looking.store.queue()] == ["reserved"]


async def _ready(looking: Any) -> bool:
    return [queued.status for queued in await looking.store.queue()] == ["ready"]
