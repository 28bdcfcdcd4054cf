"""A network in the hands of a test: one address that passes everything on to another, until it is told otherwise.

It breaks what is open, lets nobody in, holds pieces back, and loses the one request or the one answer that it is told
to lose. No protocol is understood: what is to be lost is found by a pattern in the bytes that a client sends, so the
same relay stands in front of an HTTP server and of a database.

    async with Relay("http://127.0.0.1:9123") as relay:
        relay.lose_answer(rb"POST /api/v1/runs ")  # whoever speaks to `relay.url` starts a run and is not told

Loopback and socket files only. Everything happens in one event loop, and nothing of it is thread-safe.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from typing import Final, Self
from urllib.parse import urlsplit

_HOST: Final = "127.0.0.1"
#: Bytes that are read at once.
_PIECE: Final = 1 << 16
#: SO_LINGER with a time of zero: closing throws away what is unsent and sends RST (socket(7), tcp(7)).
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class _Passage:
    """One connection: its two ends, and what is to become of it."""

    __slots__ = ("broken", "budget", "ends", "losing", "sent")

    def __init__(self, client: asyncio.StreamWriter, budget: int | None) -> None:
        self.ends = [client]
        #: bytes of answers that it still brings; None: as many as there are
        self.budget = budget
        #: what its client has sent while there was something to lose
        self.sent = bytearray()
        #: what is answered next is lost
        self.losing = False
        self.broken = False

    def reset(self) -> None:
        """Break both ends at once, as a router does that knows nothing of them any more."""
        self.broken = True
        for end in self.ends:
            if not end.transport.is_closing():
                connection: socket.socket = end.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            end.transport.abort()


class Relay:
    """See the module's docstring. A context manager: up when it is entered, cut when it is left.

    Args:
        target: where to pass on to: the address of a server, or the path of a socket file.
        at: the socket file on which to listen; without one it is a loopback port.
        heard: told of each piece that a client sends.

    Attributes:
        port: where it listens; the same whenever it is up.
        connections: how many clients it has let in.
        lost: how many requests or answers it has lost.
        delay_s: gives for each piece how long it is held back, seconds; None passes on at once.
        budgets: how many bytes of answers each of the next connections brings before it ends.
    """

    def __init__(self, target: str, *, at: str | None = None, heard: Callable[[bytes], object] | None = None) -> None:
        self._target = target
        self._at = at
        self._heard = heard
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], _Passage] = {}
        #: what is to be lost, and whether that is the request (or else its answer)
        self._wanted: tuple[re.Pattern[bytes], bool] | None = None
        self.port = 0
        self.connections = 0
        self.lost = 0
        self.delay_s: Callable[[], float] | None = None
        self.budgets: list[int] = []

    @property
    def url(self) -> str:
        """Where an HTTP server is reached through it."""
        return f"http://{_HOST}:{self.port}"

    async def __aenter__(self) -> Self:
        await self.up()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    # ---- what it is told

    async def up(self) -> None:
        """Listen: at the address it had before, if it had one.

        Raises:
            OSError: somebody else listens there by now.
        """
        if self._at is not None:
            self._server = await asyncio.start_unix_server(self._accepted, self._at)
        else:
            self._server = await asyncio.start_server(self._accepted, _HOST, self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection, and let nobody in until it is up again."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.drop()

    def drop(self) -> None:
        """Break every connection: both sides are told at once (RST). Whoever comes anew is let in."""
        for passage in self._open.values():
            passage.reset()

    def lose_answer(self, pattern: bytes) -> None:
        """Lose one answer: to the next request that makes what one connection sends from now on match.

        The request is carried out; when its answer comes, the connection breaks instead.

        Args:
            pattern: a regular expression; its dot stands for any byte.
        """
        self._lose(pattern, request=False)

    def lose_request(self, pattern: bytes) -> None:
        """As `lose_answer`, but the connection breaks before the request has arrived."""
        self._lose(pattern, request=True)

    def _lose(self, pattern: bytes, *, request: bool) -> None:
        self._wanted = re.compile(pattern, re.DOTALL), request
        for passage in self._open.values():
            passage.sent.clear()

    # ---- what goes through

    def _accepted(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        if self._server is None:  # it was let in by the system, and before that was known here came the cut
            _Passage(client, None).reset()
            return
        self.connections += 1
        passage = _Passage(client, self.budgets.pop(0) if self.budgets else None)
        task = asyncio.get_running_loop().create_task(self._serve(passage, reader, client))
        self._open[task] = passage
        task.add_done_callback(self._open.pop)

    async def _serve(self, passage: _Passage, requests: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            answers, server = await self._onward()
        except OSError:  # the server is away
            passage.reset()
            return
        passage.ends.append(server)
        if passage.broken:
            passage.reset()
            return
        await asyncio.gather(
            self._pass(requests, server, lambda data: self._request(passage, data)),
            self._pass(answers, client, lambda data: self._answer(passage, data)),
        )

    async def _onward(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._target.startswith("/"):
            return await asyncio.open_unix_connection(self._target)
        parts = urlsplit(self._target)
        return await asyncio.open_connection(parts.hostname, parts.port)

    async def _pass(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        judge: Callable[[bytes], tuple[bytes, bool]],
    ) -> None:
        """Pass on until one end closes. `judge` gives what becomes of a piece, and whether another may follow."""
        more = True
        try:
            while more and (data := await source.read(_PIECE)):
                data, more = judge(data)
                if self.delay_s is not None:
                    await asyncio.sleep(self.delay_s())
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass  # broken, on either side: so is the other half
        finally:
            sink.close()

    def _request(self, passage: _Passage, data: bytes) -> tuple[bytes, bool]:
        if self._heard is not None:
            self._heard(data)
        if self._wanted is None:
            return data, True
        pattern, lose_request = self._wanted
        passage.sent += data
        if pattern.search(passage.sent) is None:
            return data, True
        self._wanted = None
        passage.losing = not lose_request
        return self._lost(passage) if lose_request else (data, True)

    def _answer(self, passage: _Passage, data: bytes) -> tuple[bytes, bool]:
        if passage.losing:
            return self._lost(passage)
        if passage.budget is None:
            return data, True
        data = data[: passage.budget]
        passage.budget -= len(data)
        return data, passage.budget > 0

    def _lost(self, passage: _Passage) -> tuple[bytes, bool]:
        self.lost += 1
        passage.reset()
        return b"", False
