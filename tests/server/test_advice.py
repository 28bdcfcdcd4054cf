"""What to do is said for what was done: a path that is none, a key of another kind, a place that is none."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.server.asking import Api, serving


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[Api]:
    async with serving(sqlite_url) as made:
        yield made


async def test_a_path_that_is_none_is_answered_with_where_the_api_is(api: Api) -> None:
    answered = await api.ask("GET", "/api/v1/runs", await api.key("viewer"))  # asked below /api/v1 as it is
    assert (answered.status, answered.json["code"]) == (404, "NOT_FOUND")
    assert "The API lies below /api/v1" in answered.json["hint"]


async def test_a_place_that_is_none_is_answered_with_what_a_place_is(api: Api) -> None:
    key = await api.key("developer")
    await api.declare("order")
    run_id = (await api.ask("POST", "/runs", key, body={"workflow": "order"})).json["run_id"]
    for place in ("zzz", "99"):
        refused = await api.ask("GET", f"/runs/{run_id}/events", key, headers={"Last-Event-ID": place})
        assert refused.json["code"] == "INVALID_CURSOR"
        assert "`next`" not in refused.json["hint"]
        assert "Send the id of the last event" in refused.json["hint"]


async def test_a_key_of_another_kind_is_named_in_english(api: Api) -> None:
    from ironflow.model import key as kinds
    from ironflow.server import keys

    row, secret = keys.issue(kinds.WORKER, "worker", now=api.store.now(), by="test")
    await api.store.add_key(row, keys.audit_of(row))
    refused = await api.ask("POST", "/runs", secret, body={"workflow": "order"})
    assert "this is a key of kind worker" in refused.json["detail"]
    refused = await api.ask("POST", "/worker/poll", await api.key("viewer"), body={})
    assert "this is a key of kind org" in refused.json["detail"]
    assert "`ironflow apikey create --worker NAME`" in refused.json["hint"]
