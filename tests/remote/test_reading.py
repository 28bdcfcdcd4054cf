"""Journals that did not fit into the answer of a poll, and one that cannot be read."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recovery.kit import until
from tests.remote.kit import client, served, working

import ironflow
from ironflow.errors import RunNotFound
from ironflow.model.run import COMPLETED, PENDING

pytestmark = pytest.mark.usefixtures("folder")

#: More than one page of a journal holds, in characters.
LARGE = 1_200_000


@ironflow.workflow
async def length(ctx: ironflow.Context, text: str) -> int:
    return len(text)


async def test_a_run_whose_id_has_a_slash_is_read_as_any_other(store_url: str) -> None:
    async with served(store_url) as server, client(store_url, [length]) as looking:
        runs = [await looking.start(length, "x" * LARGE, id=name) for name in ("a/b", "plain", "ä b%2Fc?d")]
        async with working(server.url, server.key, [length]):
            assert [await run.result(timeout=20) for run in runs] == [LARGE] * 3


async def test_a_run_whose_journal_cannot_be_read_costs_only_itself(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(store_url) as server, client(store_url, [length]) as looking:
        store = server.node.store
        journal = store.journal

        async def damaged(run_id: str, *more: Any) -> Any:
            if run_id == "damaged":
                raise RunNotFound("not that page")  # final: it is not asked for again
            return await journal(run_id, *more)

        monkeypatch.setattr(store, "journal", damaged)
        others = [await looking.start(length, "hi", id=f"other-{n}") for n in range(3)]
        others.append(await looking.start(length, "x" * LARGE, id="long"))
        bad = await looking.start(length, "x" * LARGE, id="damaged", priority=50)
        async with working(server.url, server.key, [length]):
            assert [await run.result(timeout=20) for run in others] == [2, 2, 2, LARGE]
        assert await _state(store, bad.id, PENDING)
        kinds = [event.kind for event in await journal("damaged")]
        assert kinds == ["run_created"], "nobody has ended it for that"
        monkeypatch.undo()
        async with working(server.url, server.key, [length]):
            await until(lambda: _state(store, "damaged", COMPLETED), patience=20)


async def _state(store: Any, run_id: str, state: str) -> bool:
    return bool((await store.run(run_id)).state == state)


async def test_a_session_that_was_taken_for_dead_is_told_of_no_run(sqlite_url: str) -> None:
    """It asks why it lost a run, and hears that the run is not its own; what it still executes of it is ended."""
    async with served(sqlite_url) as server, client(sqlite_url, [length]) as looking:
        await looking.start(length, "hi", id="r")
        async with working(server.url, server.key, []) as worker:
            assert (await worker.port.owner("r")) is not None
            worker.port.batches.session_id = "taken-for-dead"
            assert await worker.port.owner("r") is None
