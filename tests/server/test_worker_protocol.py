"""The worker protocol spoken by hand to a node that listens on a port: who may speak, and what is handed to whom."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.recovery.kit import row, until
from tests.server.kit import Refused, Served, new_key, start

from ironflow.model import key as kinds
from ironflow.model.run import PENDING
from ironflow.model.scope import Scope

OTHER = Scope("acme", "prod")


# ---- registering


async def test_a_worker_registers_and_is_told_the_server_s_settings(here: Served) -> None:
    speaker = here.speaker()
    told = await speaker.register(tags=("gpu",), supervisor="boss", host="h", boot_id="b", pid=7, process_id="p")
    assert told["session_id"] == speaker.session_id
    assert (told["renewal_interval_ms"], told["lease_ttl_ms"], told["session_ttl_ms"]) == (100, 60_000, 60_000)
    assert told["max_body_bytes"] > told["max_payload_bytes"]
    assert abs(told["now"] - here.store.now()) < 5_000
    [session] = await here.store.sessions()
    assert (session.kind, session.supervisor, session.slots, session.host, session.pid) == ("http", "boss", 10, "h", 7)
    assert json.loads(session.serves or "")["tags"] == ["gpu"]
    assert [one["name"] for one in await here.store.workflows()] == ["order"]


async def test_registering_again_brings_the_row_up_to_date_and_keeps_what_others_wished(here: Served) -> None:
    worker = await here.worker(slots=2)
    await here.store.drain(worker.session_id)
    await worker.register("order", "other", slots=5)
    [session] = await here.store.sessions()
    assert (session.slots, session.draining) == (5, 1)
    assert set(json.loads(session.serves or "")["workflows"]) == {"order", "other"}


def lock(path: str, inode: int = 1) -> dict[str, Any]:
    return {"path": path, "device": 1, "inode": inode}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"serves": {"workflows": []}}, "INVALID_INPUT"),
        ({"serves": {"tags": ["a b"], "workflows": {}}}, "INVALID_INPUT"),
        ({"worker_id": 7}, "INVALID_REQUEST"),
        ({"slots": -1}, "INVALID_REQUEST"),
        ({"workflows": [{"name": "order"}]}, "INVALID_INPUT"),
        ({"workflows": [{"name": "order", "version": "1", "worker_tags": 7}]}, "INVALID_INPUT"),
        ({"workflows": [{"name": "order", "version": "1", "worker_tags": [[]]}]}, "INVALID_INPUT"),
        ({"workflows": [{"name": "order", "version": "1", "definition": {"doc": "x" * 1_100_000}}]}, "INVALID_INPUT"),
        ({"worker_id": "x" * 201}, "INVALID_INPUT"),
        ({"host": "x" * 1_001}, "INVALID_REQUEST"),
        ({"host": "a\0b"}, "INVALID_REQUEST"),
        ({"supervisor": "a\0b"}, "INVALID_REQUEST"),
        ({"session_id": "s", "lock": lock("/\0/ironflow-0/sessions/s.lock")}, "INVALID_REQUEST"),
        ({"session_id": "s", "lock": lock("/tmp/ironflow-0/sessions/s.lock", 1 << 64)}, "INVALID_REQUEST"),
        ({"lock": lock("/etc/passwd")}, "INVALID_REQUEST"),
        ({"lock": lock("/tmp/ironflow-0/sessions/../x.lock")}, "INVALID_REQUEST"),
    ],
)
async def test_a_registration_that_says_nonsense_is_refused_by_name(
    on_sqlite: Served, changes: dict[str, Any], code: str
) -> None:
    with pytest.raises(Refused) as refused:
        await on_sqlite.speaker().register(**changes)
    assert (refused.value.status // 100, refused.value.code) == (4, code)
    assert await on_sqlite.store.sessions() == []


async def test_only_a_worker_key_may_speak_here_and_only_for_its_workflows(on_sqlite: Served) -> None:
    store = on_sqlite.store
    for key, status in (
        ("", 401),
        ("ifworker_" + "0" * 43, 401),
        (await new_key(store, kinds.ORG, role="admin"), 403),
        (await new_key(store, kinds.PLATFORM), 403),
    ):
        with pytest.raises(Refused) as refused:
            await on_sqlite.speaker(key or "none").register()
        assert refused.value.status == status
    bound = on_sqlite.speaker(await new_key(store, workflows=["order"]))
    await bound.register("order")
    with pytest.raises(Refused) as refused:
        await bound.register("order", "payroll")
    assert refused.value.status == 403
    other = await on_sqlite.worker("order", "payroll")
    bound.session_id = other.session_id
    for ask in (bound.poll, bound.heartbeat):
        with pytest.raises(Refused) as refused:
            await ask()
        assert refused.value.code == "SESSION_UNKNOWN"


async def test_g38_a_worker_that_the_server_does_not_know_gets_404_on_poll_and_heartbeat(here: Served) -> None:
    worker = here.speaker()
    for ask in (worker.poll, worker.heartbeat):
        with pytest.raises(Refused) as refused:
            await ask()
        assert (refused.value.status, refused.value.code) == (404, "SESSION_UNKNOWN")
    await worker.register()
    assert await worker.poll() == []
    assert (await worker.heartbeat())["known"] is True
    await here.store.close_session(worker.session_id)  # somebody took it for dead
    with pytest.raises(Refused) as refused:
        await worker.heartbeat()
    assert refused.value.code == "SESSION_UNKNOWN"
    with pytest.raises(Refused) as refused:
        await worker.poll()
    assert refused.value.code == "SESSION_UNKNOWN"


async def test_a_poll_that_is_held_is_answered_404_when_its_session_is_removed(here: Served) -> None:
    worker = await here.worker()
    poll = asyncio.ensure_future(worker.poll(1, 20_000))
    await until(lambda: here.node.hub.waiting == 1)
    await here.store.close_session(worker.session_id)
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(poll, 5)
    assert refused.value.code == "SESSION_UNKNOWN"


async def test_another_organisation_s_session_and_runs_are_as_if_they_were_not_there(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    stranger = here.speaker(await new_key(here.store, scope=OTHER))
    stranger.session_id = worker.session_id
    for ask in (stranger.register, stranger.poll, stranger.heartbeat):
        with pytest.raises(Refused) as refused:
            await ask()
        assert (refused.value.status, refused.value.code) == (404, "SESSION_UNKNOWN")
    stranger.session_id = "its-own"
    await stranger.register("order")
    assert await stranger.poll(5) == []  # the same workflow, and not its run
    for path in (f"/runs/{run.run_id}/owner", f"/runs/{run.run_id}/journal"):
        with pytest.raises(Refused) as refused:
            await stranger.ask("GET", path, session_id="its-own")
        assert (refused.value.status, refused.value.code) == (404, "RUN_NOT_FOUND")
    assert [head.run_id for head in await worker.poll(5)] == [run.run_id]


# ---- routing


async def test_r41_a_run_goes_only_to_a_worker_with_all_its_tags_and_holds_up_no_younger_one(here: Served) -> None:
    plain, both = await here.worker(tags=("eu",)), await here.worker(tags=("gpu", "eu"))
    demanding = await here.start(worker_tags=("gpu", "eu"))
    younger = await here.start()
    assert [head.run_id for head in await plain.poll(5)] == [younger.run_id]
    assert [head.run_id for head in await both.poll(5)] == [demanding.run_id]


async def test_r42_a_worker_that_names_no_tags_takes_what_its_workflows_require_of_themselves(here: Served) -> None:
    worker = await here.worker("render", needs=("gpu",))
    run = await start(here.store, "render", needs=("gpu",))
    more = await start(here.store, "render", needs=("gpu",), worker_tags=("eu",))
    here.node.hub.told()
    assert [head.run_id for head in await worker.poll(5)] == [run.run_id]
    assert (await row(here.store, more.run_id)).state == PENDING


async def test_r40_higher_priority_first_then_by_age_and_never_before_its_time(here: Served) -> None:
    worker = await here.worker()
    runs = [await here.start(priority=priority) for priority in (0, 5, 0, 9)]
    await here.start(priority=100, at=datetime.now(UTC) + timedelta(hours=1))
    heads = [head.run_id for _ in range(5) for head in await worker.poll(1)]
    assert heads == [runs[3].run_id, runs[1].run_id, runs[0].run_id, runs[2].run_id]


async def test_a_session_that_is_to_leave_is_handed_nothing(here: Served) -> None:
    worker = await here.worker()
    await here.start()
    await here.store.drain(worker.session_id)
    await here.node.look_around()
    assert await worker.poll(1, 50) == []
    assert (await worker.heartbeat())["draining"] is True


@pytest.mark.parametrize("field", ["worker_id", "host", "boot_id", "process_id", "supervisor"])
async def test_a_worker_does_not_write_on_the_terminal_of_whoever_lists_it(here: Served, field: str) -> None:
    with pytest.raises(Refused) as refused:
        await here.speaker().register(**{field: "a\x1b]0;title\x07"})
    assert (refused.value.status, refused.value.code) == (400, "INVALID_INPUT")
    assert field in refused.value.problem["detail"]
    assert await here.store.sessions() == []


async def test_a_worker_that_claims_to_serve_too_much_is_refused_at_once(here: Served) -> None:
    versions = {"order": {"versions": [f"v{n}" for n in range(40_000)], "tags": []}}
    with pytest.raises(Refused) as refused:
        await here.speaker().register(serves={"tags": [], "workflows": versions})
    assert (refused.value.status, refused.value.code) == (400, "INVALID_INPUT")
    assert "40,000 versions; 100 is the most" in refused.value.problem["detail"]
