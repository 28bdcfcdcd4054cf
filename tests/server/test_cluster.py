"""Two server processes on one PostgreSQL database: either answers, and one that is killed takes nothing with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from tests.recovery.kit import row
from tests.server.kit import Refused, Speaker, append, ending, new_key, start
from tests.server.test_serve import Process

from ironflow.model import key as kinds
from ironflow.model import wire
from ironflow.model.run import COMPLETED
from ironflow.store import connect
from ironflow.store.base import Store

SHORT = {
    "IRONFLOW_RENEWAL_INTERVAL": "300ms",
    "IRONFLOW_LEASE_TTL": "2s",
    "IRONFLOW_SESSION_TTL": "2s",
    "IRONFLOW_RECOVERY_INTERVAL": "100ms",
    "IRONFLOW_SUSPECT_AFTER": "off",
}


class Cluster:
    """Two server processes and what a test needs beside them."""

    def __init__(self, one: Process, two: Process, store: Store, http: aiohttp.ClientSession, keys: list[str]) -> None:
        self.one, self.two = one, two
        self.store = store
        self.http = http
        self.worker_key, self.admin_key = keys

    def worker_at(self, process: Process, like: Speaker | None = None) -> Speaker:
        """A worker that speaks to this process; `like`: the same worker, at another address."""
        speaker = Speaker(self.http, process.url, self.worker_key)
        if like is not None:
            speaker.session_id = like.session_id
        return speaker

    async def start_at(self, process: Process, workflow: str = "order", **more: Any) -> str:
        """Start a run through this process."""
        headers = {"Authorization": f"Bearer {self.admin_key}"}
        body = {"workflow": workflow, "input": None, **more}
        async with self.http.post(f"{process.url}/api/v1/runs", json=body, headers=headers) as response:
            assert response.status == 201, await response.text()
            return str((await response.json())["run_id"])


@pytest.fixture
async def cluster(postgres_url: str) -> AsyncIterator[Cluster]:
    """Two nodes that have begun."""
    started = [Process("--db", postgres_url, **SHORT) for _ in range(2)]
    store = await connect(postgres_url)
    try:
        async with aiohttp.ClientSession() as http:
            keys = [await new_key(store), await new_key(store, kinds.ORG, role="admin")]
            await asyncio.gather(*(asyncio.to_thread(process.begin) for process in started))
            yield Cluster(started[0], started[1], store, http, keys)
    finally:
        for process in started:
            process.end()
        await store.close()


async def beat(*workers: Speaker, held: Any = ()) -> None:
    """Renew these sessions until cancelled."""
    while True:
        for worker in workers:
            try:
                await worker.heartbeat(*held)
            except (Refused, aiohttp.ClientError):
                pass
        await asyncio.sleep(0.2)


async def test_g37_a_poll_at_one_node_is_answered_when_a_run_is_started_at_the_other(cluster: Cluster) -> None:
    worker = cluster.worker_at(cluster.one)
    await worker.register()
    beats = asyncio.ensure_future(beat(worker))
    took = []
    for _ in range(10):
        poll = await worker.held()
        began = time.monotonic()
        run_id = await cluster.start_at(cluster.two)
        assert [head.run_id for head in await poll] == [run_id]
        took.append(time.monotonic() - began)
    beats.cancel()
    assert max(took) < 1, took
    assert sorted(took)[len(took) // 2] < 0.25, took


async def test_a_worker_goes_on_at_another_node_as_if_it_were_the_same(cluster: Cluster) -> None:
    first = cluster.worker_at(cluster.one)
    await first.register()
    run_id = await cluster.start_at(cluster.one)
    head = await first.took()
    cluster.one.process.kill()
    second = cluster.worker_at(cluster.two, like=first)
    answer = await second.heartbeat((run_id, 1, "token"))
    assert answer["verdicts"] == [[run_id, 1, "refreshed"]]
    async with second.liveness() as lines:
        assert "hello" in await anext(lines)
        assert await second.transitions(wire.item_of(append(head, 3)), wire.item_of(ending(head, 4))) == ["applied"] * 2
    assert (await row(cluster.store, run_id)).state == COMPLETED
    run_id = await cluster.start_at(cluster.two)
    assert [one.run_id for one in await second.poll(1, 5_000)] == [run_id]


async def test_g18_when_a_node_is_killed_the_other_recovers_what_its_dead_worker_held(cluster: Cluster) -> None:
    gone, other = cluster.worker_at(cluster.one), cluster.worker_at(cluster.two)
    await gone.register()
    await other.register()
    beats = asyncio.ensure_future(beat(other))
    run_id = await start_run(cluster)
    await gone.took()
    cluster.one.process.kill()  # and its worker is never heard of again
    began = time.monotonic()
    [head] = await asyncio.wait_for(other.poll(1, 25_000), 20)
    beats.cancel()
    assert (head.run_id, head.execution_seq) == (run_id, 2)
    assert time.monotonic() - began < 10
    assert gone.session_id not in [session.session_id for session in await cluster.store.sessions()]


async def start_run(cluster: Cluster) -> str:
    """A run that was created on the database, by whoever."""
    return (await start(cluster.store)).run_id


async def test_two_nodes_hand_a_run_out_once(cluster: Cluster) -> None:
    workers = [cluster.worker_at(process) for process in (cluster.one, cluster.two) for _ in range(3)]
    for worker in workers:
        await worker.register()
    beats = asyncio.ensure_future(beat(*workers))
    polls = [asyncio.ensure_future(worker.poll(5, 3_000)) for worker in workers]
    runs = [await start_run(cluster) for _ in range(6)]
    await cluster.start_at(cluster.one, "order")  # whose word wakes both
    found = [head.run_id for heads in await asyncio.gather(*polls) for head in heads]
    for worker in workers:
        found += [head.run_id for head in await worker.poll(10)]
    beats.cancel()
    assert len(found) == len(set(found)) == len(runs) + 1
