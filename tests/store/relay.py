"""A relay in front of PostgreSQL that can lose the answer to a commit, or the commit itself.

The protocol is not understood, only searched: a client that sends the marker in any statement has its next COMMIT
lost. So exactly one commit of one connection is hit, whatever else goes through.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

#: The next COMMIT takes place, and its answer does not arrive.
LOSE_THE_ANSWER = "lose the answer"
#: The next COMMIT does not arrive.
LOSE_THE_COMMIT = "lose the commit"
_COMMIT = b"COMMIT;"
#: The name of the server's socket in its folder; the servers of the tests listen nowhere else.
_SOCKET = ".s.PGSQL.5432"


class Relay:
    """What it did is told by `lost`."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._busy: set[asyncio.Task[None]] = set()
        self.lost = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client, until either side closes."""
        server_reader, server_writer = await asyncio.open_unix_connection(self._target)
        both = (writer, server_writer)
        answers = asyncio.ensure_future(_pump(server_reader, writer))
        armed = b""
        try:
            while data := await reader.read(1 << 16):
                for marker in (LOSE_THE_ANSWER, LOSE_THE_COMMIT):
                    armed = marker.encode() if marker.encode() in data else armed
                if armed and _COMMIT in data:
                    self.lost += 1
                    answers.cancel()
                    if armed == LOSE_THE_ANSWER.encode():
                        server_writer.write(data)
                        await server_reader.read(1 << 16)
                    return
                server_writer.write(data)
        except ConnectionError:
            pass
        finally:
            answers.cancel()
            for one in both:
                one.close()

    def accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve in a task that is kept."""
        task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
        self._busy.add(task)
        task.add_done_callback(self._busy.discard)

    async def close(self) -> None:
        """End whatever still goes through."""
        for task in [*self._busy]:
            task.cancel()
        await asyncio.gather(*self._busy, return_exceptions=True)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    except ConnectionError:
        pass
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def relay(url: str) -> AsyncIterator[tuple[str, Relay]]:
    """The address of the same database through a relay, and the relay."""
    [folder] = parse_qs(urlsplit(url).query)["host"]
    between = Relay(f"{folder}/{_SOCKET}")
    with tempfile.TemporaryDirectory(prefix="relay-") as place:
        server = await asyncio.start_unix_server(between.accepted, Path(place) / _SOCKET)
        try:
            yield f"{url.partition('?')[0]}?host={quote(place)}", between
        finally:
            server.close()
            await between.close()
