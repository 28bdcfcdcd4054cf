"""What a worker key reaches: the sessions it registered, and runs of its scope and of the workflows it is bound to."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from tests.recovery.kit import row, until
from tests.server.kit import Refused, Served, Speaker, append, ending, new_key, served, start, taking
from yarl import URL

from ironflow.engine import commands
from ironflow.model import wire
from ironflow.model.run import PENDING
from ironflow.model.scope import DEFAULT, Scope
from ironflow.server.keys import hash_of

OTHER = Scope("acme", "prod")


async def strangers(here: Served) -> list[Speaker]:
    """Registered workers whose keys do not reach the workflow `order` of the default scope."""
    made = []
    for options in ({"scope": OTHER}, {"workflows": ["bill"]}):
        speaker = here.speaker(await new_key(here.store, **options))
        await speaker.register("bill")
        made.append(speaker)
    return made


async def refusal(asked: Any) -> dict[str, Any]:
    """The refusal of a request, without the ids that it repeats."""
    with pytest.raises(Refused) as refused:
        await asked
    return {**refused.value.problem, "detail": refused.value.problem["detail"].split("'")[0]}


async def test_what_a_key_is_told_of_a_stranger_s_run_with_the_id_of_its_own_deleted_one(here: Served) -> None:
    worker = await here.worker()
    await here.start(id="shared")
    head = await worker.took()
    assert await worker.transitions(wire.item_of(ending(head, 3))) == ["applied"]
    assert await here.store.delete_run("shared", "ann", DEFAULT)
    await start(here.store, scope=OTHER, id="shared")
    take, write = taking(head, seq=99), append(head, 99)
    take.execution_seq, take.new_execution_seq, take.events[0].execution_seq = 0, 1, 1
    for change, answer in ((take, "lost"), (write, "stale")):
        for run_id in ("shared", "nobody"):
            change.run_id = run_id
            asked = [wire.item_of(change), {**wire.item_of(change), "again": True}]
            assert await worker.transitions(*asked) == [answer] * 2


# ---- sessions


async def test_a_session_is_that_of_the_key_that_registered_it_and_of_no_other(here: Served) -> None:
    worker = await here.worker()
    others = [await new_key(here.store, **one) for one in ({}, {"workflows": ["bill"]}, {"scope": OTHER})]
    for key in others:
        thief = here.speaker(key)
        nowhere = await refusal(thief.heartbeat())
        thief.session_id = worker.session_id
        session: dict[str, Any] = {"session_id": worker.session_id}
        asked = [
            thief.register("bill"),
            thief.heartbeat(),
            thief.poll(),
            thief.ask("DELETE", f"/sessions/{worker.session_id}"),
            thief.ask("GET", "/backlog", **session),
            thief.ask("GET", "/liveness", **session),
            thief.ask("GET", "/runs/r/journal", **session),
            thief.ask("GET", "/runs/r/owner", **session),
        ]
        assert [await refusal(one) for one in asked] == [nowhere] * len(asked)
        assert nowhere["code"] == "SESSION_UNKNOWN"
        assert (await thief.ask("POST", "/deaths", session))["recovered"] == []
    [row] = await here.store.sessions()
    assert json.loads(row.serves or "")["workflows"].keys() == {"order"}
    assert (await worker.heartbeat())["known"] is True
    await worker.register("order", "bill")
    [row] = await here.store.sessions()
    assert json.loads(row.serves or "")["workflows"].keys() == {"order", "bill"}


async def test_a_session_that_serves_nothing_is_out_of_a_bound_key_s_reach_too(here: Served) -> None:
    """That of a child process: it takes one run, and serves no workflow that could be compared."""
    child = here.speaker()
    await child.ask("POST", "/sessions", {
        "session_id": child.session_id, "worker_id": "w", "slots": 1, "serves": {"workflows": {}}, "workflows": [],
    })  # fmt: skip
    thief = here.speaker(await new_key(here.store, workflows=["bill"]))
    thief.session_id = child.session_id
    assert (await refusal(thief.heartbeat()))["code"] == "SESSION_UNKNOWN"
    assert (await refusal(thief.ask("DELETE", f"/sessions/{child.session_id}")))["code"] == "SESSION_UNKNOWN"


# ---- runs


async def test_to_a_key_that_does_not_reach_a_run_there_is_no_such_run(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    held = wire.item_of(append(head, 3))
    assert await worker.transitions(held) == ["applied"]
    await here.start(id="promised")
    [promised] = await worker.poll(1, 2_000)
    other = {"events": [[3, "step_started", "3:b", "{}", 1]]}
    for thief in await strangers(here):
        for changed in ({}, {"token": "guessed"}, {"run_id": "no-such-run"}, other):
            assert await thief.transitions({**held, "again": True, **changed}) == ["stale"]
        assert await thief.transitions(wire.item_of(append(head, 4))) == ["stale"]
        assert await thief.take(promised) == "lost"
        session = {"session_id": thief.session_id}
        release = {**session, "runs": [[run.run_id, head.execution_seq, "token"]]}
        assert (await thief.ask("POST", "/release", release))["released"] == []
        keep = {**session, "run_id": promised.run_id, "reservation": promised.reservation}
        assert (await thief.ask("POST", "/keep", keep))["kept"] is False
        await thief.ask("POST", "/unreserve", {**session, "reservations": [[promised.run_id, promised.reservation]]})
        for what in ("journal", "owner"):
            there = await refusal(thief.ask("GET", f"/runs/{run.run_id}/{what}", **session))
            nowhere = await refusal(thief.ask("GET", f"/runs/no-such-run/{what}", **session))
            assert there == nowhere
            assert there["code"] == "RUN_NOT_FOUND"
    assert await worker.take(promised) == "applied"
    assert [event.seq for event in await here.store.journal(run.run_id)] == [1, 2, 3]


async def test_who_has_a_run_is_told_to_sessions_only(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    await worker.took()
    assert (await refusal(worker.ask("GET", f"/runs/{run.run_id}/owner")))["code"] == "INVALID_REQUEST"
    unknown = worker.ask("GET", f"/runs/{run.run_id}/owner", session_id="no-such-session")
    assert (await refusal(unknown))["code"] == "SESSION_UNKNOWN"


@pytest.mark.parametrize("run_id", ["a/b", "journal/x", "//", "ä b", "a%2Fb", "x?y#z"])
async def test_any_id_of_a_run_and_of_a_session_may_stand_in_a_path(on_sqlite: Served, run_id: str) -> None:
    worker = on_sqlite.speaker()
    worker.session_id = f"s/{run_id}"
    await worker.register()
    await on_sqlite.start(id=run_id)
    await worker.took()

    async def ask(method: str, what: str, id: str, after: str = "") -> dict[str, Any]:
        path = f"{on_sqlite.url}/api/v1/worker/{what}/{quote(id, safe='')}{after}"
        query = f"?session_id={quote(worker.session_id, safe='')}"
        headers = {"Authorization": f"Bearer {worker.key}"}
        async with on_sqlite.http.request(method, URL(path + query, encoded=True), headers=headers) as response:
            assert response.status == 200, await response.text()
            return dict(await response.json())

    assert (await ask("GET", "runs", run_id, "/journal"))["events"][0][1] == "run_created"
    assert (await ask("GET", "runs", run_id, "/owner"))["execution_seq"] == 1
    await ask("DELETE", "sessions", worker.session_id)
    assert await on_sqlite.store.sessions() == []


# ---- deaths


async def test_a_death_charges_no_run_that_the_dead_was_not_promised(here: Served) -> None:
    run = await here.start()
    for dead in (*await strangers(here), await here.worker("bill")):
        body = {"session_id": dead.session_id, "opening": [run.run_id, 0]}
        assert (await dead.ask("POST", "/deaths", body))["recovered"] == []
    found = await row(here.store, run.run_id)
    assert (found.state, found.execution_seq, found.charged_recoveries) == (PENDING, 0, 0)


async def test_a_death_charges_the_run_that_was_promised_also_when_the_promise_has_run_out(here: Served) -> None:
    worker, other = await here.worker(), await here.worker()
    run = await here.start()
    for seq, dead in enumerate((worker, other)):
        [head] = await dead.poll(1, 2_000)
        assert head.execution_seq == seq
        if dead is other:  # what opened it for too long
            await here.store.unreserve([(head.run_id, head.reservation or "")])
        body = {"session_id": dead.session_id, "opening": [run.run_id, seq]}
        assert (await dead.ask("POST", "/deaths", body))["recovered"] == [run.run_id]
    assert (await row(here.store, run.run_id)).charged_recoveries == 2


async def test_the_death_of_a_child_charges_the_run_that_was_promised_to_its_parent(store_url: str) -> None:
    async with served(store_url) as here, served(store_url) as elsewhere:
        parent, child = await here.worker(), await here.worker()
        run = await here.start()
        await parent.poll(1, 2_000)
        there = elsewhere.speaker(parent.key)
        dead = {"session_id": child.session_id, "opening": [run.run_id, 0], "promised_to": parent.session_id}
        assert (await there.ask("POST", "/deaths", dead))["recovered"] == [run.run_id]
        stranger = here.speaker(await new_key(here.store))
        await stranger.register()
        mine = {"session_id": stranger.session_id, "opening": [run.run_id, 1], "promised_to": parent.session_id}
        assert (await stranger.ask("POST", "/deaths", mine))["recovered"] == []


# ---- the stream


async def test_a_stream_tells_of_no_run_that_its_key_does_not_reach(here: Served) -> None:
    worker = await here.worker()
    secret = await start(here.store, id="merger-with-acme")
    for thief in await strangers(here):
        async with thief.liveness() as lines, worker.liveness() as own:
            assert "hello" in await anext(lines)
            assert "hello" in await anext(own)
            await commands.pause(here.store, secret.run_id, "tests")
            here.node.changed(secret.run_id)
            assert await asyncio.wait_for(anext(own), 5) == {"check": secret.run_id}
            await commands.resume(here.store, secret.run_id, "tests")
            await here.store.drain(thief.session_id)
            assert await asyncio.wait_for(anext(lines), 5) == {"drain": True}  # and nothing before that


# ---- revoked keys


async def revoke(here: Served, worker: Speaker) -> None:
    """Take a worker's key back as another process does; the node hears of it when it asks."""
    key = await here.store.key_by_hash(hash_of(worker.key))
    assert key is not None
    assert await here.store.revoke_key(key.key_id, "tests")


async def refused_now(worker: Speaker) -> bool:
    """Whether the node knows that this worker's key counts no more."""
    try:
        await worker.ask("GET", "/backlog", session_id=worker.session_id)
    except Refused as refused:
        return refused.code == "UNAUTHENTICATED"
    return False


async def test_a_poll_whose_key_is_revoked_hands_out_nothing_and_ends(here: Served) -> None:
    revoked = here.speaker(await new_key(here.store))
    await revoked.register()
    polls = asyncio.ensure_future(revoked.poll(1, 20_000))
    await until(lambda: here.node.hub.waiting == 1)
    await revoke(here, revoked)
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(polls, 5)
    assert refused.value.code == "UNAUTHENTICATED"


async def test_what_was_kept_for_a_poll_of_a_revoked_key_goes_to_somebody_else(
    here: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def stays() -> None:
        """The look that would end the poll before a run is there."""

    monkeypatch.setattr(here.node.hub, "end_revoked", stays)
    revoked = here.speaker(await new_key(here.store))
    await revoked.register()
    poll = asyncio.ensure_future(revoked.poll(1, 20_000))
    await until(lambda: here.node.hub.waiting == 1)
    await revoke(here, revoked)
    await until(lambda: refused_now(revoked))
    run = await here.start()
    with pytest.raises(Refused) as refused:
        await asyncio.wait_for(poll, 5)
    assert refused.value.code == "UNAUTHENTICATED"
    assert [head.run_id for head in await (await here.worker()).poll(1, 5_000)] == [run.run_id]


async def test_the_stream_of_a_revoked_key_ends(here: Served) -> None:
    revoked = here.speaker(await new_key(here.store))
    await revoked.register()
    async with revoked.liveness() as lines:
        assert "hello" in await anext(lines)
        await revoke(here, revoked)
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(anext(lines), 4)
    await until(lambda: not len(here.node.streams))
    [session] = await here.store.sessions()
    assert session.suspect_since is None
