"""A relay in front of a server: it can lose the answer to a request, or be away altogether."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit


class Relay:
    """One loopback port that passes everything on. What it did is told by `lost`."""

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        self._host, self._port = parts.hostname or "", parts.port or 0
        self._lose = b""
        self._busy: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.lost = 0
        self.requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_answer_to(self, request: str) -> None:
        """The next request whose first line begins so is carried out, and its answer does not arrive."""
        self._lose = request.encode()

    async def up(self) -> None:
        """Listen: on the port it had before, if it had one."""
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Listen no more, and cut what goes through."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in [*self._busy]:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)
        task.add_done_callback(lambda _: writer.close())  # also where it was cut off before it began

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(self._host, self._port)
        answers = asyncio.ensure_future(_pump(server_reader, writer))
        try:
            while data := await reader.read(1 << 16):
                self.requests += data.count(b" HTTP/1.1\r\n")
                losing = bool(self._lose) and self._lose in data
                if losing:
                    self._lose = b""
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                server_writer.write(data)
                if losing:
                    await server_reader.read(1 << 16)
                    self.lost += 1
                    return
        except ConnectionError:
            pass
        finally:
            answers.cancel()
            server_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
    writer.close()


@contextlib.asynccontextmanager
async def relayed(target: str) -> AsyncIterator[Relay]:
    """A relay that is up."""
    relay = Relay(target)
    await relay.up()
    try:
        yield relay
    finally:
        await relay.down()
