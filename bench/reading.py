"""Readers of runs, as a process of their own: their work is no work of the server's, but it takes the same cores.

    python bench/reading.py URL         the key is in IRONFLOW_API_KEY, the ids of the runs come on standard input

One connection for each run. When each has brought its first event, a line of JSON says that they are live. While they
read, they only keep the bytes and when they came; when all streams have ended, each is checked: every event once, in
order, up to the one that ends the run. Then a second line: per run, a digest of the events, to be compared with the
journal; how late the events were, as the 99th percentile in ms from their commit; and the processor time the reading
took.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.measure import percentile
from ironflow.client.sse import Message, Reader
from ironflow.model.journal import TERMINAL_KINDS


class Wrong(Exception):
    """What a stream brought is not what it has to bring."""


class Stream(asyncio.Protocol):
    """One answer of a server, kept as it comes."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        #: when each piece came (seconds since 1970), and the piece
        self.pieces: list[tuple[float, bytes]] = []
        self.live = asyncio.Event()
        self.over = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Keep it."""
        self.pieces.append((time.time(), data))
        if not self.live.is_set() and b"\nid: " in b"".join(piece for _, piece in self.pieces):
            self.live.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Nothing more comes; whether it was all is seen in what came."""
        self.live.set()
        self.over.set()


def messages(pieces: Iterable[tuple[float, bytes]]) -> Iterator[tuple[float, Message]]:
    """The events of a stream, each with the time at which the last byte of its chunk came.

    Raises:
        Wrong: it is no stream, or it ends before its end.
    """
    came = list(pieces)
    raw = b"".join(data for _, data in came)
    ends = list(itertools.accumulate(len(data) for _, data in came))
    head, _, _ = raw.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 ") or b"chunked" not in head.lower():
        raise Wrong(f"the answer is no stream: {raw[:300]!r}")
    reader, at = Reader(), len(head) + 4
    while True:
        line_end = raw.find(b"\r\n", at)
        size = int(raw[at:line_end], 16) if line_end > 0 else -1
        begin, at = line_end + 2, line_end + 2 + size
        if size < 0 or at + 2 > len(raw):
            raise Wrong("the stream broke")
        if size == 0:
            return
        for message in reader.feed(raw[begin:at]):
            yield came[bisect_left(ends, at)][0], message
        at += 2


def checked(pieces: Iterable[tuple[float, bytes]]) -> tuple[str, list[float]]:
    """The digest of a stream's events, and how late each was, in ms.

    Raises:
        Wrong: an event is missing, came twice or out of order, or the last one does not end the run.
    """
    found: list[tuple[int, str, str | None]] = []
    late = []
    for came, message in messages(pieces):
        event: dict[str, Any] = json.loads(message.data)
        if not message.id == str(event["seq"]) == str(len(found) + 1):
            raise Wrong(f"event {message.id} came where {len(found) + 1} had to")
        found.append((event["seq"], event["kind"], event["step_id"]))
        late.append(came * 1000 - event["at_ms"])
    if not found or found[-1][1] not in TERMINAL_KINDS:
        raise Wrong(f"the stream ended behind {found[-1:]}, and the run had not")
    return digest(found), late


def digest(events: Iterable[tuple[int, str, str | None]]) -> str:
    """One text for the events (seq, kind, step) of a run."""
    return hashlib.sha256(json.dumps(list(events)).encode()).hexdigest()


async def read(url: str, key: str, run_ids: list[str]) -> dict[str, Any]:
    """Read all of these runs to their ends, and check what came."""
    parts, loop = urlsplit(url), asyncio.get_running_loop()
    assert parts.hostname is not None
    assert parts.port is not None
    streams: dict[str, Stream] = {}
    for run_id in run_ids:
        request = (
            f"GET /api/v1/runs/{quote(run_id, safe='')}/events HTTP/1.1\r\nHost: {parts.netloc}\r\n"
            f"Authorization: Bearer {key}\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n"
        )
        streams[run_id] = Stream(request.encode())
        await loop.create_connection(lambda run_id=run_id: streams[run_id], parts.hostname, parts.port)  # type: ignore[misc]
    await asyncio.gather(*(stream.live.wait() for stream in streams.values()))
    print(json.dumps({"live": len(streams)}), flush=True)
    began = time.process_time()
    await asyncio.gather(*(stream.over.wait() for stream in streams.values()))
    took = time.process_time() - began
    digests, lates = {}, []
    for run_id, stream in streams.items():
        try:
            digests[run_id], late = checked(stream.pieces)
        except Wrong as error:
            return {"wrong": f"the reader of run {run_id}: {error}"}
        lates += late
    return {"digests": digests, "late_ms": percentile(lates, 0.99), "cpu_s": took}


async def main(url: str) -> None:
    """Read until all is read, or until standard input ends because the parent has died."""
    run_ids = json.loads(sys.stdin.readline())
    reading = asyncio.ensure_future(read(url, os.environ["IRONFLOW_API_KEY"], run_ids))
    orphaned = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.wait({reading, orphaned}, return_when=asyncio.FIRST_COMPLETED)
    if reading.done():
        print(json.dumps(reading.result()), flush=True)
    os._exit(0)  # the thread waits for standard input, and is not to be waited for


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
