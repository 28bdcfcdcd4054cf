"""Starts made side by side travel together, and each caller gets the answer of its own."""

from __future__ import annotations

import asyncio

import pytest
from tests.client import flows
from tests.client.conftest import Rig

from ironflow import Run
from ironflow.client import Client, gathering
from ironflow.errors import InvalidInput, InvalidPriority, IronflowError, ServerUnreachable
from ironflow.store.reader import RunFilter
from ironflow.testing.relay import Relay

MANY = 70


async def test_starts_of_one_moment_are_one_request(rig: Rig) -> None:
    sent = bytearray()
    async with Relay(rig.url, heard=sent.extend) as relay, rig.client(url=relay.url) as client:
        started = await asyncio.gather(*(client.start(flows.double, number) for number in range(MANY)))
        assert [await run.result() for run in started] == [2 * number for number in range(MANY)]
        assert (sent.count(b"POST /api/v1/runs/batch "), sent.count(b"POST /api/v1/runs ")) == (1, 0)


async def test_a_start_alone_is_a_request_of_its_own(rig: Rig) -> None:
    sent = bytearray()
    async with Relay(rig.url, heard=sent.extend) as relay, rig.client(url=relay.url) as client:
        assert await client.run(flows.double, 21) == 42
        assert b"POST /api/v1/runs " in sent
        assert b"/batch" not in sent


async def test_each_refusal_reaches_its_own_caller(rig: Rig) -> None:
    async with rig.client() as client:
        good, bad, also_good = await asyncio.gather(
            client.start(flows.double, 1),
            client.start("no-such-workflow", 1),
            client.start("double", 2),
            return_exceptions=True,
        )
        assert isinstance(bad, IronflowError)
        assert bad.code == "WORKFLOW_UNKNOWN"
        assert isinstance(good, Run)
        assert isinstance(also_good, Run)
        assert [await good.result(), await also_good.result()] == [2, 4]
        with pytest.raises(InvalidPriority):
            await client.start(flows.double, 1, priority=101)


async def test_a_batch_whose_answer_is_lost_starts_no_run_twice(rig: Rig) -> None:
    async with Relay(rig.url) as relay, rig.client(url=relay.url) as client:
        relay.lose_answer(rb"/runs/batch")
        started = await asyncio.gather(*(client.start(flows.double, number) for number in range(MANY)))
        assert relay.lost == 1
        assert all(run.created for run in started)
        assert len(await client.list(RunFilter(limit=100))) == len({run.id for run in started}) == MANY


async def test_starts_go_in_as_many_requests_as_the_limit_of_a_body_asks_for(rig: Rig) -> None:
    sent = bytearray()
    async with Relay(rig.url, heard=sent.extend) as relay, rig.client(url=relay.url) as client:
        client._connection.most_bytes = 3_000
        texts = ["x" * size for size in (1_000, 1_000, 5_000, 1_000, 1_000)]
        found = await asyncio.gather(
            *(client.start("note", text) for text in texts), return_exceptions=True
        )  # the name only: the server is what refuses, or takes
        assert isinstance(found[2], InvalidInput)
        assert {getattr(one, "code", None) for one in (*found[:2], *found[3:])} == {"WORKFLOW_UNKNOWN"}
        assert sent.count(b"POST /api/v1/runs/batch ") == 2


async def test_where_no_server_answers_every_caller_is_told(rig: Rig) -> None:
    async with rig.client(url="http://127.0.0.1:9", tries=1) as client:
        found = await asyncio.gather(*(client.start("double", n) for n in range(3)), return_exceptions=True)
        assert [type(one) for one in found] == [ServerUnreachable] * 3


async def test_a_caller_that_gives_up_takes_nobody_along(rig: Rig) -> None:
    async with rig.client() as client:
        asked = [asyncio.create_task(client.start(flows.double, number)) for number in range(3)]
        await asyncio.sleep(0)
        asked[1].cancel()
        first, gone, last = await asyncio.gather(*asked, return_exceptions=True)
        assert isinstance(gone, asyncio.CancelledError)
        assert isinstance(first, Run)
        assert isinstance(last, Run)
        assert [await first.result(), await last.result()] == [0, 4]


def test_groups_keep_order_and_limits() -> None:
    loop = asyncio.new_event_loop()
    try:
        waiting = [(b"x" * size, loop.create_future()) for size in (10, 10, 90, 10, 200, 10)]
        groups = [[len(body) for body, _ in group] for group in gathering._grouped(waiting, 120)]
    finally:
        loop.close()
    assert groups == [[10, 10], [90, 10], [200], [10]]


@pytest.mark.parametrize("passes", [1, 2, 3, 4])
async def test_a_client_that_is_closed_leaves_no_start_waiting(passes: int) -> None:
    client = Client("http://127.0.0.1:9", "a-key-of-tests", pauses=[60])
    await client.__aenter__()
    starting = asyncio.ensure_future(client.start("anything"))
    for _ in range(passes):  # however far it has come: in the line, in a task that has not begun, on its way
        await asyncio.sleep(0)
    await client.close()
    done, _ = await asyncio.wait({starting}, timeout=5)
    assert done == {starting}
    assert starting.cancelled()
