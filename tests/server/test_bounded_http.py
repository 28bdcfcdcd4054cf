"""What one connection may cost: heads of requests without an end, and answers that nobody takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from tests.recovery.kit import until
from tests.server.kit import Served, served

from ironflow.server import bounded_http
from ironflow.server.bounded_http import MOST_HEAD


@pytest.fixture
async def node(store_url: str) -> AsyncIterator[Served]:
    async with served(store_url) as here:
        yield here


async def connected(node: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    port = int(node.url.rpartition(":")[2])
    return await asyncio.open_connection("127.0.0.1", port)


async def told(node: Served, *parts: bytes) -> bytes:
    """What is answered to these bytes, sent one by one."""
    reader, writer = await connected(node)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        try:
            answer = await reader.read()
        finally:
            writer.close()
    return answer


HEAD = b"GET /health HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [HEAD + b"X: " + b"a" * (MOST_HEAD + 1)],
        [HEAD + b"X: ", *([b"a" * 1_000] * (MOST_HEAD // 1_000 + 1))],
        [HEAD + b"X: y\r\n" * (MOST_HEAD // 64 + 1)],
        [b"GET /" + b"a" * (MOST_HEAD + 1) + b" HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"GET /" + b"a" * (MOST_HEAD + 1)],
    ],
    ids=["one header", "one header in pieces", "many headers", "an address", "an address without an end"],
)
async def test_a_head_without_bounds_is_refused_before_anything_is_asked(node: Served, parts: list[bytes]) -> None:
    answer = await told(node, *parts)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body)["code"] == "HEADERS_TOO_LARGE"
    assert (await told(node, HEAD + b"Connection: close\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Bad Header: x\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        HEAD + b"Host: y\r\n\r\n",
    ],
    ids=[
        "a header's name",
        "two framings",
        "two lengths",
        "an address",
        "half an address",
        "TLS",
        "a chunk",
        "no host",
        "two hosts",
    ],
)
async def test_what_is_no_request_is_refused_as_a_problem(node: Served, sent: bytes) -> None:
    answer = await told(node, sent)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"content-type: application/problem+json" in head
    found = json.loads(body)
    assert (found["status"], found["code"]) == (400, "MALFORMED_HTTP")
    assert found["hint"]


async def test_a_request_of_an_older_version_names_no_host(node: Served) -> None:
    assert (await told(node, b"GET /health HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1.1 200")


def chunked(head: bytes, behind: bytes) -> bytes:
    """A worker's request in chunks, with these headers before its body and those behind it."""
    body = b'{"session_id": "s"}'
    return (
        b"POST /api/v1/worker/poll HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
        + head + b"\r\n%x\r\n" % len(body) + body + b"\r\n0\r\n" + behind + b"\r\n"
    )  # fmt: skip


async def test_what_stands_behind_a_body_says_nothing_of_the_request(node: Served) -> None:
    key = b"Authorization: Bearer %s\r\n" % node.key.encode()
    assert b'"UNAUTHENTICATED"' in await told(node, chunked(b"", key))
    for behind in (b"", b"Content-Type: text/plain\r\n", b"Authorization: Bearer other\r\n", b"Host: y\r\n"):
        assert b'"SESSION_UNKNOWN"' in await told(node, chunked(key, behind))


async def test_many_headers_behind_a_body_are_too_many(node: Served) -> None:
    key = b"Authorization: Bearer %s\r\n" % node.key.encode()
    assert (await told(node, chunked(key, b"X: y\r\n" * (MOST_HEAD // 64 + 1)))).startswith(b"HTTP/1.1 431")


@pytest.mark.parametrize("coding", [b"gzip, chunked", b"gzip\r\nTransfer-Encoding: chunked"])
async def test_a_body_that_is_compressed_on_its_way_is_refused_like_any_compressed_one(
    node: Served, coding: bytes
) -> None:
    request = chunked(b"Authorization: Bearer %s\r\n" % node.key.encode(), b"")
    answer = await told(node, request.replace(b"Encoding: chunked", b"Encoding: " + coding))
    assert answer.startswith(b"HTTP/1.1 415")
    assert b'"UNSUPPORTED_MEDIA_TYPE"' in answer


async def test_what_stands_behind_a_body_is_bounded_too(node: Served) -> None:
    reader, writer = await connected(node)
    writer.write(b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX: ")
    for _ in range(10):
        writer.write(b"a" * MOST_HEAD)
    async with asyncio.timeout(10):
        while True:
            try:
                if not await reader.read(65_536):
                    break
            except ConnectionError:
                break
    writer.close()


async def test_a_head_within_bounds_and_a_large_body_are_read(node: Served) -> None:
    body = json.dumps({"session_id": "s", "pad": "x" * 1_000_000}).encode()
    head = (
        b"POST /api/v1/worker/poll HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer "
        + node.key.encode() + b"\r\nX: " + b"a" * (MOST_HEAD // 2)
        + b"\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    )  # fmt: skip
    assert (await told(node, head + body)).startswith(b"HTTP/1.1 404")


@pytest.mark.parametrize(
    "begun",
    [b"", HEAD, b"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf", HEAD + b"\r\n" + HEAD],
    ids=["nothing", "half a head", "half a body", "half of a second one"],
)
async def test_a_request_that_does_not_become_whole_is_refused(
    node: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    monkeypatch.setattr(bounded_http, "ARRIVES_S", 0.2)
    answer = await told(node, begun)
    assert b"HTTP/1.1 408 Request Timeout\r\n" in answer
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["code"] == "REQUEST_TOO_SLOW"


async def test_a_request_that_is_whole_may_be_answered_late_and_its_connection_stays(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_http, "ARRIVES_S", 0.1)
    reader, writer = await connected(node)
    held: list[float] = []
    asyncio.get_running_loop().call_later(0.3, held.append, 0.3)
    for part in (HEAD, b"\r\n"):
        writer.write(part)
        await writer.drain()
    await reader.readuntil(b"}")
    await until(lambda: bool(held))
    writer.write(HEAD + b"Connection: close\r\n\r\n")
    assert b"200" in await reader.read()
    writer.close()


async def test_who_takes_nothing_of_an_answer_is_cut_off(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "STUCK_S", 0.1)
    made: list[bounded_http.BoundedHttp] = []
    plain = bounded_http.BoundedHttp.pause_writing

    def noted(self: bounded_http.BoundedHttp) -> None:
        made.append(self)
        self.transport.set_write_buffer_limits(high=0)
        plain(self)

    monkeypatch.setattr(bounded_http.BoundedHttp, "pause_writing", noted)
    reader, writer = await connected(node)
    assert not reader.at_eof()
    reader._transport.pause_reading()  # type: ignore[attr-defined]
    # An address is repeated in the refusal; many of them fill what the two sockets hold between them.
    ask = b"GET /" + b"a" * (MOST_HEAD // 2) + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    for _ in range(400):
        writer.write(ask)
    await until(lambda: bool(made) and made[0].transport.is_closing())
    writer.transport.abort()


# ---- who sends no more


async def ended(node: Served, sent: bytes) -> bytes:
    """What is answered to who sends this and then closes his half of the connection; the node closes the other."""
    reader, writer = await connected(node)
    writer.write(sent)
    writer.write_eof()
    async with asyncio.timeout(10):
        try:
            return await reader.read()
        finally:
            writer.close()


@pytest.mark.parametrize("requests", [1, 3])
async def test_who_sends_no_more_behind_a_whole_request_is_answered(node: Served, requests: int) -> None:
    request = chunked(b"Authorization: Bearer %s\r\n" % node.key.encode(), b"")
    answer = await ended(node, request.replace(b"Connection: close\r\n", b"") * requests)
    assert answer.count(b'"SESSION_UNKNOWN"') == requests
    assert answer.endswith(b"}"), "and the connection is closed behind the last answer"


async def test_who_sends_no_more_in_the_middle_of_a_request_is_not_waited_for(node: Served) -> None:
    assert await ended(node, HEAD) == b""
    whole = chunked(b"Authorization: Bearer %s\r\n" % node.key.encode(), b"")
    assert await ended(node, whole[:-5]) == b""


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("what", ["poll", "stream"])
async def test_who_sends_no_more_and_would_have_to_wait_is_taken_for_gone(node: Served, what: str, later: bool) -> None:
    worker = await node.worker()
    head = b"Host: x\r\nAuthorization: Bearer %s\r\n" % worker.key.encode()
    if what == "poll":
        body = json.dumps({"session_id": worker.session_id, "credits": 1, "wait_ms": 20_000}).encode()
        request = b"POST /api/v1/worker/poll HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (head, len(body), body)
    else:
        path = f"/api/v1/worker/liveness?session_id={worker.session_id}"
        request = b"GET %s HTTP/1.1\r\n%s\r\n" % (path.encode(), head)
    reader, writer = await connected(node)
    writer.write(request)
    if later:
        if what == "poll":
            await until(lambda: node.node.hub.waiting)
        else:
            await reader.readuntil(b"hello")
    writer.write_eof()
    async with asyncio.timeout(10):
        assert b'"assignments"' not in await reader.read()
    writer.close()
