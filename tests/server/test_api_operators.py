"""Workflows, capacity, audit and keys over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.server.asking import OTHER, Api, serving
from tests.server.document import operations
from tests.store.build import answer, create, session, start

from ironflow.engine import views
from ironflow.errors import IronflowError
from ironflow.model.ids import route_of
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import APPLIED


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[Api]:
    async with serving(store_url) as made:
        yield made


# ---- workflows


async def test_workflows_tell_what_their_workers_declared(api: Api) -> None:
    key = await api.key("viewer")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    await api.declare("order", input_schema=schema, doc="Takes an order.", priority=3)
    await api.declare("a/b")
    listed = (await api.ask("GET", "/workflows", key)).json
    assert ([one["name"] for one in listed["items"]], listed["next"]) == (["a/b", "order"], None)
    found = (await api.ask("GET", "/workflows/order", key)).json
    assert (found["version"], found["definition"]["doc"], found["paused_at"]) == ("1", "Takes an order.", None)
    assert (await api.ask("GET", "/workflows/order/input-schema", key)).json == schema
    assert (await api.ask("GET", "/workflows/a/b/input-schema", key)).json == {}
    assert (await api.ask("GET", "/workflows/nope", key)).code == "WORKFLOW_UNKNOWN"
    first = (await api.ask("GET", "/workflows", key, query={"limit": 1})).json
    second = (await api.ask("GET", "/workflows", key, query={"limit": 1, "cursor": first["next"]})).json
    assert [one["name"] for one in first["items"] + second["items"]] == ["a/b", "order"]


async def test_r38_a_paused_workflow_takes_runs_and_hands_out_none(api: Api) -> None:
    key = await api.key("developer")
    await api.declare("order")
    paused = (await api.ask("POST", "/workflows/order/pause", key)).json
    again = (await api.ask("POST", "/workflows/order/pause", key)).json
    assert (paused["changed"], again["changed"], again["paused_at"]) == (True, False, paused["paused_at"])
    made = await api.ask("POST", "/runs", key, body={"workflow": "order"})
    assert made.status == 201
    scope = Scope(made.json["org"], made.json["environment"])
    assert made.json["route"] == {"workflow": "order", "version": "1", "tags": [], **scope._asdict()}
    route = route_of("order", "1", scope=scope)
    assert await api.store.peek([route], 1) == []
    resumed = (await api.ask("POST", "/workflows/order/resume", key)).json
    assert (resumed["changed"], resumed["paused_at"]) == (True, None)
    assert [one.run_id for one in await api.store.peek([route], 1)] == [made.json["run_id"]]


# ---- capacity


async def test_g25_leases_sessions_and_queue_list_live_rows_and_an_organisation_s_key_gets_403(api: Api) -> None:
    platform, admin = await api.key(kind="platform"), await api.key("admin")
    later = api.store.now() + 60_000
    await api.store.open_session(session(api.store, "s1", credits=5))
    for change in (start("r1", session="s1"), create("r2", eligible_at=later, org="other")):
        assert await answer(api.store, change) == APPLIED

    async def items(what: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await api.ask("GET", f"/capacity/{what}", platform)).json["items"]
        return found

    (lease,) = await items("leases")
    assert (lease["run_id"], lease["session_id"]) == ("r1", "s1")
    assert not {"token_hash", "token"} & lease.keys()
    (row,) = await items("sessions")
    assert (row["session_id"], row["credits"], row["slots"]) == ("s1", 5, 8)
    (queued,) = await items("queue")
    assert (queued["run_id"], queued["eligible_at_ms"], queued["eligible_at"]) == ("r2", later, views.iso(later))
    assert await items("credits") == [
        {"session_id": "s1", "worker_id": "w1", "org": "default", "environment": "default", "slots": 8, "credits": 5}
    ]
    assert await items("lanes") == []
    stats = (await api.ask("GET", "/capacity/stats", platform)).json
    assert (stats["runs"]["pending"], stats["workers"], stats["leases"], stats["slots"]) == (
        1, 1, 1, {"total": 8, "free": 5},
    )  # fmt: skip
    for what in ("leases", "sessions", "queue", "lanes", "credits", "stats"):
        refused = await api.ask("GET", f"/capacity/{what}", admin)
        assert (refused.status, refused.json["detail"]) == (403, "platform credentials required here")


# ---- audit


async def test_the_platform_sees_the_audit_of_all_and_an_organisation_its_own(api: Api) -> None:
    keys = {"default": await api.key(), "other": await api.key(scope=OTHER)}
    platform = await api.key(kind="platform")
    for scope, key in keys.items():
        await api.declare("order", OTHER if scope == "other" else DEFAULT)
        for n in range(3):
            await api.ask("POST", "/runs", key, body={"workflow": "order", "id": f"{scope}{n}"})
            assert (await api.ask("POST", f"/runs/{scope}{n}/cancel", key)).status == 200

    async def read(key: str, **query: Any) -> list[str]:
        found, asked = [], {"limit": 2, **query}
        while True:
            page = (await api.ask("GET", "/audit", key, query=asked)).json
            found += [f"{one['org']}:{one['run_id']}" for one in page["items"] if one["action"] == "run.cancel"]
            if page["next"] is None:
                return found
            asked["cursor"] = page["next"]

    assert await read(keys["default"]) == [f"default:default{n}" for n in (2, 1, 0)]
    assert await read(keys["other"]) == [f"other:other{n}" for n in (2, 1, 0)]
    assert len(await read(platform)) == 6
    assert await read(keys["other"], run_id="default1") == []
    assert await read(keys["default"], run_id="default1") == ["default:default1"]


# ---- keys


async def test_a_key_is_shown_once_and_kept_as_a_hash(api: Api) -> None:
    admin = await api.key("admin")
    made = await api.ask("POST", "/api-keys", admin, body={"name": "ci", "role": "developer"})
    assert (made.status, made.headers["cache-control"]) == (201, "no-store")
    secret = made.json["key"]
    assert (secret[:6], len(secret)) == ("ifkey_", 6 + 43)
    assert (await api.ask("GET", "/runs", secret)).status == 200
    listed = await api.ask("GET", "/api-keys", admin)
    audit = await api.ask("GET", "/audit", admin)
    for told in (listed.content.decode(), audit.content.decode(), repr(await api.store.keys(None))):
        assert secret not in told
        assert secret.removeprefix("ifkey_") not in told
    assert "key_hash" not in listed.content.decode()
    assert [one["name"] for one in listed.json["items"]] == ["org admin", "ci"]
    assert audit.json["items"][0]["fields"]["key_id"] == made.json["key_id"]


async def test_a_revoked_key_opens_nothing_and_revoking_twice_is_accepted(store_url: str, api: Api) -> None:
    admin = await api.key("admin")
    made = (await api.ask("POST", "/api-keys", admin, body={"name": "ci", "role": "viewer"})).json
    async with serving(store_url) as other:
        assert (await api.ask("GET", "/runs", made["key"])).status == 200
        assert (await other.ask("GET", "/runs", made["key"])).status == 200
        for _ in range(2):
            assert (await api.ask("DELETE", f"/api-keys/{made['key_id']}", admin)).status == 204
        assert (await api.ask("GET", "/runs", made["key"])).code == "UNAUTHENTICATED"
        other.access._clock = lambda: float("inf")  # what it knew is old by then
        assert (await other.ask("GET", "/runs", made["key"])).code == "UNAUTHENTICATED"
    (row,) = [one for one in await api.store.keys(None) if one.key_id == made["key_id"]]
    assert row.revoked_at is not None


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        {"name": "x", "kind": "worker", "role": "admin"},
        {"name": "x", "role": "viewer", "workflows": ["a"]},
        {"name": "x", "role": "viewer", "expires_at": "2000-01-01T00:00:00Z"},
        {"name": "x\n", "role": "viewer"},
    ],
)
async def test_a_key_that_makes_no_sense_is_refused(api: Api, body: dict[str, Any]) -> None:
    found = await api.ask("POST", "/api-keys", await api.key(), body=body)
    assert (found.status, found.code) == (400, "INVALID_INPUT")


async def test_a_key_ends_when_it_says_so(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    admin, end = await api.key("admin"), api.store.now() + 60_000
    at = datetime.fromtimestamp(end / 1000, UTC).isoformat()
    made = (await api.ask("POST", "/api-keys", admin, body={"name": "x", "role": "viewer", "expires_at": at})).json
    assert made["expires_at_ms"] == end
    assert (await api.ask("GET", "/runs", made["key"])).status == 200
    monkeypatch.setattr(api.store, "now", lambda: end)
    assert (await api.ask("GET", "/runs", made["key"])).code == "UNAUTHENTICATED"


async def test_the_document_is_served_to_everybody_and_says_what_refusals_look_like(api: Api) -> None:
    found = (await api.ask("GET", "/openapi.json")).json
    assert found["openapi"] == "3.1.0"
    assert "HTTPValidationError" not in found["components"]["schemas"]
    for methods in found["paths"].values():
        for operation in methods.values():
            assert "422" not in operation["responses"]
            for status, described in operation["responses"].items():
                if int(status) >= 400:
                    assert list(described["content"]) == ["application/problem+json"]


async def test_no_answer_may_be_kept_on_its_way(api: Api) -> None:
    key = await api.key("viewer")
    for path in ("/runs", "/workflows", "/audit"):
        assert (await api.ask("GET", path, key)).headers["cache-control"] == "no-store"


def test_every_refusal_that_an_endpoint_documents_has_its_status_and_a_code_of_ours() -> None:
    codes = {(kind.code, kind.status) for kind in _tree(IronflowError)}
    for operation in operations():
        assert {"400", "401", "403", "429", "503"} <= operation.responses.keys()
        for status, described in operation.responses.items():
            if int(status) < 400:
                continue
            for part in described.split("; "):
                code = part.partition(":")[0].strip("`")
                assert (code, int(status)) in codes, (operation, part)


def _tree(cls: type[IronflowError]) -> list[type[IronflowError]]:
    return [cls, *(one for child in cls.__subclasses__() for one in _tree(child))]
