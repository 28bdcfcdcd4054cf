"""An HTTP proxy for tests: it alone knows where a server is, and notes who was asked for what by whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

#: A name that leads nowhere: whoever reaches it went through the proxy.
NOWHERE = "node.invalid"


class Asked(NamedTuple):
    """A request that came by."""

    method: str
    target: str
    credentials: str | None


class Proxy:
    """See the module's docstring.

    Args:
        port: where the server that is called `NOWHERE` listens on this host.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.asked: list[Asked] = []
        self.port = 0

    def seen(self, path: str) -> list[Asked]:
        """The requests for this path."""
        return [one for one in self.asked if urlsplit(one.target).path == path]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection: one request, passed on with its address made the server's own."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *headers = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
            method, target, _ = line.split(" ")
            named = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in headers)}
            self.asked.append(Asked(method, target, named.get("proxy-authorization")))
            parts = urlsplit(target)
            if parts.hostname != NOWHERE:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                await writer.drain()
                return
            kept = [one for one in headers if not one.lower().startswith(("proxy-", "connection:"))]
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
            lines = [f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]
            upstream, to_server = await asyncio.open_connection("127.0.0.1", self._port)
            to_server.write("\r\n".join(lines).encode("latin-1"))
            try:
                back = asyncio.ensure_future(_pipe(upstream, writer))
                there = asyncio.ensure_future(_pipe(reader, to_server))
                await asyncio.wait({back, there}, return_when=asyncio.FIRST_COMPLETED)
                for one in (back, there):
                    one.cancel()
                await asyncio.gather(back, there, return_exceptions=True)
            finally:
                to_server.close()
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while part := await reader.read(1 << 16):
        writer.write(part)
        await writer.drain()


@asynccontextmanager
async def proxying(port: int) -> AsyncIterator[Proxy]:
    """A proxy to the server at this port, on a port of its own."""
    proxy = Proxy(port)
    listening = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = listening.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        listening.close()
