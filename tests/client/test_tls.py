"""Addresses with https: what is wrong is told as what it is, and nothing is tried again that stays so."""

from __future__ import annotations

import asyncio
import logging
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ironflow.client import Client
from ironflow.client.transport import broken
from ironflow.errors import ServerUnreachable
from ironflow.remote.plain import Plain

PATIENT = (0.0, 0.0, 0.0)


@asynccontextmanager
async def listening(context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Somebody who answers everything with a refusal in HTTP, with or without TLS; gives its address with https."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def certified(folder: Path, days: int = 2) -> ssl.SSLContext:
    """A certificate for `localhost` that its owner has signed himself, in this folder, which ends in so many days."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, so there is no certificate")
    made = "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out made.pem -subj /CN=localhost"
    made += " -addext subjectAltName=DNS:localhost"
    for words in (made, f"x509 -in made.pem -signkey key.pem -days {days} -out cert.pem"):  # which may be less than 1
        subprocess.run([openssl, *words.split()], cwd=folder, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.fixture(scope="session")
def untrusted(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    """A certificate that nobody was told to trust."""
    return certified(tmp_path_factory.mktemp("certificate"))


async def refused(server: str, caplog: pytest.LogCaptureFixture) -> ServerUnreachable:
    with caplog.at_level(logging.WARNING, "ironflow.client"), pytest.raises(ServerUnreachable) as told:
        async with Client(server, "a-key-of-tests", pauses=PATIENT) as client:
            await client.get("r1")
    assert not caplog.messages, "nothing was tried again"
    return told.value


async def test_a_port_that_speaks_plain_http_is_told_as_that_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as server:
        error = await refused(server, caplog)
    assert error.message == f"{server} does not speak TLS"
    assert error.hint is not None
    assert f"http://{server.removeprefix('https://')}" in error.hint


async def test_a_certificate_that_nobody_trusts_is_told_as_that_at_once(
    untrusted: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    async with listening(untrusted) as server:
        error = await refused(server, caplog)
    assert error.message == f"the certificate of {server} is not trusted: self-signed certificate"
    assert error.hint is not None
    assert "SSL_CERT_FILE" in error.hint


@pytest.mark.parametrize(
    ("name", "days", "trusted", "hint"),
    [
        ("localhost", -1, True, "Let the server have a new certificate"),
        ("other.example", 2, True, "Use a name for which the certificate was made"),
        ("127.0.0.1", 2, True, "Use a name for which the certificate was made"),
        ("localhost", 2, False, "Put the certificate of its issuer into the file that SSL_CERT_FILE names"),
    ],
    ids=["expired", "another name", "an address", "issuer"],
)
async def test_each_reason_not_to_trust_a_certificate_has_its_own_hint(
    tmp_path: Path, name: str, days: int, trusted: bool, hint: str
) -> None:
    context = certified(tmp_path, days)
    ours = ssl.create_default_context(cafile=tmp_path / "cert.pem" if trusted else None)
    async with listening(context) as server:
        with pytest.raises(ssl.SSLCertVerificationError) as met:
            await asyncio.open_connection("127.0.0.1", int(server.rpartition(":")[2]), ssl=ours, server_hostname=name)
    error = broken(server, met.value)
    assert error.message.startswith(f"the certificate of {server} is not trusted: ")
    assert error.hint is not None
    assert error.hint.startswith(hint)


async def test_a_stream_that_finds_no_tls_ends_at_once(caplog: pytest.LogCaptureFixture) -> None:
    async with listening() as server, Client(server, "a-key-of-tests", pauses=PATIENT) as client:
        with caplog.at_level(logging.WARNING, "ironflow.client"), pytest.raises(ServerUnreachable, match="speak TLS"):
            async for _ in client.events("r1"):
                pass
    assert not caplog.messages


async def test_the_thread_that_renews_leases_tells_the_same(untrusted: ssl.SSLContext) -> None:
    for context, told in ((None, "does not speak TLS"), (untrusted, "is not trusted: self-signed certificate")):
        async with listening(context) as server:
            with pytest.raises(ssl.SSLError) as met:
                await asyncio.to_thread(Plain(server, None, 5).post, "/", b"{}", {})
            assert told in broken(server, met.value).message


def test_a_handshake_that_broke_off_is_tried_again() -> None:
    error = broken("https://s", ssl.SSLEOFError(8, "EOF occurred in violation of protocol"))
    assert error.message.startswith("no secure connection to https://s came about: ")
    assert (error.details, error.hint) == ({"unsent": True, "lasting": False}, ServerUnreachable.advice)
