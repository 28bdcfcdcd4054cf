"""What HTTP itself asks of a server: media types, methods, streams that are counted, and routes by their pattern."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.observe.build import value
from tests.recovery.kit import until
from tests.server.asking import Api, serving
from tests.server.document import operations
from tests.server.kit import Refused, Served, patient, served
from tests.store.build import answer, leave, start

from ironflow.model import key as kinds
from ironflow.model.transition import APPLIED
from ironflow.observe.http import Counted
from ironflow.observe.metrics import Metrics
from ironflow.server.access import STREAM_AGAIN_MS
from ironflow.server.worker_routes import PREFIX as WORKER


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[Api]:
    async with serving(sqlite_url, max_streams=2) as made:
        await made.declare("order")
        yield made


# ---- media types


@pytest.mark.parametrize(
    "media", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.shop+json", "", None]
)
async def test_a_body_is_read_that_is_json_by_its_media_type_or_says_nothing_of_it(api: Api, media: str | None) -> None:
    headers = {} if media is None else {"Content-Type": media}
    found = await api.ask("POST", "/runs", await api.key(), body={"workflow": "order"}, headers=headers)
    assert found.status == 201


@pytest.mark.parametrize(
    "media", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", "json", "a\xe9"]
)
@pytest.mark.parametrize("path", ["/runs", "/runs/r1/cancel", "/workflows/order/pause", "/api-keys"])
async def test_a_body_of_another_media_type_is_refused_wherever_one_is_read(api: Api, path: str, media: str) -> None:
    assert await answer(api.store, start("r1")) == APPLIED
    headers = {"Content-Type": media}
    found = await api.ask("POST", path, await api.key(), content=b'{"workflow": "order"}', headers=headers)
    assert (found.status, found.code) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert media in found.json["detail"]
    assert "application/json" in found.json["hint"]
    assert (await api.ask("GET", "/runs/r1", await api.key())).json["state"] == "running"


async def test_where_no_body_is_needed_an_empty_one_may_be_of_any_media_type(api: Api) -> None:
    assert await answer(api.store, start("r1")) == APPLIED
    headers = {"Content-Type": "application/x-www-form-urlencoded"}  # what curl says of `-d ''`
    found = await api.ask("POST", "/runs/r1/cancel", await api.key(), headers=headers)
    assert (found.status, found.json["state"]) == (200, "cancelled")


async def test_a_body_of_nothing_but_space_is_no_json(api: Api) -> None:
    assert await answer(api.store, start("r1")) == APPLIED
    found = await api.ask("POST", "/runs/r1/cancel", await api.key(), content=b" \r\n")
    assert (found.status, found.code) == (400, "MALFORMED_JSON")


async def test_workers_send_json_too(on_sqlite: Served) -> None:
    worker = await on_sqlite.worker()
    body = {"session_id": worker.session_id, "credits": 0, "wait_ms": 0}
    assert (await worker.ask("POST", "/poll", body, media="application/json; charset=utf-8"))["assignments"] == []
    with pytest.raises(Refused) as refused:
        await worker.ask("POST", "/poll", body, media="application/octet-stream")
    assert (refused.value.status, refused.value.code) == (415, "UNSUPPORTED_MEDIA_TYPE")


# ---- methods


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/runs", "GET, POST"),
        ("PATCH", "/runs/r1", "DELETE, GET"),
        ("DELETE", "/runs/r1/cancel", None),  # the run of this id, which does not exist
        ("PUT", "/runs/r1/cancel", "POST"),  # not what a run takes whose id has a slash
        ("POST", "/runs/r1/events", "GET"),
        ("HEAD", "/runs/r1/events", "GET"),
        ("POST", "/audit", "GET"),
        ("POST", "/api-keys/key_1", "DELETE"),
        ("GET", "/worker/poll", "POST"),
        ("POST", "/worker/liveness", "GET"),
        ("HEAD", "/worker/liveness", "GET"),  # it would hold a stream open for who takes no body
        ("HEAD", "/worker/runs/r1/owner", "GET"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_a_method_that_a_path_does_not_have_is_told_those_that_it_has(
    api: Api, method: str, path: str, allowed: str | None
) -> None:
    found = await api.ask(method, path, await api.key())
    if allowed is None:
        assert found.code == "RUN_NOT_FOUND"
        return
    assert (found.status, found.code, found.headers["allow"]) == (405, "METHOD_NOT_ALLOWED", allowed)


# ---- streams


async def test_a_key_holds_so_many_streams_open_and_a_closed_reader_frees_its_place(api: Api) -> None:
    assert await answer(api.store, start("r1")) == APPLIED
    key, other = await api.key("viewer"), await api.key("viewer")
    async with AsyncExitStack() as first:
        await first.enter_async_context(api.open("GET", "/runs/r1/events", key))
        async with api.open("GET", "/runs/r1/events", key) as second:
            assert await anext(second.chunks()) == b"retry: 1000\n\n"
            refused = await api.ask("GET", "/runs/r1/events", key)
            assert (refused.status, refused.code) == (429, "TOO_MANY_STREAMS")
            assert refused.headers["retry-after"] == str(STREAM_AGAIN_MS // 1000)
            assert "IRONFLOW_MAX_STREAMS" in refused.json["hint"]
            async with api.open("GET", "/runs/r1/events", other) as theirs:
                assert theirs.status == 200  # each key has its own
        # Whoever hung up has made room, without having read anything to its end.
        async with api.open("GET", "/runs/r1/events", key) as again:
            assert again.status == 200
            assert (await api.ask("GET", "/runs/r1/events", key)).status == 429
    assert not api.access._streams


async def test_a_stream_that_ends_by_itself_frees_its_place_and_so_does_one_that_is_refused(api: Api) -> None:
    assert await answer(api.store, start("r1")) == APPLIED
    assert await answer(api.store, leave("r1", 4, "completed")) == APPLIED
    key = await api.key("viewer")
    for _ in range(5):
        assert (await api.ask("GET", "/runs/r1/events", key)).status == 200
        assert (await api.ask("GET", "/runs/r1/events", key, query={"after": 99})).code == "INVALID_CURSOR"
        assert (await api.ask("GET", "/runs/none/events", key)).code == "RUN_NOT_FOUND"
    assert not api.access._streams


async def test_liveness_streams_count_for_their_worker_key_and_a_broken_one_frees_its_place(sqlite_url: str) -> None:
    async with served(sqlite_url, patient(max_streams=1)) as here:
        one, two = await here.worker(), await here.worker()
        async with one.liveness() as lines:
            assert "hello" in await anext(lines)
            asked: Any = {
                "url": f"{here.url}{WORKER}/liveness",
                "params": {"session_id": two.session_id},
                "headers": {"Authorization": f"Bearer {two.key}"},
            }
            async with here.http.get(**asked) as refused:
                assert (refused.status, refused.headers["Retry-After"]) == (429, "5")
                assert json.loads(await refused.read())["code"] == "TOO_MANY_STREAMS"
            assert await two.poll() == []  # beside the stream everything goes on

        async def opens() -> bool:
            async with here.http.get(**asked) as answered:
                return bool(answered.status == 200)

        await until(opens)


async def test_without_a_limit_a_key_holds_any_number_of_streams(sqlite_url: str) -> None:
    async with serving(sqlite_url, max_streams=0) as api, AsyncExitStack() as all_of_them:
        assert await answer(api.store, start("r1")) == APPLIED
        key = await api.key("viewer")
        for _ in range(20):
            stream = await all_of_them.enter_async_context(api.open("GET", "/runs/r1/events", key))
            assert stream.status == 200


# ---- routes


async def test_every_request_counts_by_the_pattern_of_its_own_route_whatever_its_ids_read_like(api: Api) -> None:
    metrics = Metrics()
    try:
        counted = Api(api.store, api.node, api.access, Counted(api.app, metrics))
        key = await api.key(kind=kinds.PLATFORM)
        asked = {("GET", "/api/v1/worker/runs/{run_id}/owner"), ("DELETE", "/api/v1/worker/sessions/{session_id}")}
        asked |= {(one.method, f"/api/v1{one.path}") for one in operations()}
        for method, pattern in sorted(asked):
            for read_like in ("runs", "api", "v1", "a1"):
                path = pattern.removeprefix("/api/v1")
                for name in ("run_id", "name", "key_id", "session_id"):
                    path = path.replace(f"{{{name}}}", read_like)
                await counted.ask(method, path, key)
        for method, pattern in asked:
            labels: Any = {"route": pattern, "method": method}
            assert value(metrics, "ironflow_http_request_seconds_count", **labels) == 4, (method, pattern)
        assert value(metrics, "ironflow_http_request_seconds_count", route="unknown", method="GET") == 0
    finally:
        metrics.close()
