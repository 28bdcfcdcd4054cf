"""The plain connection of a worker's heartbeat."""

from __future__ import annotations

import asyncio
import gc
import warnings

import pytest

from ironflow.remote.plain import Plain

# After "close" the connection belongs to the answer: closing it does not close this.
SAID = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 100\r\n\r\nhalf"


async def test_an_answer_that_stops_in_the_middle_leaves_no_socket_open() -> None:
    hung_up = asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(SAID)
        await writer.drain()
        await reader.read()  # until the other side has closed
        hung_up.set()
        writer.close()

    server = await asyncio.start_server(stall, "127.0.0.1", 0)
    plain = Plain(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, 0.1)
    kept: list[BaseException] = []

    def ask() -> None:
        try:
            plain.post("/", b"{}", {})
        except TimeoutError as error:
            kept.append(error)  # with its traceback, and so with all that was under way

    async with server:
        await asyncio.to_thread(ask)
        assert kept
        plain.close()
        async with asyncio.timeout(10):
            await hung_up.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResourceWarning)
            kept.clear()
            gc.collect()


@pytest.mark.parametrize("status", [200, 503])
async def test_an_answer_comes_whole_with_its_status(status: int) -> None:
    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 4\r\n\r\nwhat".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(tell, "127.0.0.1", 0) as server:
        plain = Plain(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", None, 5.0)
        assert await asyncio.to_thread(plain.post, "/", b"{}", {}) == (status, b"what")
        plain.close()
