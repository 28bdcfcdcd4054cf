"""Servers and their workers, watched: over HTTP, and as processes of the command line."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from socket import create_server
from typing import Any

import aiohttp
import pytest
from tests.observe.collector import Collector, collecting
from tests.observe.test_serving import get
from tests.recovery import program
from tests.recovery.kit import until
from tests.remote.kit import working
from tests.remote.processes import running
from tests.server.kit import Served, new_key, patient
from tests.server.test_serve import FLOW, serving_process

from ironflow.model import key as kinds
from ironflow.observe.observation import Observation
from ironflow.observe.trace_ids import span_of, trace_of
from ironflow.server.serving import bind, serving

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Asking(Served):
    """A node that is watched, and a client of it."""

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.http.get(self.url + path, headers=headers) as response:
            return response.status, await response.text()

    async def post(self, path: str, body: Any, **headers: str) -> dict[str, Any]:
        async with self.http.post(self.url + path, json=body, headers=headers) as response:
            assert response.status in (200, 201), await response.text()
            found: dict[str, Any] = await response.json()
            return found

    async def samples(self) -> dict[str, float]:
        """What a scraper on this host gets."""
        status, text = await self.get("/metrics")
        assert status == 200
        return samples_of(text)


def samples_of(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(number) for name, number in lines}


@pytest.fixture
async def node(store_url: str) -> AsyncIterator[Asking]:
    listener = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with aiohttp.ClientSession() as http, serving(patient(), store_url, listener, metrics=True) as made:
        yield Asking(made, store_url, address, http, await new_key(made.store))


async def test_a_node_shows_its_metrics_to_its_host_and_to_platform_keys(node: Asking) -> None:
    assert (await node.get("/metrics"))[0] == 200
    away = {"X-Forwarded-For": "203.0.113.7"}
    keys = {
        None: 401,
        node.key: 403,
        await new_key(node.store, kinds.ORG, role="admin"): 403,
        await new_key(node.store, kinds.PLATFORM): 200,
    }
    for key, expected in keys.items():
        shown = {} if key is None else {"Authorization": f"Bearer {key}"}
        status, text = await node.get("/metrics", **away, **shown)
        assert status == expected, text
        assert ("ironflow_claims_total" in text) is (expected == 200)


async def test_requests_are_counted_by_route_under_whichever_alias(node: Asking) -> None:
    viewer = {"Authorization": f"Bearer {await new_key(node.store, kinds.ORG, role='viewer')}"}
    for path in ("/api/v1/runs/a", "/v1/runs/b", "/api/v1/runs", "/no-such-thing"):
        await node.get(path, **viewer)
    await node.worker("order")
    found = await node.samples()
    count = 'ironflow_http_requests_total{method="%s",route="%s",status="%s"}'
    assert found[count % ("GET", "/api/v1/runs/{run_id}", "404")] == 2
    assert found[count % ("GET", "/api/v1/runs", "200")] == 1
    assert found[count % ("GET", "unknown", "404")] == 1
    assert found[count % ("POST", "/api/v1/worker/sessions", "201")] == 1
    assert found['ironflow_http_request_seconds_count{method="GET",route="/api/v1/runs/{run_id}"}'] == 2


async def test_a_node_sees_the_whole_queue_and_a_worker_over_http_what_it_could_take(
    node: Asking, folder: Path
) -> None:
    key = await new_key(node.store)
    async with working(node.url, key, [program.short], slots=1) as worker:
        worker.slots = 0  # it takes nothing, but serves its route
        for workflow in ("short", "short", "line"):
            await node.start(workflow, value="x")
        assert (await node.samples())["ironflow_worker_queue_depth"] == 3
        assert await worker.port.backlog() == {"": 2}  # type: ignore[attr-defined]


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield found


@pytest.fixture
async def traced(collector: Collector, node: Asking) -> Asking:
    return node


async def test_a_traceparent_at_the_start_of_a_run_is_a_link_of_its_trace(collector: Collector, traced: Asking) -> None:
    await traced.store.saw_workflows([])
    developer = {"Authorization": f"Bearer {await new_key(traced.store, kinds.ORG, role='developer')}"}
    async with working(traced.url, traced.key, [program.short], slots=1) as worker:
        worker.slots = 0
        run = await traced.post(
            "/api/v1/runs", {"workflow": "short", "input": "x"}, traceparent=TRACEPARENT, **developer
        )
        (created,) = await until(lambda: collector.named("created short"))
    run_id = run["run_id"]
    assert (created.trace, created.id) == (trace_of(run_id), span_of(run_id, 0))
    assert created.links == [(int(TRACEPARENT[3:35], 16), int(TRACEPARENT[36:52], 16))]


async def test_over_http_a_killed_workers_run_is_one_trace_too(
    collector: Collector, traced: Asking, folder: Path
) -> None:
    with running(traced.url, traced.key) as victim:
        session_id = (await asyncio.to_thread(victim.event, "ready"))["session_id"]
        row = await traced.start("line", value="x")
        await until(lambda: program.lines("x-2"))
        await until(lambda: collector.named("mark"), "the first step has left its process")
        victim.end()
    async with working(traced.url, traced.key, [program.line]) as heir:
        observation = Observation(heir.port.now)
        heir.observer = observation.observer
        await traced.node.scanner.session_died(session_id)
        traced.node.queued()
        program.open_gate("x-2")
        await until(lambda: collector.named("run line"))
    await observation.close()
    await until(lambda: len(collector.named("segment line")) == 2)
    (created,), (recovered,) = collector.named("created line"), collector.named("recovered line")
    lost, last = collector.named("segment line")
    assert {span.trace for span in collector.spans} == {trace_of(row.run_id)}
    assert [span.id for span in (created, lost, recovered, last)] == [span_of(row.run_id, n) for n in range(4)]
    assert last.links == [(trace_of(row.run_id), recovered.id)]
    assert len(collector.named("mark")) == 2


# ---- processes


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


async def scraped(port: int) -> dict[str, float] | None:
    """What a process shows on this port; None as long as it shows nothing."""
    try:
        status, body = await asyncio.to_thread(get, port)
    except OSError:
        return None
    return samples_of(body.decode()) if status == 200 else None


async def test_a_served_app_counts_its_runs_beside_its_requests_and_listens_where_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    port = free_port()
    words = ("--dev", "--db", f"sqlite:///{tmp_path}/iron.db", "--app", f"{tmp_path}/flow.py")
    with serving_process(*words, IRONFLOW_METRICS_ADDRESS=f"127.0.0.1:{port}") as process:
        admin = {"Authorization": f"Bearer {process.ready['admin_key']}"}
        async with aiohttp.ClientSession(headers=admin) as http:
            async with http.post(f"{process.url}/api/v1/runs", json={"workflow": "twice", "input": 21}) as response:
                assert response.status == 201

            async def ended() -> bool:
                found = await scraped(port)
                return bool(found and found.get('ironflow_runs_total{status="completed",workflow="twice"}'))

            await until(ended)
            async with http.get(f"{process.url}/metrics") as response:
                found = samples_of(await response.text())
    assert found["ironflow_claims_total"] == 1
    assert found['ironflow_http_requests_total{method="POST",route="/api/v1/runs",status="201"}'] == 1
    assert found["ironflow_commit_seconds_count"] >= 2


def first_of_two_free_ports() -> int:
    """Below the range from which the system gives ports away by itself: the second must still be free in a moment."""
    for port in random.sample(range(20_000, 32_000, 2), 100):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 1))
            return port
    raise AssertionError("no two ports in a row are free")


async def test_each_child_of_a_supervisor_shows_its_metrics_on_the_next_port(node: Asking, folder: Path) -> None:
    port = first_of_two_free_ports()
    with running(node.url, node.key, "--processes", "2", "--metrics-address", f"127.0.0.1:{port}"):
        for number in range(2):
            found = await until(lambda at=port + number: scraped(at))
            assert found["ironflow_claims_total"] == 0
        await node.start("short", value="x")
        await until(lambda: program.lines("x"))

        async def counted() -> bool:
            both = [await scraped(port), await scraped(port + 1)]
            return (
                sum(
                    one['ironflow_runs_total{status="completed",workflow="short"}']
                    for one in both
                    if one and 'ironflow_runs_total{status="completed",workflow="short"}' in one
                )
                == 1
            )

        await until(counted)
