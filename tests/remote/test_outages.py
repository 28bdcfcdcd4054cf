"""What is lost on the way, and servers that go away: nothing is written twice, and work is kept while it may be."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import WORKFLOWS, lines, open_gate
from tests.remote.kit import client, served, working
from tests.worker.test_forgotten import Held, beating

import ironflow
from ironflow.config import Settings
from ironflow.errors import ServerUnreachable
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.remote import connection, session
from ironflow.remote.connection import Connection
from ironflow.testing.relay import Relay
from ironflow.worker import session as worker_session

pytestmark = pytest.mark.usefixtures("folder")


@ironflow.workflow
async def holds(ctx: ironflow.Context, name: str) -> list[str]:
    """Three steps, of which two hold: each of the run's commits can be told from the others."""
    return [await program.mark(f"{name}-1"), await program.hold(f"{name}-2"), await program.hold(f"{name}-3")]


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries that do not make a test last: what follows them is the same."""
    monkeypatch.setattr(Connection.__init__, "__kwdefaults__", {"pauses": (0.05, 0.1, 0.2)})


async def _as_promised(looking: Any, run: Any, recoveries: int = 0) -> None:
    events = [event async for event in run.journal()]
    assert fold(events).breaches == []
    assert Counter(event.kind for event in events)[j.STEP_COMPLETED] == 3
    row = (await looking.get(run.id)).row
    assert (row.state, row.lease_recoveries) == ("completed", recoveries)


async def test_a_run_promised_in_an_answer_that_was_lost_need_not_wait_for_the_promise_to_end(store_url: str) -> None:
    async with (
        served(store_url, quick(suspect_after_ms=None, reservation_ttl_ms=600_000)) as server,
        Relay(server.url) as relay,
        client(store_url, [holds]) as looking,
        working(relay.url, server.key, [holds]),
    ):
        await until(lambda: relay.connections > 0)
        relay.lose_answer(b"POST /api/v1/worker/poll")
        first = await looking.start(holds, "x")
        second = await looking.start(holds, "y")
        for name in ("x-2", "x-3", "y-2", "y-3"):
            open_gate(name)
        for run in (first, second):
            await run.result(timeout=20)
            await _as_promised(looking, run)
        assert relay.lost == 1


@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("lost", ["activation", "append", "end"])
async def test_an_answer_that_is_lost_makes_no_event_twice(store_url: str, lost: str) -> None:
    async with (
        served(store_url) as server,
        Relay(server.url) as relay,
        client(store_url, [holds]) as looking,
        working(relay.url, server.key, [holds]),
    ):
        if lost == "activation":
            relay.lose_answer(b"POST /api/v1/worker/transitions")
        run = await looking.start(holds, "x")
        await until(lambda: lines("x-2"))
        if lost == "append":
            relay.lose_answer(b"POST /api/v1/worker/transitions")
        open_gate("x-2")
        if lost == "end":
            await until(lambda: lines("x-3"))
            relay.lose_answer(b"POST /api/v1/worker/transitions")
        open_gate("x-3")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        await until(lambda: relay.lost == 1)
        await _as_promised(looking, run)
        assert Counter(told for told, _, _ in lines("x-")) == {"x-1": 1, "x-2": 1, "x-3": 1}


@pytest.mark.usefixtures("quickly")
async def test_a_worker_keeps_its_work_while_its_server_is_restarted(sqlite_url: str) -> None:
    settings = quick(lease_ttl_ms=10_000, session_ttl_ms=10_000)
    async with client(sqlite_url, WORKFLOWS) as looking:
        async with served(sqlite_url, settings) as server:
            port = int(server.url.rpartition(":")[2])
            worker = working(server.url, server.key, WORKFLOWS)
            one = await worker.__aenter__()
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            session_id = one.session.row.session_id
        try:
            open_gate("x-2")
            await until(lambda: lines("x-2") and _writing(one, run.id))
            async with served(sqlite_url, settings, port=port):
                assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
                await _as_promised(looking, run)
                assert one.session.row.session_id == session_id, "the same session: nobody took it for dead"
                assert await looking.run(program.short, "later") == "later"
                await worker.__aexit__(None, None, None)
        finally:
            await one.port.close()


def _writing(worker: Any, run_id: str) -> bool:
    return bool(worker.segments[run_id].writing)


async def test_with_two_servers_the_other_one_is_asked_at_once(postgres_url: str) -> None:
    async with (
        served(postgres_url) as first,
        served(postgres_url) as second,
        client(postgres_url, WORKFLOWS) as looking,
        Relay(first.url) as relay,
        working([relay.url, second.url], first.key, WORKFLOWS),
    ):
        assert await looking.run(program.short, "one") == "one"
        relay.cut()
        began = time.monotonic()
        assert await looking.run(program.short, "two") == "two"
        assert time.monotonic() - began < connection.PAUSES[0]


async def test_g38_a_session_that_the_server_does_not_know_is_registered_again(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        served(sqlite_url) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS) as worker,
    ):
        run = await looking.start(program.line, "x")
        await until(lambda: lines("x-2"))
        before = worker.session.row.session_id
        with caplog.at_level(logging.WARNING, "ironflow.worker"):
            await looking.store.close_session(before)
            await until(lambda: worker.session.registered and worker.session.row.session_id != before)
        assert any("registering anew" in record.getMessage() for record in caplog.records)
        await until(lambda: lines("cancelled x-2"))
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        (known,) = await looking.store.sessions()
        assert known.session_id == worker.session.row.session_id


@pytest.mark.usefixtures("quickly")
async def test_a_worker_that_cannot_register_anew_tries_again_under_one_name(
    sqlite_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_session, "REGISTER_AGAIN_S", 0.01)
    named: list[str] = []
    by = session.Supervised("boss", named.append)
    async with (
        served(sqlite_url) as server,
        Relay(server.url) as relay,
        working(relay.url, server.key, WORKFLOWS, supervised=by) as worker,
    ):
        before = worker.session.row.session_id
        relay.cut()
        with caplog.at_level(logging.WARNING, "ironflow.worker"):
            assert isinstance(worker.session, session.RemoteSession)
            worker.session.forgotten(before)
            await until(lambda: caplog.text.count("could not register anew") >= 2)
        await relay.up()
        await until(lambda: worker.session.registered)
        row = worker.session.row
        assert named == [before, row.session_id]
        assert worker.session.lock is not None
        assert row.lock_path == str(worker.session.lock.path)


async def test_a_session_that_is_closed_while_it_registers_anew_leaves_nothing_behind(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = beating()
    async with (
        served(sqlite_url) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS) as worker,
    ):
        ours = worker.session
        assert isinstance(ours, session.RemoteSession)
        held = Held(ours._tell)
        monkeypatch.setattr(ours, "_tell", held)
        await looking.store.close_session(ours.row.session_id)
        await held.on_its_way.wait()
        await ours.close()
        held.may_arrive.set()
        await until(lambda: not ours._opening.locked())
        assert (ours.registered, ours.lock, ours._stream.wanted, beating() - before) == (False, None, False, set())


async def test_news_of_an_earlier_session_is_no_news_of_this_one(sqlite_url: str) -> None:
    async with served(sqlite_url) as server, working(server.url, server.key, WORKFLOWS) as worker:
        assert isinstance(worker.session, session.RemoteSession)
        worker.session.forgotten("the-one-before")
        assert worker.session.registered


async def test_r11_a_worker_that_is_cut_off_for_a_lease_time_gives_everything_up(sqlite_url: str) -> None:
    async with (
        served(sqlite_url, quick()) as server,
        Relay(server.url) as relay,
        client(sqlite_url, WORKFLOWS) as looking,
        working(relay.url, server.key, WORKFLOWS),
    ):
        run = await looking.start(program.line, "x")
        await until(lambda: lines("x-2"))
        began = time.monotonic()
        relay.cut()
        await until(lambda: lines("cancelled x-2"))
        assert 0.8 < time.monotonic() - began < 5
        async with working(server.url, server.key, WORKFLOWS):
            await until(lambda: len(lines("x-2")) == 2)
            open_gate("x-2")
            assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
            await _as_promised(looking, run, recoveries=1)


async def test_a_stream_that_breaks_is_a_suspicion_until_the_next_heartbeat(sqlite_url: str) -> None:
    """Intervals of many seconds: the beat that takes the suspicion away is the one behind the reconnection."""
    settings = Settings()
    async with (
        served(sqlite_url, settings) as server,
        Relay(server.url) as relay,
        client(sqlite_url, WORKFLOWS) as looking,
        working(relay.url, server.key, WORKFLOWS),
    ):
        await until(lambda: _open_streams(server, 1))
        (before,) = await looking.store.sessions()
        relay.cut()
        await until(lambda: _suspect(looking, True))
        await relay.up()
        await until(lambda: _suspect(looking, False))
        (after,) = await looking.store.sessions()
        assert after.session_id == before.session_id
        assert after.heartbeat_at > before.heartbeat_at


def _open_streams(server: Any, count: int) -> bool:
    return len(server.node.streams) == count


async def _suspect(looking: Any, wanted: bool) -> bool:
    sessions = await looking.store.sessions()
    return bool(sessions) and (sessions[0].suspect_since is not None) is wanted


async def test_a_server_that_is_not_there_is_told_with_its_address(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection.__init__, "__kwdefaults__", {"pauses": (0.01, 0.01, 0.01)})
    with pytest.raises(ServerUnreachable, match=r"http://127\.0\.0\.1:9"):
        async with working("http://127.0.0.1:9", "ifworker_" + "0" * 43, WORKFLOWS):
            pass
    assert session.AGAIN_S[0] < 1


async def test_that_a_look_for_work_succeeds_again_is_known_as_soon_as_it_does(sqlite_url: str) -> None:
    """Not when the next question ends that a server holds open, which may be 25 s later."""
    async with (
        served(sqlite_url) as server,
        Relay(server.url) as relay,
        working(relay.url, server.key, [holds]) as one,
    ):
        await until(lambda: relay.connections > 0)
        relay.cut()
        outage = one.dispatcher._outage  # type: ignore[attr-defined]
        await until(lambda: outage.lasts)
        await relay.up()
        await until(lambda: not outage.lasts, patience=10)
