"""How a supervisor's word reaches the servers: at once, past whoever does not answer, and again until somebody does."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import aiohttp
import pytest
from tests.remote.kit import Served, served
from tests.server.kit import Speaker

from ironflow.config import Settings
from ironflow.remote import deaths
from ironflow.remote.connection import ANSWER_S
from ironflow.remote.deaths import Deaths

PATIENT = Settings(suspect_after_ms=None)


@asynccontextmanager
async def standing_still() -> AsyncIterator[str]:
    """A server that takes every connection and answers nothing, as a frozen host does."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def reporting(*servers: str, key: str) -> AsyncIterator[Deaths]:
    one = Deaths(servers, key)
    await one.open()
    try:
        yield one
    finally:
        await one.close()


@asynccontextmanager
async def holding(server: Served, *others: str) -> AsyncIterator[tuple[Speaker, Deaths]]:
    """A registered worker, and its supervisor, who knows these other servers first."""
    async with aiohttp.ClientSession() as http, reporting(*others, server.url, key=server.key) as supervisor:
        worker = Speaker(http, server.url, server.key)
        await worker.register("short")
        yield worker, supervisor


async def gone(server: Served, worker: Speaker) -> bool:
    return worker.session_id not in [row.session_id for row in await server.node.store.sessions()]


async def test_a_server_that_stands_still_does_not_hold_a_report_up(sqlite_url: str) -> None:
    async with (
        standing_still() as silent,
        served(sqlite_url, PATIENT) as server,
        holding(server, silent) as (worker, supervisor),
    ):
        began = time.monotonic()
        await supervisor.tell(worker.session_id)
        assert await gone(server, worker)
        assert time.monotonic() - began < ANSWER_S / 3
        assert supervisor._connections[0].servers == (server.url,), "the next report goes to whoever answered"


async def test_a_dead_server_is_passed_over_at_once(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "MOMENT_S", 60.0)
    dead = f"http://127.0.0.1:{free_port()}"
    async with served(sqlite_url, PATIENT) as server, holding(server, dead) as (worker, supervisor):
        began = time.monotonic()
        await supervisor.tell(worker.session_id)
        assert await gone(server, worker)
        assert time.monotonic() - began < ANSWER_S / 3


async def test_a_report_is_repeated_until_a_server_is_there_again(sqlite_url: str) -> None:
    port = free_port()
    async with served(sqlite_url, PATIENT, port=port) as server, holding(server) as (worker, _):
        url, key = server.url, server.key
    async with reporting(url, key=key) as supervisor:
        telling = asyncio.ensure_future(supervisor.tell(worker.session_id))
        async with served(sqlite_url, PATIENT, port=port) as server:
            await asyncio.wait_for(telling, 10)
            assert await gone(server, worker)


async def test_a_refusal_is_final_and_nothing_is_raised(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    wrong = "ifworker_" + "0" * 43
    async with served(sqlite_url, PATIENT) as server, reporting(server.url, key=wrong) as supervisor:
        assert await supervisor.tell("nobody") == []
    assert "the death of session nobody could not be told" in caplog.text
