"""Connections that break, servers that are away, and streams that are cut: what is repeated, and what is not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.client import flows
from tests.client.conftest import Rig
from tests.recovery.kit import until

from ironflow.client import Client
from ironflow.client.connection import PAUSES
from ironflow.engine import views
from ironflow.errors import (
    PayloadTooLarge,
    RunFailed,
    RunNotFound,
    ServerError,
    ServerUnreachable,
    StoreUnreachable,
)
from ironflow.model.journal import Event
from ironflow.model.run import SLEEPING
from ironflow.testing.relay import Relay


class Script:
    """A server that answers what a test says, in order, and keeps what it was asked."""

    def __init__(self, answers: list[tuple[int, str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.url = ""
        #: how long it takes to answer, seconds
        self.takes = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head.splitlines()[0])
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        await asyncio.sleep(self.takes)
        kind = "Content-Type: text/event-stream\r\n" if "/events " in head and status == 200 else ""
        writer.write(f"HTTP/1.1 {status} X\r\n{kind}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()


@asynccontextmanager
async def scripted(*answers: tuple[int, str]) -> AsyncIterator[Script]:
    script = Script(list(answers))
    server = await asyncio.start_server(script.serve, "127.0.0.1", 0)
    script.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield script


def problem(status: int, code: str) -> tuple[int, str]:
    return status, f'{{"status": {status}, "code": "{code}", "detail": "told", "hint": "do", "details": {{}}}}'


AWAY = problem(503, "STORE_UNREACHABLE")
STEERED = (200, '{"run_id": "r", "changed": true, "state": "paused"}')


def client_of(url: str, tries: int = 4) -> Client:
    return Client(url, "a-key-of-tests", pauses=(0.0,) * (tries - 1))


# ---- requests


def test_a_request_is_tried_again_after_one_two_and_four_seconds() -> None:
    assert PAUSES == (1, 2, 4)


async def test_what_may_be_repeated_is_sent_again_while_the_server_cannot_answer() -> None:
    async with scripted(AWAY, AWAY, AWAY, STEERED) as script, client_of(script.url) as client:
        assert await client.pause("r") is True
        assert script.asked == ["POST /api/v1/runs/r/pause HTTP/1.1"] * 4


async def test_after_the_last_try_the_servers_own_error_is_raised() -> None:
    async with scripted(AWAY) as script, client_of(script.url) as client:
        with pytest.raises(StoreUnreachable, match=r"told\. do"):
            await client.list()
        assert len(script.asked) == 4


@pytest.mark.parametrize("verb", ["resume", "retry"])
async def test_what_may_not_be_repeated_is_sent_once(verb: str) -> None:
    async with scripted(AWAY) as script, client_of(script.url) as client:
        with pytest.raises(StoreUnreachable):
            await getattr(client, verb)("r")
        assert len(script.asked) == 1


@pytest.mark.parametrize(("status", "code"), [(409, "INVALID_TRANSITION"), (413, "PAYLOAD_TOO_LARGE")])
async def test_r50_a_refusal_is_final(status: int, code: str) -> None:
    async with scripted(problem(status, code)) as script, client_of(script.url) as client:
        with pytest.raises(Exception, match="told"):
            await client.cancel("r")
        assert len(script.asked) == 1


async def test_nobody_there_is_told_with_the_address_after_all_tries(caplog: pytest.LogCaptureFixture) -> None:
    url = "http://127.0.0.1:9"
    async with client_of(url, tries=3) as client:
        with pytest.raises(ServerUnreachable, match=f"no server answers at {url}") as caught:
            await client.resume("r")  # certainly not carried out, so even this is tried again
    assert "ironflow serve" in str(caught.value)
    assert [record.message.endswith("trying again in 0 s") for record in caplog.records] == [True, True]
    assert "a-key-of-tests" not in caplog.text + repr(client) + str(caught.value)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, "<html>hello</html>", "not as an Ironflow server does"),
        (404, "<html>Not   here</html>", "answered 404 in a way that is not Ironflow's: <html>Not here</html>"),
        (404, '{"detail": "x"}', "answered 404 in a way that is not Ironflow's"),
        (301, "", "sends requests on to nowhere. Use that address"),
        (418, '{"code": "TEAPOT", "detail": "short and stout", "details": {}}', "short and stout"),
    ],
)
async def test_what_is_no_ironflow_server_is_told_as_what_it_is(status: int, body: str, says: str) -> None:
    async with scripted((status, body)) as script, client_of(script.url, tries=1) as client:
        with pytest.raises(ServerError, match=says):
            await client.list()


@pytest.mark.parametrize(
    "body", ["[]", "{}", "null", "5", '"x"', '{"items":5,"next":null}', '{"items":[{}],"next":null}']
)
async def test_json_of_another_program_is_told_as_that(body: str) -> None:
    calls: dict[str, Callable[[Client], Awaitable[Any]]] = {
        "list": lambda client: client.list(),
        "get": lambda client: client.get("r"),
        "steps": lambda client: client.steps("r"),
        "journal": lambda client: client.journal("r"),
        "why": lambda client: client.why("r"),
        "cancel": lambda client: client.cancel("r"),
        "start": lambda client: client.start("anything"),
        "workflows": lambda client: client.workflows(),
        "pause": lambda client: client.pause_workflow("w"),
        "leases": lambda client: client.leases(),
        "queue": lambda client: client.queue(),
        "stats": lambda client: client.stats(),
        "audits": lambda client: client.audits(),
        "keys": lambda client: client.keys(),
        "key": lambda client: client.create_key("k"),
    }
    for call in calls.values():
        async with scripted((200, body)) as script, client_of(script.url, tries=1) as client:
            with pytest.raises(ServerError, match="not as an Ironflow server does"):
                await call(client)


async def test_an_id_that_no_run_can_have_is_not_asked_for() -> None:
    async with scripted((200, "{}")) as script, client_of(script.url, tries=1) as client:
        for run_id in ("..", "a/steps"):
            with pytest.raises(RunNotFound, match="no run has the id"):
                await client.get(run_id)
        assert script.asked == []


async def test_a_body_that_the_server_would_refuse_is_not_sent() -> None:
    async with scripted(STEERED) as script, client_of(script.url) as client:
        with pytest.raises(PayloadTooLarge, match=r"the request takes 2,097,\d+ bytes, the limit is 2,097,152"):
            await client.start("anything", "x" * 2_097_100)
        assert script.asked == []


async def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await client_of("http://127.0.0.1:9").list()


# ---- a start whose answer is lost


@pytest.mark.parametrize("options", [{}, {"id": "chosen"}, {"concurrency_key": "one"}])
async def test_a_start_whose_answer_is_lost_starts_one_run(rig: Rig, options: dict[str, str]) -> None:
    async with Relay(rig.url) as relay, rig.client(url=relay.url) as client:
        relay.lose_answer(rb"POST /api/v1/runs ")
        run = await client.start(flows.double, 1, **options)  # type: ignore[call-overload]
        assert relay.lost == 1
        assert (run.created, await run.result()) == (True, 2)
        assert [row.run_id for row in await rig.engine.list()] == [run.id]


async def test_a_start_that_met_a_run_of_this_id_says_that_it_made_none(rig: Rig) -> None:
    async with rig.client() as client:
        await client.start(flows.double, 1, id="one")
        assert (await client.start(flows.double, 1, id="one")).created is False


# ---- streams


async def test_a_stream_that_is_cut_again_and_again_gives_each_event_once_and_in_order(rig: Rig) -> None:
    async with Relay(rig.url) as relay, rig.client(url=relay.url) as client:
        run = await client.start(flows.long, 40)
        await run.result()
        cuts, before = [700, 1_234, 3_000, 900, 5_000, 10], relay.connections
        relay.budgets = [*cuts]
        client._connection.pauses = (0.0,) * 20
        await _forget_connections(client)
        found = [event async for event in client.events(run.id)]
        assert relay.budgets == []
        assert relay.connections - before > len(cuts)
    kept = await rig.engine.journal(run.id)
    assert [event.seq for event in found] == [event.seq for event in kept]
    assert [event.data() for event in found] == [event.data() for event in kept]


async def _forget_connections(client: Client) -> None:
    """The next request comes over a connection of its own."""
    await client._connection.close()
    await client._connection.open()


async def test_a_stream_begins_behind_the_event_that_is_known(rig: Rig) -> None:
    async with rig.client() as client:
        run = await client.start(flows.double, 1)
        await run.result()
        seqs = [event.seq for event in await rig.engine.journal(run.id)]
        assert [event.seq async for event in client.events(run.id, after=2)] == seqs[2:]
        assert [event.seq async for event in client.events(run.id, after=seqs[-1])] == []


async def test_a_stream_brings_events_while_the_run_executes(rig: Rig) -> None:
    async with rig.client() as client:
        run = await client.start(flows.sleeping)
        events = client.events(run.id)
        async for event in events:
            if event.kind == "run_suspended":
                await client.cancel(run.id)
        assert event.kind == "run_cancelled"


async def test_who_waits_for_a_result_goes_on_waiting_over_a_cut(rig: Rig) -> None:
    sent = bytearray()
    async with Relay(rig.url, heard=sent.extend) as relay, rig.client(url=relay.url) as client:
        run = await client.start(flows.sleeping)
        await until(lambda: _is(client, run.id, SLEEPING))
        waiting = asyncio.ensure_future(run.result())
        await until(lambda: b"/events" in sent)
        relay.drop()
        await client.cancel(run.id)
        with pytest.raises(Exception, match="was cancelled"):
            await waiting


async def test_who_waits_for_a_result_is_not_sent_those_of_all_steps(rig: Rig) -> None:
    async with rig.client() as client:
        run = await client.start(flows.long, 150)
        await run.result()
    async with Relay(rig.url) as relay, rig.client(url=relay.url) as client:
        relay.budgets = [4_096]  # the journal alone is ten times as long
        assert await client.handle(run.id, flows.long).result() == sum(range(150))
        assert relay.connections == 1


async def _is(client: Client, run_id: str, state: str) -> bool:
    return (await client.get(run_id)).state == state


async def test_a_stream_that_never_comes_about_ends_with_an_error() -> None:
    async with scripted((200, "")) as script, client_of(script.url, tries=3) as client:
        with pytest.raises(ServerUnreachable, match="ends the stream at once"):
            [event async for event in client.events("r")]
        assert len(script.asked) == 3
    async with client_of("http://127.0.0.1:9", tries=3) as client:
        with pytest.raises(ServerUnreachable, match="no server answers"):
            [event async for event in client.events("r")]
    async with scripted(AWAY) as script, client_of(script.url, tries=3) as client:
        with pytest.raises(StoreUnreachable):
            [event async for event in client.events("r")]
        assert len(script.asked) == 3


async def test_a_stream_goes_on_once_the_server_can_answer_again() -> None:
    end = f"id: 1\ndata: {json.dumps(views.event(Event(1, 'run_cancelled')))}\n\n"
    async with scripted(AWAY, (200, end), AWAY, (204, "")) as script, client_of(script.url) as client:
        assert [event.seq async for event in client.events("r")] == [1]
        assert len(script.asked) == 4


async def test_following_a_run_that_is_not_there_is_refused_at_once(rig: Rig) -> None:
    async with rig.client() as client:
        with pytest.raises(Exception, match="no run has the id 'nobody'"):
            [event async for event in client.events("nobody")]
        with pytest.raises(RunFailed):
            await client.run(flows.failing, "x")


async def test_a_server_that_waited_for_its_database_is_not_asked_to_wait_again_by_a_reader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Four times 30 s passed before a list of runs said that the database is away; and nothing was said meanwhile."""
    monkeypatch.setattr("ironflow.client.connection.LONG_S", 0.05)
    async with scripted(AWAY) as script:
        script.takes = 0.2
        async with client_of(script.url) as client:
            with pytest.raises(StoreUnreachable):
                await client.get("r")
            assert len(script.asked) == 1
            with pytest.raises(StoreUnreachable):
                await client.steer("r", "pause")
            assert len(script.asked) > 2, "what changes something is worth the patience"
    assert "has not answered for 0.05 s; still waiting" in caplog.text
