"""The worker protocol spoken by hand: deaths, journals in pages, bodies, and the stream of each worker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.recovery.kit import audits, row, until
from tests.server.kit import Refused, Served, append, new_key, served, start

from ironflow.engine import commands
from ironflow.model import wire
from ironflow.model.scope import Scope

OTHER = Scope("acme", "prod")


# ---- deaths


async def test_a_supervisor_s_proof_recovers_at_once_and_charges_what_was_being_opened(store_url: str) -> None:
    async with served(store_url) as here:
        worker, other = await here.worker(), await here.worker()
        owned, opened = await here.start(), await here.start()
        assert (await worker.took()).run_id == owned.run_id
        assert [head.run_id for head in await worker.poll(1)] == [opened.run_id]
        body = {"session_id": worker.session_id, "opening": [opened.run_id, 0]}
        answer = await other.ask("POST", "/deaths", body)
        # A lease that ended with its session the node's own scanner may see first, in the look that it has each second.
        assert {opened.run_id} <= set(answer["recovered"]) <= {owned.run_id, opened.run_id}
        assert sorted(h.run_id for h in await other.poll(5, 5_000)) == sorted([owned.run_id, opened.run_id])
        assert (await row(here.store, opened.run_id)).charged_recoveries == 1
        assert await audits(here.store, owned.run_id) == ["capacity.lease.expired", "capacity.segment.recovered"]
        assert (await other.ask("POST", "/deaths", body))["recovered"] == []  # told twice


async def test_nobody_proves_the_death_of_another_organisation_s_worker(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    head = await worker.took()
    stranger = here.speaker(await new_key(here.store, scope=OTHER))
    body = {"session_id": worker.session_id, "opening": None}
    assert (await stranger.ask("POST", "/deaths", body))["recovered"] == []
    assert await worker.transitions(wire.item_of(append(head, 3))) == ["applied"]


# ---- reading


async def test_a_long_journal_travels_in_pages_to_whoever_holds_the_run(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start()
    head = await worker.took()
    large = json.dumps({"result": "x" * 400_000})
    for seq in range(3, 9):
        item = {**wire.item_of(append(head, seq)), "events": [[seq, "step_completed", f"{seq}:a", large, 1]]}
        assert await worker.transitions(item) == ["applied"]
    await worker.ask("POST", "/release", {"session_id": worker.session_id, "runs": [[run.run_id, 1, "token"]]})
    answer = await worker.ask("POST", "/poll", {"session_id": worker.session_id, "credits": 1, "wait_ms": 2_000})
    [assignment] = answer["assignments"]
    assert assignment["more"] is True
    events = wire.events_from_json(assignment["journal"])
    while True:
        page = await worker.ask(
            "GET", f"/runs/{run.run_id}/journal", session_id=worker.session_id, after=events[-1].seq
        )
        assert sum(len(one[3] or "") for one in page["events"]) <= 1_100_000
        events += wire.events_from_json(page["events"])
        if not page["more"]:
            break
    assert [event.seq for event in events] == list(range(1, 10))
    with pytest.raises(Refused) as refused:
        await other.ask("GET", f"/runs/{run.run_id}/journal", session_id=other.session_id)
    assert refused.value.code == "RUN_NOT_FOUND"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "MALFORMED_JSON"),
        (b"[]", 400, "INVALID_REQUEST"),
        (b'{"session_id": 7}', 400, "INVALID_REQUEST"),
        (b'{"session_id": "s", "items": 7}', 400, "INVALID_REQUEST"),
    ],
)
async def test_a_body_that_is_not_what_it_should_be_is_a_problem(
    on_sqlite: Served, body: bytes, status: int, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await on_sqlite.speaker().ask("POST", "/transitions", body)
    assert (refused.value.status // 100, refused.value.code) == (status // 100, code)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/heartbeat", {"held": [["r\0", 1, "t", True]]}),
        ("/heartbeat", {"held": [["r", 1 << 70, "t", True]]}),
        ("/release", {"runs": [["r\0", 1, "t"]]}),
        ("/unreserve", {"reservations": [["r", "\0"]]}),
        ("/keep", {"run_id": "r\0", "reservation": "t"}),
    ],
)
async def test_what_no_row_can_hold_is_refused_before_a_database_is_asked(
    on_sqlite: Served, path: str, fields: dict[str, Any]
) -> None:
    worker = await on_sqlite.worker()
    with pytest.raises(Refused) as refused:
        await worker.ask("POST", path, {"session_id": worker.session_id, **fields})
    assert (refused.value.status, refused.value.code) == (400, "INVALID_REQUEST")


async def test_a_body_over_the_limit_is_refused_with_size_and_limit(on_sqlite: Served) -> None:
    worker = await on_sqlite.worker()
    told = await worker.register()
    body = b" " * (told["max_body_bytes"] + 1)
    with pytest.raises(Refused) as refused:
        await worker.ask("POST", "/transitions", body)
    assert (refused.value.status, refused.value.code) == (413, "PAYLOAD_TOO_LARGE")
    assert refused.value.problem["details"]["limit"] == told["max_body_bytes"]
    assert refused.value.problem["details"]["size"] == told["max_body_bytes"] + 1


# ---- the liveness stream


async def test_the_stream_tells_what_somebody_changed_and_that_the_worker_is_to_leave(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    await worker.took()
    async with worker.liveness() as lines:
        assert "hello" in await anext(lines)
        await commands.cancel(here.store, run.run_id, "tests")
        here.node.changed(run.run_id)
        assert await anext(lines) == {"check": run.run_id}
        await here.store.drain(worker.session_id)
        assert await asyncio.wait_for(anext(lines), 5) == {"drain": True}


async def test_what_another_process_changed_is_told_on_the_stream(store_url: str) -> None:
    async with served(store_url) as here, served(store_url) as there:
        worker = await here.worker()
        await there.node.look_around()  # who tells by address must know whom
        run = await start(there.store)
        async with worker.liveness() as lines:
            assert "hello" in await anext(lines)
            await commands.cancel(there.store, run.run_id, "tests")
            assert await asyncio.wait_for(anext(lines), 5) == {"check": run.run_id}


async def test_a_stream_that_breaks_is_a_suspicion_which_the_next_heartbeat_ends(here: Served) -> None:
    worker = await here.worker()

    async def suspect_since() -> int | None:
        [session] = await here.store.sessions()
        return session.suspect_since

    async with worker.liveness() as lines:
        await anext(lines)
        assert await suspect_since() is None
    await until(suspect_since)
    await worker.heartbeat()
    assert await suspect_since() is None


async def test_a_node_that_leaves_suspects_nobody(store_url: str, open_store: Any) -> None:
    store = await open_store(store_url)
    async with served(store_url) as here:
        worker = await here.worker()
        async with worker.liveness() as lines:
            await anext(lines)
            here.node.refuse()
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(anext(lines), 2)
        await until(lambda: not len(here.node.streams))
    [session] = await store.sessions()
    assert session.suspect_since is None


async def test_a_node_that_comes_back_on_a_file_is_told_again_what_others_change(
    sqlite_url: str, open_store: Any
) -> None:
    other = await open_store(sqlite_url)
    async with served(sqlite_url) as here:
        worker = await here.worker()
        run = await here.start()
        head = await worker.took()
    async with served(sqlite_url) as here:
        back = here.speaker(worker.key)
        back.session_id = worker.session_id
        async with back.liveness() as lines:
            assert "hello" in await anext(lines)
            await commands.cancel(other, run.run_id, "tests")
            assert await asyncio.wait_for(anext(lines), 5) == {"check": run.run_id}
        assert await back.transitions(wire.item_of(append(head, 3))) == ["stale"]
