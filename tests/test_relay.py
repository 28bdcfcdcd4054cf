"""The network of the tests does what it is told, and nothing else: what is proved through it depends on that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.recovery.kit import until

from ironflow.testing.relay import Relay

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that answers each line with itself, and keeps what it saw."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        #: how many connections are over
        self.ended = 0
        self.address = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
        except ConnectionResetError:
            pass
        self.ended += 1
        writer.close()


@pytest.fixture
async def echo() -> AsyncIterator[Echo]:
    """One on a loopback port."""
    made = Echo()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield made
    server.close()


class Clients:
    """Connections to a relay, each of which is closed at the end."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._made: list[asyncio.StreamWriter] = []

    async def one(self) -> Ends:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._relay.port)
        self._made.append(writer)
        return reader, writer

    def close(self) -> None:
        for writer in self._made:
            writer.close()


@pytest.fixture
async def relay(echo: Echo) -> AsyncIterator[Relay]:
    """One in front of the echo."""
    async with Relay(echo.address) as made:
        yield made


@pytest.fixture
async def clients(relay: Relay) -> AsyncIterator[Clients]:
    """Of that relay."""
    made = Clients(relay)
    yield made
    made.close()


async def said(ends: Ends, line: bytes) -> bytes:
    """The answer to a line; empty where the connection ends instead."""
    reader, writer = ends
    writer.write(line)
    return await asyncio.wait_for(reader.readline(), 10)


async def test_a_cut_network_resets_what_is_open_and_lets_nobody_in_until_it_is_up_again(
    echo: Echo, relay: Relay, clients: Clients
) -> None:
    one = await clients.one()
    assert await said(one, b"through\n") == b"through\n"
    relay.cut()
    with pytest.raises(ConnectionResetError):
        await one[0].read(1)
    with pytest.raises(ConnectionRefusedError):
        await clients.one()
    await until(lambda: echo.ended == 1, "the server was told")
    port = relay.port
    await relay.up()
    assert relay.port == port
    assert await said(await clients.one(), b"again\n") == b"again\n"
    assert relay.connections == 2


async def test_who_comes_after_a_drop_is_let_in(relay: Relay, clients: Clients) -> None:
    one = await clients.one()
    await said(one, b"through\n")
    relay.drop()
    with pytest.raises(ConnectionResetError):
        await one[0].read(1)
    assert await said(await clients.one(), b"again\n") == b"again\n"


async def test_a_connection_ends_where_either_side_closes_it(echo: Echo, relay: Relay, clients: Clients) -> None:
    one = await clients.one()
    await said(one, b"through\n")
    one[1].close()
    await until(lambda: echo.ended == 1)
    await until(lambda: not relay._open)


async def test_the_answer_that_is_lost_is_that_of_the_first_request_that_matches(
    echo: Echo, relay: Relay, clients: Clients
) -> None:
    one, other = await clients.one(), await clients.one()
    assert await said(one, b"pay\n") == b"pay\n"
    relay.lose_answer(rb"pay\n")
    assert await said(other, b"look\n") == b"look\n"
    assert await said(one, b"look\n") == b"look\n", "what was sent before does not count"
    one[1].write(b"pa")  # however the network cuts it
    await until(lambda: any(b"pa" in passage.sent for passage in relay._open.values()))
    with pytest.raises(ConnectionResetError):
        await said(one, b"y\n")
    assert echo.lines.count(b"pay\n") == 2
    assert await said(other, b"pay\n") == b"pay\n", "one is lost, and no other"
    assert relay.lost == 1


async def test_a_request_that_is_lost_does_not_arrive(echo: Echo, relay: Relay, clients: Clients) -> None:
    one, other = await clients.one(), await clients.one()
    relay.lose_request(rb"first.*then")
    assert await said(other, b"then\n") == b"then\n"
    assert await said(one, b"first\n") == b"first\n"
    assert await said(other, b"then\n") == b"then\n", "the pattern is about one connection"
    with pytest.raises(ConnectionResetError):
        await said(one, b"then\n")
    assert echo.lines == [b"then\n", b"first\n", b"then\n"]
    assert relay.lost == 1


async def test_a_budget_is_brought_to_the_byte(relay: Relay, clients: Clients) -> None:
    relay.budgets = [9, 2]
    one, two, three = [await clients.one() for _ in range(3)]
    assert await said(two, b"through\n") == b"th"
    assert await said(one, b"through\n") == b"through\n"
    assert await said(one, b"through\n") == b"t"
    assert await said(three, b"through\n") == b"through\n"
    assert relay.budgets == []


async def test_pieces_are_held_back_for_as_long_as_is_said(relay: Relay, clients: Clients) -> None:
    asked: list[float] = []

    def delay() -> float:
        asked.append(0.0)
        return 0.0

    relay.delay_s = delay
    assert await said(await clients.one(), b"through\n") == b"through\n"
    assert len(asked) == 2, "there and back"


async def test_what_clients_send_is_told(echo: Echo) -> None:
    sent = bytearray()
    async with Relay(echo.address, heard=sent.extend) as relay:
        clients = Clients(relay)
        await said(await clients.one(), b"through\n")
        clients.close()
    assert sent == b"through\n"


async def test_it_stands_between_socket_files_too(tmp_path: Path) -> None:
    echo, here, there = Echo(), str(tmp_path / "here"), str(tmp_path / "there")
    server = await asyncio.start_unix_server(echo.serve, there)
    async with Relay(there, at=here) as relay:
        reader, writer = await asyncio.open_unix_connection(here)
        assert await said((reader, writer), b"through\n") == b"through\n"
        relay.cut()
        assert await reader.read() == b""
        writer.close()
    server.close()


async def test_where_the_server_is_away_a_connection_breaks() -> None:
    async with Relay("http://127.0.0.1:9") as relay:
        clients = Clients(relay)
        reader, _ = await clients.one()
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
        clients.close()
