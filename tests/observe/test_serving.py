"""Who gets the metrics from where, and how requests are counted."""

from __future__ import annotations

import asyncio
import http.client
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from tests.observe.build import value

from ironflow.errors import InvalidSettings
from ironflow.observe import backlog as looking
from ironflow.observe.backlog import Backlog
from ironflow.observe.exposition import Exposition, Scope
from ironflow.observe.http import Counted
from ironflow.observe.listener import Listener, address_of
from ironflow.observe.metrics import Metrics
from ironflow.observe.observation import Observation


class Answer:
    def __init__(self) -> None:
        self.status, self.body, self.headers = 0, b"", {}

    async def take(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], dict(message["headers"])
        else:
            self.body += message["body"]


async def ask(
    app: Any, path: str = "/metrics", *, method: str = "GET", client: str = "127.0.0.1", **headers: str
) -> Answer:
    """One request to an ASGI application, as a server would make it."""
    sent = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope: Scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
        "headers": sent, "client": (client, 5), "server": ("x", 80), "scheme": "http", "http_version": "1.1",
    }  # fmt: skip
    answer = Answer()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    await app(scope, receive, answer.take)
    return answer


# ---- who may read


async def test_from_this_host_no_key_is_needed(metrics: Metrics) -> None:
    for client in ("127.0.0.1", "::1"):
        answer = await ask(Exposition(metrics), client=client)
        assert (answer.status, b"ironflow_claims_total" in answer.body) == (200, True)
    assert (await ask(Exposition(metrics), method="HEAD")).body == b""
    assert (await ask(Exposition(metrics), method="POST")).status == 405


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("10.1.2.3", {}),
        ("a-unix-socket", {}),
        ("127.0.0.1", {"x_forwarded_for": "203.0.113.7"}),
        ("127.0.0.1", {"forwarded": "for=203.0.113.7"}),
    ],
)
async def test_from_elsewhere_or_through_a_proxy_a_key_is_asked_for(
    metrics: Metrics, client: str, headers: dict[str, str]
) -> None:
    async def allowed(scope: Scope) -> bool:
        return (b"authorization", b"Bearer right") in scope["headers"]

    closed = await ask(Exposition(metrics), client=client, authorization="Bearer right", **headers)
    assert closed.status == 401
    open_ = Exposition(metrics, allowed=allowed)
    wrong = await ask(open_, client=client, authorization="Bearer wrong", **headers)
    assert (wrong.status, b"ironflow_" in wrong.body) == (401, False)
    assert wrong.headers[b"content-type"] == b"application/problem+json"
    assert (await ask(open_, client=client, authorization="Bearer right", **headers)).status == 200


# ---- the address of its own


def get(port: int, path: str = "/metrics") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


async def test_the_listener_serves_metrics_and_nothing_else(metrics: Metrics) -> None:
    metrics.of("ironflow_claims_total").inc(3)
    listener = Listener(("127.0.0.1", 0), metrics)
    try:
        status, body = await asyncio.to_thread(get, listener.port)
        assert (status, b"ironflow_claims_total 3.0" in body) == (200, True)
        assert (await asyncio.to_thread(get, listener.port, "/runs"))[0] == 404
        with pytest.raises(InvalidSettings, match="cannot be listened on"):
            Listener(("127.0.0.1", listener.port), metrics)
    finally:
        listener.close()


async def test_the_queue_is_counted_when_somebody_reads_and_once_for_all_who_do(metrics: Metrics) -> None:
    looks = []

    async def count() -> Mapping[str, int]:
        looks.append(1)
        return {"": 5, "group:gpu": 2}

    backlog = Backlog(metrics, count)
    listener = Listener(("127.0.0.1", 0), metrics, backlog)
    try:
        assert looks == []
        bodies = await asyncio.gather(*(asyncio.to_thread(get, listener.port) for _ in range(4)))
    finally:
        listener.close()
    assert looks == [1]
    assert all(b"ironflow_worker_queue_depth 7.0" in body for _, body in bodies)
    assert value(metrics, "ironflow_worker_queue_blocked_runs", group="group:gpu") == 2


async def test_a_database_that_does_not_answer_costs_a_scrape_a_moment_and_no_figure(
    metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "PATIENCE_S", 0.05)
    answered = asyncio.Event()

    async def count() -> Mapping[str, int]:
        await answered.wait()
        return {"": 9}

    backlog = Backlog(metrics, count)
    assert (await ask(Exposition(metrics, backlog))).status == 200
    answered.set()
    await backlog.refresh()
    assert value(metrics, "ironflow_worker_queue_depth") == 9

    async def fails() -> Mapping[str, int]:
        raise OSError("gone")

    assert (await ask(Exposition(metrics, Backlog(metrics, fails)))).status == 200
    assert value(metrics, "ironflow_worker_queue_depth") == 9


def test_a_blocked_loop_does_not_block_the_listener(metrics: Metrics) -> None:
    async def count() -> Mapping[str, int]:
        return {"": 1}

    async def main() -> int:
        listener = Listener(("127.0.0.1", 0), metrics, Backlog(metrics, count))
        try:
            status: list[int] = []
            thread = threading.Thread(target=lambda: status.append(get(listener.port)[0]))
            thread.start()
            thread.join()  # blocks the loop, as a bad step would
            return status[0]
        finally:
            listener.close()

    assert asyncio.run(main()) == 200


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464)),
        ("[::1]:9464", ("::1", 9464)),
        (" :0 ", ("127.0.0.1", 0)),
        ("metrics.internal:80", ("metrics.internal", 80)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["9464", "host", "::1:9464", "host:99999", "host:", "http://host:1"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSettings, match="HOST:PORT"):
        address_of(text)


async def test_an_observation_without_anybody_who_watches_has_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    nobody = Observation(lambda: 0)
    assert nobody.observer is None
    await nobody.close()
    somebody = Observation(lambda: 0, metrics=True)
    assert somebody.observer is not None
    port = somebody.listen("127.0.0.1:0")
    assert (await asyncio.to_thread(get, port))[0] == 200
    await somebody.close()
    Metrics().close()


# ---- requests


async def test_requests_count_by_the_pattern_of_their_route(metrics: Metrics) -> None:
    from fastapi import APIRouter, FastAPI, HTTPException
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response

    from ironflow.server.route import Route

    runs = APIRouter(prefix="/api/v1/runs")

    @runs.get("/{run_id}")
    async def one(run_id: str) -> str:
        if run_id == "none":
            raise HTTPException(404)
        return run_id

    async def poll(request: Request) -> Response:
        return PlainTextResponse("[]")

    async def breaks(request: Request) -> Response:
        raise RuntimeError("broken")

    inner = FastAPI()
    inner.router.routes.extend(runs.routes)
    inner.router.routes.append(Route("/api/v1/worker/sessions/{session_id}", poll, methods=["POST"]))
    inner.router.routes.append(Route("/breaks", breaks, methods=["GET"]))
    inner.mount("/static", FastAPI())
    app = Counted(inner, metrics)
    for path in ("/api/v1/runs/a", "/api/v1/runs/b", "/api/v1/runs/runs", "/api/v1/runs/none"):
        await ask(app, path)
    await ask(app, "/api/v1/worker/sessions/s", method="POST")
    await ask(app, "/api/v1/worker/sessions/s", method="BREW")
    for n in range(20):
        await ask(app, f"/wp-admin/{n}")
    await ask(app, "/static/logo.png")
    with pytest.raises(RuntimeError, match="broken"):
        await ask(app, "/breaks")

    def count(route: str, method: str, status: str) -> float:
        return value(metrics, "ironflow_http_requests_total", route=route, method=method, status=status)

    assert count("/api/v1/runs/{run_id}", "GET", "200") == 3
    assert count("/api/v1/runs/{run_id}", "GET", "404") == 1
    assert count("/api/v1/worker/sessions/{session_id}", "POST", "200") == 1
    assert count("/api/v1/worker/sessions/{session_id}", "other", "405") == 1
    assert count("unknown", "GET", "404") == 20
    assert count("/static/*", "GET", "404") == 1
    assert count("/breaks", "GET", "500") == 1
    assert value(metrics, "ironflow_http_request_seconds_count", route="/api/v1/runs/{run_id}", method="GET") == 4


async def test_a_client_that_goes_away_before_its_answer_counts_as_gone(metrics: Metrics) -> None:
    async def never(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    task = asyncio.ensure_future(ask(Counted(never, metrics)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert value(metrics, "ironflow_http_requests_total", route="unknown", method="GET", status="499") == 1
