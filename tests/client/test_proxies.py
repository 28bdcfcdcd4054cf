"""A client goes the way that its environment names; which way that is stands in `tests/remote/test_proxies.py`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ironflow.client import Client

NAMES = ["http_proxy", "https_proxy", "all_proxy", "no_proxy"]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def proxy(answer: str) -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that answers everything itself, and keeps the heads of what it was asked."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\n\r\n{answer}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


async def test_a_client_asks_through_the_proxy_of_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with proxy('{"run_id": "r", "changed": true, "state": "paused"}') as (address, heads):
        monkeypatch.setenv("HTTP_PROXY", f"http://me:s%40fe@{address}")
        async with Client("http://ironflow.test:9123", "a-key-of-tests", pauses=()) as client:
            assert await client.pause("r") is True
        (head,) = heads
        assert head.startswith("POST http://ironflow.test:9123/api/v1/runs/r/pause ")
        assert "Proxy-Authorization: Basic bWU6c0BmZQ==" in head
