"""Readers that take nothing of what is large: what each costs a node, over real connections."""

from __future__ import annotations

import asyncio
import json
import socket
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.recovery.kit import until
from tests.server.asking import OTHER
from tests.server.kit import Served, new_key
from tests.store.build import answer, append, leave, start

from ironflow.model import key as kinds
from ironflow.model.scope import DEFAULT
from ironflow.model.transition import APPLIED, Transition
from ironflow.server.large import AT_ONCE, PIECE
from ironflow.server.sse import Tail, frames

READERS = AT_ONCE + 4
#: More than a page of a journal holds.
SIZE = 1_100_000


def large(run_id: str, seq: int, size: int = SIZE) -> Transition:
    change = append(run_id, seq)
    change.events[0].payload = json.dumps({"t": 1, "result": "x" * size})
    return change


async def write(here: Served, *changes: Transition) -> None:
    for change in changes:
        assert await answer(here.store, change) == APPLIED


@asynccontextmanager
async def unread(here: Served, path: str, key: str) -> AsyncIterator[list[socket.socket]]:
    """Many who ask, and take nothing of the answer."""
    loop, made = asyncio.get_running_loop(), []
    head = f"GET /api/v1{path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    try:
        for _ in range(READERS):
            one = socket.socket()
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", int(here.url.rpartition(":")[2])))
            await loop.sock_sendall(one, head)
        yield made
    finally:
        for one in made:
            one.close()


async def rest(one: socket.socket) -> int:
    """How much there is to read, to the end."""
    loop, size = asyncio.get_running_loop(), 0
    while part := await loop.sock_recv(one, 1 << 20):
        size += len(part)
    return size


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("what", ["/events", "", "/journal?after=3", "/steps"])
async def test_who_takes_nothing_keeps_a_place_and_costs_the_others_no_memory(
    here: Served, monkeypatch: pytest.MonkeyPatch, traced: None, what: str
) -> None:
    await write(here, start("r1"), large("r1", 4), large("r1", 5), leave("r1", 6, "completed"))
    await write(here, start("r2", org=OTHER.org, environment=OTHER.environment), large("r2", 4))
    await write(here, leave("r2", 5, "completed"))
    key = await new_key(here.store, kinds.ORG, DEFAULT, role="viewer")
    other = await new_key(here.store, kinds.ORG, OTHER, role="viewer")
    read = {"r1": 0, "r2": 0}
    journal = here.store.journal

    async def counted(run_id: str, after: int = 0, limit: int = 0) -> Any:
        read[run_id] += limit == 1
        return await journal(run_id, after, limit)

    monkeypatch.setattr(here.store, "journal", counted)
    before, _ = tracemalloc.get_traced_memory()
    async with unread(here, f"/runs/r1{what}", key) as readers:
        await until(lambda: read["r1"] >= AT_ONCE)
        # Another organisation reads a large value of its own meanwhile, whole.
        asked = {"Authorization": f"Bearer {other}"}
        async with asyncio.timeout(20), here.http.get(f"{here.url}/api/v1/runs/r2{what}", headers=asked) as found:
            assert len(await found.read()) > SIZE
        assert read == {"r1": AT_ONCE, "r2": 1}
        held = tracemalloc.get_traced_memory()[0] - before
        assert held < AT_ONCE * 3 * SIZE
        # And once they read, each gets all of it.
        async with asyncio.timeout(60):
            sizes = await asyncio.gather(*map(rest, readers))
        assert min(sizes) > SIZE * (2 if what == "/events" else 1)


async def test_a_large_event_is_sent_in_pieces(here: Served) -> None:
    await write(here, start("r1"), large("r1", 4), leave("r1", 5, "completed"))
    tail = Tail(here.store, tick_s=600)

    async def allowed() -> bool:
        return True

    parts = [part async for part in frames(tail, "r1", 0, allowed)]
    assert max(map(len, parts)) <= PIECE
    [sent] = [one for one in "".join(parts).split("\n\n") if one.startswith("id: 4\n")]
    assert json.loads(sent.partition("data: ")[2])["payload"] == {"t": 1, "result": "x" * SIZE}
    await tail.close()


async def test_a_key_that_is_revoked_cuts_a_large_event_off(here: Served) -> None:
    await write(here, start("r1"), large("r1", 4), append("r1", 5))
    tail = Tail(here.store, tick_s=600)
    sent = [0]

    async def allowed() -> bool:
        return sent[0] < PIECE * 2

    async for part in frames(tail, "r1", 0, allowed):
        sent[0] += len(part)
    assert sent[0] < PIECE * 4
    await tail.close()


async def test_a_reader_keeps_no_more_of_a_page_than_it_can_send_together(here: Served) -> None:
    size, count = 8_000, 60
    await write(here, start("r1"), *(large("r1", seq, size) for seq in range(4, 4 + count)))
    tail = Tail(here.store, tick_s=600)
    reader = tail.open("r1", 0)
    seen: list[int] = []
    while len(seen) < count + 3:
        page = await reader.page(5) or pytest.fail("nothing came")
        assert sum(len(event.payload or "") for event in page) < PIECE + 2 * size
        seen += [event.seq for event in page]
    assert seen == list(range(1, count + 4))
    tail.leave(reader)
    await tail.close()
