"""A relay in front of a server that loses answers and cuts streams, when a test says so."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Everything goes through, but for what is set here.

    Attributes:
        url: where it listens.
        lose: a request that holds these bytes reaches the server, and its answer is lost: once.
        budgets: how many bytes of answers each of the next connections brings, before it is cut.
        requests: what clients have sent, by connection.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._busy: set[asyncio.Task[None]] = set()
        self.url = ""
        self.lose: bytes | None = None
        self.budgets: list[int] = []
        self.requests: list[bytes] = []

    def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve in a task that is kept."""
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def close(self) -> None:
        """End whatever still goes through."""
        for task in [*self._busy]:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._port)
        number, budget = len(self.requests), self.budgets.pop(0) if self.budgets else None
        self.requests.append(b"")
        answers = asyncio.ensure_future(_pump(server_reader, writer, budget))
        try:
            while data := await reader.read(1 << 16):
                self.requests[number] += data
                if self.lose is not None and self.lose in self.requests[number]:
                    self.lose = None
                    answers.cancel()
                    server_writer.write(data)
                    await server_reader.read(1)
                    return
                server_writer.write(data)
        except ConnectionError:
            pass
        finally:
            answers.cancel()
            for one in (writer, server_writer):
                one.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, budget: int | None) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            if budget is not None:
                data, budget = data[:budget], budget - len(data)
            writer.write(data)
            if budget is not None and budget <= 0:
                await writer.drain()
                break
    writer.close()


@asynccontextmanager
async def relay(url: str) -> AsyncIterator[Relay]:
    """A relay in front of the server of this address."""
    between = Relay(int(url.rpartition(":")[2]))
    server = await asyncio.start_server(between.accepted, "127.0.0.1", 0)
    between.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield between
    finally:
        server.close()
        await between.close()
