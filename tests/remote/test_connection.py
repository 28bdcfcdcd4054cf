"""What a worker does when an answer does not come, or is a refusal: pauses, other servers, and errors by their code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.recovery.kit import until

from ironflow.errors import InvalidInput, PayloadTooLarge, ServerError, ServerUnreachable, StoreUnreachable
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.model.transition import GUARD_OWNER, Transition
from ironflow.remote import connection
from ironflow.remote.batch import Batches
from ironflow.remote.clock import Clock
from ironflow.remote.connection import Connection
from ironflow.remote.heart import HttpHeart
from ironflow.remote.port import HttpPort

#: Answers of a server, in turn: a status and a body. The last one is repeated.
Script = list[tuple[int, Any]]
AWAY = (503, {"code": "STORE_UNREACHABLE", "detail": "the database is away"})


class Scripted:
    """A server that answers as it was told to, and remembers what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Any] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        content = await request.read()
        self.asked.append(await request.json() if content else None)
        status, body = self.script[min(len(self.asked), len(self.script)) - 1]
        return web.json_response(body(self.asked[-1]) if callable(body) else body, status=status)


@asynccontextmanager
async def scripted(*script: tuple[int, Any]) -> AsyncIterator[Scripted]:
    server = Scripted(list(script))
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", server.answer)
    async with TestServer(app) as listening:
        server.url = str(listening.make_url("")).rstrip("/")
        yield server


@asynccontextmanager
async def connected(*servers: str, pauses: tuple[float, ...] = (0.01, 0.02, 0.04)) -> AsyncIterator[Connection]:
    one = Connection(servers, "ifworker_secret", pauses=pauses)
    await one.open()
    try:
        yield one
    finally:
        await one.close()


def test_the_pauses_are_one_two_and_four_seconds() -> None:
    assert connection.PAUSES == (1.0, 2.0, 4.0)


async def test_r50_a_server_that_cannot_answer_is_asked_four_times_and_not_more() -> None:
    async with scripted(AWAY) as server, connected(server.url) as one:
        with pytest.raises(StoreUnreachable, match="the database is away"):
            await one.ask("POST", "/poll", {})
        assert len(server.asked) == 4


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
async def test_r50_any_other_refusal_is_final(status: int) -> None:
    refusal = (status, {"code": "INVALID_INPUT", "detail": "no", "hint": "", "details": {}})
    async with scripted(refusal) as server, connected(server.url) as one:
        with pytest.raises(InvalidInput, match="no"):
            await one.ask("POST", "/poll", {})
        assert len(server.asked) == 1


async def test_a_pause_ends_when_a_server_has_answered_something_else() -> None:
    async with scripted(AWAY, (200, {"now": 1})) as server, connected(server.url, pauses=(60.0,)) as one:
        pausing = asyncio.ensure_future(one.ask("POST", "/transitions", {"n": 1}))
        await until(lambda: len(server.asked) == 1)
        await one.ask("POST", "/poll", {"n": 2})
        await asyncio.wait_for(pausing, 10)
        assert [asked["n"] for asked in server.asked] == [1, 2, 1]


async def test_a_worker_that_leaves_ends_its_pauses() -> None:
    async with scripted(AWAY) as server, connected(server.url, pauses=(60.0,)) as one:
        pausing = asyncio.ensure_future(one.ask("POST", "/transitions", {}))
        await until(lambda: len(server.asked) == 1)
        one.hurry()
        with pytest.raises(StoreUnreachable):
            await asyncio.wait_for(pausing, 10)


async def test_what_stays_as_it_is_is_told_at_once_until_a_server_has_answered() -> None:
    async with scripted((200, {"now": 7})) as server, connected(server.url, pauses=(60.0,)) as one:
        at, one.servers = one.servers, (server.url.replace("http:", "https:"),)
        one.proxies[one.servers[0]] = None
        with pytest.raises(ServerUnreachable, match="does not speak TLS"):
            await asyncio.wait_for(one.ask("POST", "/sessions", {}), 10)
        wrong, one.servers = one.servers, at
        await one.ask("POST", "/sessions", {})
        one.servers = wrong
        asking = asyncio.ensure_future(one.ask("POST", "/transitions", {}))
        await until(lambda: bool(one._pausing))
        one.hurry()
        with pytest.raises(ServerUnreachable):
            await asyncio.wait_for(asking, 10)


async def test_the_next_server_is_asked_before_there_is_a_pause() -> None:
    async with (
        scripted(AWAY) as away,
        scripted((200, {"now": 7})) as there,
        connected(away.url, there.url, pauses=(60.0,)) as one,
    ):
        assert await asyncio.wait_for(one.ask("POST", "/poll", {}), 10) == {"now": 7}
        await one.ask("POST", "/poll", {})
        assert (len(away.asked), len(there.asked)) == (1, 2), "the one that answered is asked first"


async def test_a_worker_that_leaves_pauses_for_nobody() -> None:
    async with scripted(AWAY) as server, connected(server.url, pauses=(60.0, 60.0)) as one:
        asking = asyncio.ensure_future(one.ask("POST", "/poll", {}))
        while not server.asked:
            await asyncio.sleep(0.005)
        one.hurry()
        with pytest.raises(StoreUnreachable):
            await asyncio.wait_for(asking, 10)


async def test_what_is_no_ironflow_server_is_told_as_that_and_the_key_is_in_no_message() -> None:
    async with scripted((200, ["hello"])) as server, connected(server.url, pauses=()) as one:
        with pytest.raises(ServerError, match="not as an Ironflow server does") as told:
            await one.ask("POST", "/poll", {})
        assert "secret" not in repr(told.value) + str(told.value)


async def test_a_body_that_the_server_would_refuse_is_not_sent() -> None:
    async with scripted((200, {"now": 1})) as server, connected(server.url) as one:
        one.most_bytes = 1_000
        with pytest.raises(PayloadTooLarge) as told:
            await one.ask("POST", "/deaths", {"text": "x" * 2_000})
        assert (told.value.size, told.value.limit) == (2_011, 1_000)
        assert server.asked == []


# ---- batches


def append(number: int, size: int = 10) -> Transition:
    change = Transition(f"r{number}", GUARD_OWNER, 1, "token")
    change.events = [Event(2, j.STEP_COMPLETED, "s", f'{{"result":"{"x" * size}"}}', 1)]
    return change


def applied(asked: Any) -> Any:
    return {"now": 1, "answers": ["applied"] * len(asked["items"])}


async def test_what_is_committed_in_one_tick_travels_in_one_request() -> None:
    async with scripted((200, applied)) as server, connected(server.url) as one:
        port = HttpPort(one)
        assert await asyncio.gather(*(port.submit(append(n)) for n in range(100))) == ["applied"] * 100  # type: ignore
        assert [len(asked["items"]) for asked in server.asked] == [100]


async def test_batches_are_cut_by_bytes_and_one_that_is_refused_for_its_size_is_sent_in_halves() -> None:
    async with scripted((200, applied)) as server, connected(server.url) as one:
        one.most_bytes = 10_000
        port = HttpPort(one)
        await asyncio.gather(*(port.submit(append(n, 1_000)) for n in range(20)))  # type: ignore[arg-type]
        sizes = [len(asked["items"]) for asked in server.asked]
        assert sum(sizes) == 20
        assert max(sizes) < 9
    too_large = (413, {"code": "PAYLOAD_TOO_LARGE", "detail": "too large", "details": {"size": 9, "limit": 8}})
    async with scripted(too_large, (200, applied)) as server, connected(server.url) as one:
        port = HttpPort(one)
        assert await asyncio.gather(*(port.submit(append(n)) for n in range(4))) == ["applied"] * 4  # type: ignore
        assert [len(asked["items"]) for asked in server.asked] == [4, 2, 2]


async def test_a_repeated_request_says_that_it_is_one_and_answers_come_to_whom_they_belong() -> None:
    answers = {"now": 1, "answers": ["applied", "stale", {"error": {"code": "INVALID_INPUT", "message": "no"}}]}
    async with scripted(AWAY, (200, answers)) as server, connected(server.url) as one:
        port = HttpPort(one)
        found = await asyncio.gather(*(port.submit(append(n)) for n in range(3)), return_exceptions=True)  # type: ignore
        assert found[:2] == ["applied", "stale"]
        assert isinstance(found[2], InvalidInput)
        assert [[item.get("again", False) for item in asked["items"]] for asked in server.asked] == [
            [False] * 3,
            [True] * 3,
        ]


async def test_an_owners_write_is_repeated_while_its_lease_may_live() -> None:
    clock = [0.0]

    def later(asked: Any) -> Any:
        clock[0] += 1
        return AWAY[1]

    async with scripted((503, later)) as server, connected(server.url, pauses=(0.001,)) as one:
        batches = Batches(one, lambda: clock[0])
        batches.alive_until = 9.5
        with pytest.raises(StoreUnreachable):
            await batches.add({"run_id": "r"})
        assert len(server.asked) == 10


# ---- the heart and the clock


async def test_the_heart_asks_every_server_once_and_opens_a_dead_connection_again() -> None:
    renewed: list[float] = []
    answer = {"now": 5, "known": True, "draining": False, "verdicts": [["r", 1, "refreshed"]]}
    async with scripted((200, answer)) as server, connected("http://127.0.0.1:9", server.url) as one:
        heart = HttpHeart(one, renewed.append)
        beat: Callable[[], Any] = lambda: heart.beat("s", 1, 1, 3, [("r", 1, "token", True)])  # noqa: E731
        found = await asyncio.to_thread(beat)
        assert (found.known, [one.verdict for one in found.verdicts]) == (True, ["refreshed"])
        assert server.asked[0]["held"] == [["r", 1, "token", True]]
        assert heart._open is not None
        heart._open._connection.sock.close()
        assert (await asyncio.to_thread(beat)).known
        assert len(renewed) == 2
        server.script = [(404, {"code": "SESSION_UNKNOWN", "detail": "gone"})]
        found = await asyncio.to_thread(beat)
        assert (found.known, [one.verdict for one in found.verdicts]) == (False, ["stale"])
        heart.close()


async def test_a_heart_without_any_server_says_so() -> None:
    async with connected("http://127.0.0.1:9") as one:
        heart = HttpHeart(one, lambda at: None)
        with pytest.raises(ServerUnreachable):
            await asyncio.to_thread(heart.beat, "s", 1, 1, 3, [])


def test_the_clock_follows_the_quickest_answer_and_never_runs_backwards() -> None:
    clock = Clock()
    clock.saw(1_000_000)
    first = clock.now()
    assert 0 <= first - 1_000_000 < 500
    clock.saw(first - 20)  # an answer that took longer
    assert clock.now() >= first
    clock.saw(first + 60_000)  # the machine was asleep
    assert clock.now() >= first + 60_000
    clock.saw(first)  # the database's clock was set back: time stands still
    held = clock.now()
    assert held >= first + 60_000
    assert clock.now() >= held
    clock.saw("no time")
