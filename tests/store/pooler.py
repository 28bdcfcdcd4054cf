"""Poolers between a program and its server: a small one of our own, and PgBouncer where it is installed.

The small one does what matters here and nothing else: it greets each client with a number that is no process's, and
lends it a server for one transaction, the one that was given back last.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.recovery.kit import until

from ironflow.testing.relay import Relay

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin:{os.environ.get('PATH', '')}")
#: What a server says at the end of a transaction.
_IDLE = b"Z" + struct.pack(">I", 5) + b"I"
#: What a client asks for before anything else: TLS, and the encryption of GSSAPI.
_ENCRYPTION = (struct.pack(">I", 80877103), struct.pack(">I", 80877104))

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _socket(url: str) -> str:
    """The socket file of the server of this database; the servers of the tests listen nowhere else."""
    return f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432"


class _Pooler:
    def __init__(self, path: str, sessions: bool) -> None:
        self._path = path
        self._sessions = sessions
        self.free: list[Stream] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        server: Stream | None = None
        lent: asyncio.Task[None] | None = None
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            startup = await _startup(reader, writer)
            server, greeting = await self._opened(startup)
            self._give_back(server)
            writer.write(greeting)
            while (message := await _message(reader))[:1] != b"X":
                if lent is None or lent.done():
                    server = server if self._sessions else await self._taken(startup)
                    lent = asyncio.ensure_future(self._answers(server, writer))
                server[1].write(message)
        writer.close()
        held = self._sessions or (lent is not None and not lent.done())
        if server is not None and held:
            server[1].close()

    async def _answers(self, server: Stream, writer: asyncio.StreamWriter) -> None:
        """Hand on what a server says until it is in no transaction."""
        message = b""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while message != _IDLE:
                message = await _message(server[0])
                writer.write(message)
            self._give_back(server)

    def _give_back(self, server: Stream) -> None:
        if not self._sessions:
            self.free.append(server)

    async def _taken(self, startup: bytes) -> Stream:
        return self.free.pop() if self.free else (await self._opened(startup))[0]

    async def _opened(self, startup: bytes) -> tuple[Stream, bytes]:
        """A new server, and its greeting but with another number."""
        server = await asyncio.open_unix_connection(self._path)
        server[1].write(startup)
        greeting = message = b""
        while message != _IDLE:
            message = await _message(server[0])
            greeting += b"K" + struct.pack(">I", 12) + secrets.token_bytes(8) if message[:1] == b"K" else message
        return server, greeting


async def _startup(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    while True:
        length = await reader.readexactly(4)
        rest = await reader.readexactly(int.from_bytes(length) - 4)
        if rest[:4] not in _ENCRYPTION:
            return length + rest
        writer.write(b"N")


async def _message(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(5)
    return head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


def _through(url: str, port: int) -> str:
    parts = urlsplit(url)
    return f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"


@asynccontextmanager
async def pooling(url: str, *, sessions: bool = False) -> AsyncIterator[str]:
    """The small one in front of this database; gives its address. `sessions`: a client keeps its server."""
    pooler = _Pooler(_socket(url), sessions)
    async with await asyncio.start_server(pooler.serve, "127.0.0.1", 0) as listening:
        yield _through(url, listening.sockets[0].getsockname()[1])
    for _, server in pooler.free:
        server.close()


@asynccontextmanager
async def bouncing(url: str, folder: Path, mode: str, *, round_robin: bool = False) -> AsyncIterator[str]:
    """PgBouncer in front of this database, in this mode; gives its address.

    It does not run as root; and nobody else may open the server's socket, so a relay stands between.
    """
    assert PGBOUNCER is not None
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    async with Relay(_socket(url)) as relay:
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host=127.0.0.1 port={relay.port} user={urlsplit(url).username}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = {mode}\nserver_round_robin = {int(round_robin)}\n"
        )
        as_whom = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen([PGBOUNCER, "-q", *as_whom, str(settings)], stderr=subprocess.DEVNULL)
        try:
            await until(lambda: _listens(port), "PgBouncer listens")
            yield _through(url, port)
        finally:
            process.terminate()
            process.wait(20)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
