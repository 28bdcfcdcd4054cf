"""Who may reach what: every operation of the OpenAPI document, asked with every kind of key that should not open it.

The operations come from the document, so a new one is tried here before anybody thinks of it: one that only looks must
be open to viewers, one that changes something to developers at least, and none to strangers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.server.asking import OTHER, Answer, Api, serving
from tests.server.document import Operation, operations
from tests.store.build import answer, append, leave, start

from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import APPLIED
from ironflow.server.api import PREFIX

OPERATIONS = operations()
NAMES = [str(one) for one in OPERATIONS]
#: What is an admin's: what cannot be undone, and who else may come in.
ADMINS = {"deleteRun", "createKey", "listKeys", "revokeKey"}
BODIES: dict[str, dict[str, Any]] = {
    "createRun": {"workflow": "order"},
    "createRuns": {"runs": [{"workflow": "order"}]},
    "createKey": {"name": "another", "role": "viewer"},
}


def least(operation: Operation) -> str:
    """The least role that an organisation's key needs."""
    if operation.id in ADMINS:
        return "admin"
    return "viewer" if operation.method == "GET" else "developer"


def for_platform(operation: Operation) -> bool:
    return "/capacity/" in operation.path


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[Api]:
    async with serving(sqlite_url) as made:
        await made.declare("order")
        await made.declare("order", OTHER)
        yield made


async def ask(api: Api, operation: Operation, key: str | None, **ids: str) -> Answer:
    path = operation.path.format_map({"run_id": "no-run", "name": "no-workflow", "key_id": "no-key", **ids})
    body = BODIES.get(operation.id, {} if operation.method == "POST" else None)
    return await api.ask(operation.method, path, key, body=body)


async def ended(api: Api, run_id: str, **row: Any) -> str:
    """A run that has ended, so that a stream of it ends, too."""
    for change in (start(run_id, **row), append(run_id, 4), leave(run_id, 5, "completed")):
        assert await answer(api.store, change) == APPLIED
    return run_id


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
async def test_without_a_valid_key_nothing_is_answered(operation: Operation, api: Api) -> None:
    last = api.store.now() + 50  # ms: it must still be to come when the key is made
    expired, revoked = await api.key(expires_at=last), await api.key()
    (row,) = [one for one in await api.store.keys(None) if one.expires_at is None]
    assert await api.store.revoke_key(row.key_id, "test")
    while api.store.now() < last:
        await asyncio.sleep(0)  # a key that was made expired would have been refused
    strangers = [None, "", "nonsense", "ifkey_" + "x" * 43, "ifplatform_" + "0" * 43, "ifkey_ü", expired, revoked]
    answers = [await ask(api, operation, key) for key in strangers]
    assert [one.code for one in answers] == ["UNAUTHENTICATED"] * len(strangers)
    assert len({one.content for one in answers}) == 1  # which of these it was is not told
    assert all(one.headers["www-authenticate"] == "Bearer" for one in answers)


@pytest.mark.parametrize("operation", OPERATIONS, ids=NAMES)
async def test_a_key_opens_what_its_kind_and_role_may_and_nothing_else(operation: Operation, api: Api) -> None:
    worker = await ask(api, operation, await api.key(kind="worker"))
    assert worker.code == ("PLATFORM_CREDENTIALS_REQUIRED" if for_platform(operation) else "FORBIDDEN")
    roles = ["viewer", "developer", "admin"]
    for place, role in enumerate(roles):
        found = await ask(api, operation, await api.key(role))
        if for_platform(operation):
            assert (found.status, found.json["detail"]) == (403, "platform credentials required here")
        elif place < roles.index(least(operation)):
            assert (found.status, found.code) == (403, "FORBIDDEN")
        else:
            assert found.status in (200, 201, 204, 404), found
    platform = await ask(api, operation, await api.key(kind="platform"))
    own = for_platform(operation) or operation.path.startswith(("/audit", "/api-keys"))
    assert operation.roles == (["platform"] if for_platform(operation) else [least(operation)] + ["platform"] * own)
    assert platform.status in (200, 201, 404) if own else platform.code == "FORBIDDEN", platform


@pytest.mark.parametrize("scope", [OTHER, Scope("default", "staging")], ids=["organisation", "environment"])
@pytest.mark.parametrize("operation", [one for one in OPERATIONS if "{" in one.path], ids=str)
async def test_what_is_another_s_is_answered_as_what_does_not_exist(
    operation: Operation, scope: Scope, api: Api
) -> None:
    if operation.path.startswith("/workflows"):
        await api.declare("theirs")
    await ended(api, "theirs")
    await api.key(expires_at=None)
    (theirs,) = [row.key_id for row in await api.store.keys(None)]
    stranger = await api.key(scope=scope)
    before = await everything(api)
    there = await ask(api, operation, stranger, run_id="theirs", name="theirs", key_id=theirs)
    nowhere = await ask(api, operation, stranger, run_id="nobodys", name="nobodys", key_id="key_nobodys")
    assert there.status == nowhere.status == 404
    told = there.content.decode().replace("theirs", "nobodys").replace(theirs, "key_nobodys")
    assert told == nowhere.content.decode()
    assert await everything(api) == before


@pytest.mark.parametrize(
    "operation",
    [one for one in OPERATIONS if "{" not in one.path and one.method == "GET" and not for_platform(one)],
    ids=str,
)
async def test_lists_hold_only_what_is_one_s_own(operation: Operation, api: Api) -> None:
    await ended(api, "theirs")
    await ended(api, "staging", environment="staging")
    await api.declare("theirs")
    await api.key()
    stranger = await api.key(scope=OTHER)
    await ended(api, "own", org="other")
    (own_key,) = [row.key_id for row in await api.store.keys("other")]
    found = (await ask(api, operation, stranger)).json["items"]
    assert found or operation.id == "listAudit"
    assert {(one.get("org", "other"), one.get("environment", "default")) for one in found} <= {OTHER}
    assert {one["run_id"] for one in found if one.get("run_id")} <= {"own"}
    assert {one["name"] for one in found if operation.id == "listWorkflows"} <= {"order"}
    assert {one["key_id"] for one in found if operation.id == "listKeys"} <= {own_key}


async def test_a_run_id_keys_and_pauses_of_one_organisation_mean_nothing_to_another(api: Api) -> None:
    ours, theirs = await api.key(), await api.key(scope=OTHER)
    given = {"workflow": "order", "input": 1, "idempotency_key": "k", "concurrency_key": "c"}
    first = await api.ask("POST", "/runs", ours, body=given)
    second = await api.ask("POST", "/runs", theirs, body={**given, "input": 2})
    assert (first.status, second.status) == (201, 201)
    taken = await api.ask("POST", "/runs", theirs, body={"workflow": "order", "id": first.json["run_id"]})
    assert (taken.status, taken.code) == (400, "INVALID_INPUT")
    assert set(taken.json["details"]) == set()
    assert (await api.ask("POST", "/workflows/order/pause", theirs)).json["changed"] is True
    assert (await api.ask("GET", "/workflows/order", ours)).json["paused_at"] is None
    assert (await api.ask("GET", f"/runs/{first.json['run_id']}/why", ours)).json[0]["code"] == "NO_WORKER"


async def test_an_admin_makes_keys_for_the_own_scope_only_and_never_platform_keys(api: Api) -> None:
    admin, platform = await api.key(), await api.key(kind="platform")
    refused: list[dict[str, Any]] = [
        {"name": "x", "kind": "platform"},
        {"name": "x", "role": "viewer", "org": "other"},
        {"name": "x", "role": "viewer", "environment": "staging"},
    ]
    for body in refused:
        assert (await api.ask("POST", "/api-keys", admin, body=body)).code == "FORBIDDEN"
    made = await api.ask("POST", "/api-keys", platform, body={"name": "x", "role": "viewer", "org": "other"})
    assert (made.json["org"], (await api.ask("GET", "/runs", made.json["key"])).status) == ("other", 200)
    other = await api.ask("POST", "/api-keys", platform, body={"name": "y", "kind": "platform"})
    assert (await api.ask("GET", "/capacity/stats", other.json["key"])).status == 200
    seen = {one["kind"] for one in (await api.ask("GET", "/api-keys", admin)).json["items"]}
    assert seen == {"org"}
    hidden = await api.ask("DELETE", f"/api-keys/{other.json['key_id']}", admin)
    assert hidden.code == "KEY_NOT_FOUND"
    audit = (await api.ask("GET", "/audit", admin)).json["items"]
    assert all("platform" not in str(one) for one in audit)


async def everything(api: Api) -> list[Any]:
    """What a stranger must not be able to change."""
    rows = [await api.store.run("theirs"), await api.store.journal("theirs"), await api.store.paused_workflows()]
    return [repr(one) for one in (*rows, [key for key in await api.store.keys(None) if key.scope == DEFAULT])]


def test_the_document_has_every_operation_of_the_interface() -> None:
    assert len(OPERATIONS) >= 25
    assert {one.id for one in OPERATIONS} >= {*ADMINS, "createRun", "followRun", "explainRun", "listAudit"}
    assert PREFIX == "/api/v1"
