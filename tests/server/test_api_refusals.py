"""What a start may not be: each refusal names the place in the body, in the body's own words, and creates nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.asking import Api, post, serving

from ironflow.server.schemas import RunStart


@pytest.mark.parametrize(
    ("body", "code", "place"),
    [
        ({"priorty": 1}, "INVALID_REQUEST", "priorty"),
        ({"priority": "high"}, "INVALID_REQUEST", "priority"),
        ({"priority": 1.5}, "INVALID_REQUEST", "priority"),
        ({"priority": True}, "INVALID_REQUEST", "priority"),
        ({"priority": 101}, "INVALID_PRIORITY", "101"),
        ({"priority": -101}, "INVALID_PRIORITY", "-101"),
        ({"worker_tags": ["a b"]}, "INVALID_REQUEST", "worker_tags.0"),
        ({"worker_tags": ["x" * 65]}, "INVALID_REQUEST", "worker_tags.0"),
        ({"worker_tags": [f"t{n}" for n in range(33)]}, "INVALID_REQUEST", "worker_tags"),
        ({"worker_tags": [f"{n:064}" for n in range(32)]}, "INVALID_INPUT", "worker_tags"),
        ({"worker_tags": "gpu"}, "INVALID_REQUEST", "worker_tags"),
        ({"labels": {"a": 1}}, "INVALID_REQUEST", "labels.a"),
        ({"labels": {"a\n": "1"}}, "INVALID_INPUT", "label"),
        ({"idempotency_key": ""}, "INVALID_REQUEST", "idempotency_key"),
        ({"id": "a\x00b"}, "INVALID_INPUT", "id"),
        ({"id": "x" * 201}, "INVALID_REQUEST", "id"),
        ({"concurrency_limits": {"g": 0}}, "INVALID_REQUEST", "concurrency_limits.g"),
        ({"scheduled_at": "tomorrow"}, "INVALID_REQUEST", "scheduled_at"),
        ({"scheduled_at": "2030-01-01T00:00:00"}, "INVALID_REQUEST", "scheduled_at"),
        ({"scheduled_at": 1_900_000_000}, "INVALID_REQUEST", "scheduled_at"),
        ({"deadline_at": "1900000000"}, "INVALID_REQUEST", "deadline_at"),
        ({"scheduled_at": "9999-12-31T23:59:59-12:00"}, "INVALID_REQUEST", "scheduled_at"),
        ({"deadline_at": "0001-01-01T00:00:00+14:00"}, "INVALID_REQUEST", "deadline_at"),
        ({"id": "a/steps"}, "INVALID_INPUT", "id"),
        ({"id": ".."}, "INVALID_INPUT", "id"),
        ({"workflow": None}, "INVALID_REQUEST", "workflow"),
        ({"workflow": ""}, "INVALID_REQUEST", "workflow"),
    ],
)
async def test_what_does_not_fit_is_refused_with_its_place_and_nothing_is_created(
    api: Api, key: str, body: dict[str, Any], code: str, place: str
) -> None:
    found = await post(api, key, **body)
    assert (found.status, found.code) == (400, code)
    assert place in found.json["detail"]
    assert (await api.ask("GET", "/runs", key)).json["items"] == []
    (error,) = found.json["details"]["errors"]  # the field's own name, whatever the engine calls it
    assert error["at"].split(".")[0] in ({*body} & RunStart.model_fields.keys() or body)
    assert error["problem"] in found.json["detail"]


@pytest.mark.parametrize(
    ("body", "place", "said"),
    [
        ({"concurrency_limits": {"a\tb": 1}}, "concurrency_limits", "a key of concurrency_limits 'a"),
        ({"labels": {"limits": "a\tb"}}, "labels.limits", "labels.limits 'a"),
        ({"labels": {"a\n": "1"}}, "labels", "a key of labels 'a"),
        ({"id": "a\x00b"}, "id", "id 'a"),
        ({"workflow": "none", "input": "given"}, "input", "workflow none takes no input, got str"),
        ({"workflow": "some", "input": {}}, "input.total", "the input does not fit workflow some: input.total: field"),
    ],
)
async def test_a_start_is_refused_in_the_words_of_its_body(
    api: Api, key: str, body: dict[str, Any], place: str, said: str
) -> None:
    await api.declare("none", input_schema={"type": "null"})
    await api.declare("some", input_schema={"type": "object", "required": ["total"]})
    found = await post(api, key, **body)
    assert (found.status, found.code) == (400, "INVALID_INPUT")
    assert found.json["details"]["errors"][0]["at"] == place
    assert found.json["detail"].startswith(said)
    if place.startswith("input"):
        assert f"GET /api/v1/workflows/{body['workflow']}/input-schema" in found.json["hint"]
        assert found.json["hint"].startswith(("Expected: ", "Start it without one. ")), "in words, too"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]x", b'{"workflow": "order", "input": NaN}', b'{"workflow":"order","input":"\xff"}',
     b'{"workflow":"order","input":"\\ud800"}', b'{"workflow":"order","input":' + b"[" * 500 + b"]" * 500 + b"}"],
)  # fmt: skip
async def test_a_body_that_is_no_json_is_refused(api: Api, key: str, content: bytes) -> None:
    found = await api.ask("POST", "/runs", key, content=content)
    assert (found.status, found.code) == (400, "MALFORMED_JSON")


@pytest.mark.parametrize("content", [b"[]", b"null", b'"order"', b"1"])
async def test_a_body_that_is_no_object_is_refused(api: Api, key: str, content: bytes) -> None:
    found = await api.ask("POST", "/runs", key, content=content)
    assert (found.status, found.code) == (400, "INVALID_REQUEST")
    assert found.json["detail"] == "body: a JSON object is wanted"


async def test_what_is_no_object_within_a_body_is_told_by_its_place(api: Api, key: str) -> None:
    found = await api.ask("POST", "/runs/batch", key, body={"runs": [{"workflow": "order"}, 5]})
    assert found.json["detail"] == "runs.1: a JSON object is wanted"
    labels = await post(api, key, labels=[1])
    assert labels.json["detail"] == "labels: a JSON object is wanted"


async def test_a_body_over_the_limit_is_refused_with_size_and_limit(store_url: str) -> None:
    async with serving(store_url, max_api_body_bytes=2_000) as api:
        key = await api.key()
        await api.declare("order")
        content = b'{"workflow": "order", "input": "' + b"x" * 2_000 + b'"}'
        declared = await api.ask("POST", "/runs", key, content=content)
        assert (declared.status, declared.code) == (413, "PAYLOAD_TOO_LARGE")
        assert (declared.json["details"]["size"], declared.json["details"]["limit"]) == (len(content), 2_000)
        # A body that comes in pieces, and does not say how long it will be.
        undeclared = await api.ask("POST", "/runs", key, content=content, headers={"Content-Length": ""})
        assert (undeclared.status, undeclared.code) == (413, "PAYLOAD_TOO_LARGE")
        fits = await api.ask("POST", "/runs", key, content=b'{"workflow": "order", "input": "' + b"x" * 1_900 + b'"}')
        assert fits.status == 201


async def test_a_refusal_repeats_no_value_of_the_body(api: Api, key: str) -> None:
    found = await post(api, key, input={"card": "4111"}, labels={"a": ["4111"]}, priority="4111")
    assert "4111" not in found.content.decode()


async def test_a_run_for_the_last_moment_of_the_calendar_spoils_no_list(api: Api, key: str) -> None:
    last = "9999-12-31T23:59:59.999999Z"
    made = await post(api, key, id="last", scheduled_at=last, deadline_at=last)
    assert (made.status, made.json["scheduled_at"]) == (201, "9999-12-31T23:59:59.999Z")
    for path in ("/runs", "/runs/last", "/runs/last/why"):
        assert (await api.ask("GET", path, key)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "query"),
    [
        ("POST", "/api-keys", {"name": "k", "role": "viewer", "expires_at": "9999-12-31T23:59:59-12:00"}, {}),
        ("GET", "/runs", None, {"created_from": "0001-01-01T00:00:00+14:00"}),
        ("GET", "/runs", None, {"created_to": "9999-12-31T23:59:59-12:00"}),
    ],
)
async def test_a_time_that_could_not_be_shown_is_refused_wherever_one_is_given(
    api: Api, key: str, method: str, path: str, body: Any, query: dict[str, str]
) -> None:
    refused = await api.ask(method, path, key, body=body, query=query)
    assert (refused.status, refused.code) == (400, "INVALID_REQUEST")
    assert "outside the years 1 to 9999" in refused.json["detail"]
    assert (await api.ask("GET", "/api-keys", key)).status == 200
