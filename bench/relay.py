"""The network between a host of workers and its server, which can be cut.

One loopback port that passes everything on. Once it is cut, both sides of each connection are told so at once (RST,
as from a router that knows nothing of them any more), and nobody is let in again.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Self
from urllib.parse import urlsplit

#: SO_LINGER with a time of zero: closing throws away what is unsent and sends RST.
_AT_ONCE = struct.pack("ii", 1, 0)


class Relay:
    """See the module's docstring. A context manager.

    Args:
        target: the address of the server.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._busy: set[asyncio.Task[None]] = set()
        self.url = ""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.url = "http://{}:{}".format(*self._server.sockets[0].getsockname())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        for task in self._busy:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    def cut(self) -> None:
        """Break every connection, and accept no other."""
        if self._server is not None:
            self._server.close()
        for writer in self._open:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            writer.transport.abort()
        self._open.clear()

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._pass_on(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            answers, server = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._open.add(server)
        try:
            await asyncio.gather(_pump(reader, server), _pump(answers, writer))
        except ConnectionError:
            return
        finally:
            for end in (server, writer):
                self._open.discard(end)
                end.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        sink.write(data)
        await sink.drain()
    sink.close()
