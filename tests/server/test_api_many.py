"""`POST /runs/batch`: each start for itself, in one request and one commit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.asking import Answer, Api, serving

from ironflow.server.schemas import MOST_STARTS
from ironflow.store.reader import RunFilter


async def post(api: Api, key: str, *starts: dict[str, Any]) -> Answer:
    return await api.ask("POST", "/runs/batch", key, body={"runs": [{"workflow": "order", **one} for one in starts]})


async def test_every_start_of_a_batch_is_taken_and_answered_in_order(api: Api) -> None:
    key = await api.key("developer")
    found = await post(api, key, *({"input": number, "priority": number} for number in range(50)))
    assert found.status == 200
    assert [one["status"] for one in found.json["items"]] == [201] * 50
    assert [one["run"]["priority"] for one in found.json["items"]] == list(range(50))
    assert {one["run"]["created"] for one in found.json["items"]} == {True}
    rows = await api.store.runs(RunFilter(limit=100))
    assert {row.run_id for row in rows} == {one["run"]["run_id"] for one in found.json["items"]}


async def test_a_refused_start_does_not_take_the_others_along(api: Api) -> None:
    key = await api.key("developer")
    found = await post(api, key, {}, {"priority": 101}, {"workflow": "unknown"}, {"labels": {"a": "b"}})
    first, too_high, unknown, last = found.json["items"]
    assert [first["status"], last["status"]] == [201, 201]
    assert (first["problem"], last["problem"], too_high["run"], unknown["run"]) == (None,) * 4
    assert (too_high["status"], too_high["problem"]["code"]) == (400, "INVALID_PRIORITY")
    assert unknown["problem"]["code"] == "WORKFLOW_UNKNOWN"
    assert len(await api.store.runs(RunFilter(limit=10))) == 2


async def test_one_key_twice_in_a_batch_is_one_run(api: Api) -> None:
    key = await api.key("developer")
    same = {"idempotency_key": "once", "input": 1}
    found = await post(api, key, same, same, {**same, "input": 2}, {"concurrency_key": "c"}, {"concurrency_key": "c"})
    statuses = [one["status"] for one in found.json["items"]]
    # Which of them is first in the commit is the database's choice; one is, and the others meet it.
    assert (statuses[:3].count(201), statuses[3:].count(201)) == (1, 1)
    assert set(statuses[:3]) <= {200, 201, 409}
    assert sorted(statuses[3:]) == [201, 409]
    assert len(await api.store.runs(RunFilter(limit=10))) == 2


@pytest.mark.parametrize(
    "body",
    [{}, {"runs": []}, {"runs": {}}, {"runs": [{}]}, {"runs": [1]}, {"runs": [{"workflow": "order", "more": 1}]}],
)
async def test_a_batch_of_a_wrong_form_is_refused_whole(api: Api, body: Any) -> None:
    found = await api.ask("POST", "/runs/batch", await api.key("developer"), body=body)
    assert (found.status, found.code) == (400, "INVALID_REQUEST")
    assert await api.store.runs(RunFilter(limit=10)) == []


async def test_a_batch_has_a_greatest_size(api: Api) -> None:
    found = await post(api, await api.key("developer"), *[{}] * (MOST_STARTS + 1))
    assert (found.status, found.code) == (400, "INVALID_REQUEST")
    assert str(MOST_STARTS) in found.json["detail"]


async def test_a_batch_counts_for_as_many_requests_as_it_has_starts(sqlite_url: str) -> None:
    async with serving(sqlite_url, api_rate=1, api_burst=5) as api:
        await api.declare("order")
        key = await api.key("developer")
        assert (await post(api, key, *[{}] * 5)).status == 200
        found = await post(api, key, {})
        assert found.code == "RATE_LIMITED"
