"""Runs over HTTP: creating them where the code is not, lists and pages, commands, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.server.asking import Api, of_code, post, serving
from tests.store.build import answer, append, create, leave, session, start

import ironflow
from ironflow.model import journal as j
from ironflow.model.ids import join_tags
from ironflow.model.transition import APPLIED


@ironflow.step
async def double(number: int) -> int:
    return 2 * number


@ironflow.workflow(priority=7, version="2")
async def doubling(ctx: ironflow.Context, number: int) -> int:
    """Doubles a number."""
    return await double(number)


# ---- creating


async def test_a_run_is_created_without_its_code_and_executed_by_whoever_has_it(store_url: str) -> None:
    async with serving(store_url) as api:
        key = await api.key("developer")
        await api.store.saw_workflows([of_code(doubling.spec)])
        made = await api.ask("POST", "/runs", key, body={"workflow": "doubling", "input": 21, "labels": {"a": "b"}})
        assert (made.status, made.json["created"], made.json["state"]) == (201, True, "pending")
        # What the code says of itself applies although the server does not have it.
        assert (made.json["priority"], made.json["version"], made.json["labels"]) == (7, "2", {"a": "b"})
        assert made.headers["location"] == f"/api/v1/runs/{made.json['run_id']}"
        async with ironflow.open(store_url, workflows=[doubling]) as engine:
            assert await engine.handle(made.json["run_id"], doubling).result(timeout=20) == 42
        found = (await api.ask("GET", made.headers["location"].removeprefix("/api/v1"), key)).json
        assert (found["state"], found["output"], [one["name"] for one in found["steps"]]) == (
            "completed", 42, ["double"],
        )  # fmt: skip
        assert found["worker_routing"] is None


async def test_a_whole_number_is_one_however_json_writes_it(sqlite_url: str) -> None:
    async with serving(sqlite_url) as api:
        await api.declare("order")
        key = await api.key("developer")
        made = await post(api, key, priority=5.0, concurrency_limits={"bank": 3.0})
        assert (made.status, made.json["priority"], made.json["limits"]) == (201, 5, {"group:bank": 3})
        for wrong in ({"priority": 5.5}, {"concurrency_limits": {"bank": 0.5}}, {"priority": "5"}):
            assert (await post(api, key, **wrong)).status == 400


async def test_r43_two_creations_at_once_with_one_idempotency_key_make_one_run(postgres_url: str) -> None:
    async with serving(postgres_url) as one, serving(postgres_url) as two:
        await one.declare("order")
        key = await one.key("developer")
        for n in range(10):
            found = await asyncio.gather(
                *(post(node, key, input={"n": n}, idempotency_key=f"k{n}") for node in (one, two, one, two))
            )
            assert sorted(answer.status for answer in found) == [200, 200, 200, 201]
            assert len({answer.json["run_id"] for answer in found}) == 1
            other = await post(two, key, input={"n": -1}, idempotency_key=f"k{n}")
            assert (other.status, other.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")
            assert other.json["details"]["run_id"] == found[0].json["run_id"]
            assert found[0].json["run_id"] in other.json["detail"]


async def test_the_same_key_and_the_same_input_in_another_order_of_its_keys_give_the_same_run(
    api: Api, key: str
) -> None:
    given = {"a": 1, "b": {"c": [1, {"d": True, "e": None}], "f": "g"}}
    turned = {"b": {"f": "g", "c": [1, {"e": None, "d": True}]}, "a": 1}
    for name in ("idempotency_key", "id"):
        first = await post(api, key, input=given, **{name: "k"})
        again = await post(api, key, input=turned, **{name: "k"})
        assert (first.status, again.status) == (201, 200)
        assert first.json["run_id"] == again.json["run_id"]
        assert list((await api.ask("GET", f"/runs/{first.json['run_id']}", key)).json["input"]) == ["a", "b"]
        for other in ({**given, "a": True}, {**given, "a": 2}, {"b": given["b"]}):
            refused = await post(api, key, input=other, **{name: "k"})
            assert (refused.status, refused.code) == (409, "IDEMPOTENCY_KEY_CONFLICT")


@ironflow.workflow(name="order")
async def ending_as_told(ctx: ironflow.Context, end: str) -> str:
    if end == "failed":
        raise ValueError(end)
    if end == "warning":
        ctx.warn(end)
    return end


async def test_r44_two_creations_at_once_with_one_concurrency_key_make_one_run_until_it_ends(postgres_url: str) -> None:
    async with serving(postgres_url) as one, serving(postgres_url) as two:
        await one.declare("order")
        key = await one.key("developer")
        for end in ("completed", "failed", "cancelled", "warning"):
            starts = (post(node, key, concurrency_key="c", input=end) for node in (one, two, one, two))
            found = await asyncio.gather(*starts)
            assert sorted(answer.status for answer in found) == [201, 409, 409, 409]
            (made,) = [answer.json["run_id"] for answer in found if answer.status == 201]
            await one.ask("POST", f"/runs/{made}/pause", key)
            held = await post(two, key, concurrency_key="c", input=end)
            await one.ask("POST", f"/runs/{made}/resume", key)
            for refused in (held, *(answer for answer in found if answer.status == 409)):
                assert (refused.code, refused.json["details"]["run_id"]) == ("CONCURRENCY_CONFLICT", made)
            if end == "cancelled":
                assert (await two.ask("POST", f"/runs/{made}/cancel", key)).json["state"] == end
            async with asyncio.timeout(20), ironflow.open(postgres_url, workflows=[ending_as_told]) as engine:
                await engine.wait_end(made)
            assert (await two.ask("GET", f"/runs/{made}", key)).json["state"] == end
        assert (await post(one, key, concurrency_key="c", input="again")).status == 201


async def test_a_key_that_is_given_back_while_a_start_is_refused_does_not_refuse_it(
    api: Api, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = (await post(api, key, concurrency_key="c")).json["run_id"]
    real = api.store.find_key

    async def ends_meanwhile(*asked: Any) -> Any:
        monkeypatch.setattr(api.store, "find_key", real)
        assert (await api.ask("POST", f"/runs/{held}/cancel", key)).status == 200
        return await real(*asked)

    monkeypatch.setattr(api.store, "find_key", ends_meanwhile)
    found = await post(api, key, concurrency_key="c")
    assert (found.status, found.json["created"]) == (201, True)
    assert found.json["run_id"] != held


async def test_the_header_idempotency_key_means_the_field_in_utf_8_too(api: Api, key: str) -> None:
    def sent(raw: bytes) -> dict[str, str]:
        return {"Idempotency-Key": raw.decode("latin-1")}  # as a server reads bytes that are no ASCII

    body = {"workflow": "order", "input": 1}
    first = await api.ask("POST", "/runs", key, body=body, headers=sent("Größe-é".encode()))
    again = await post(api, key, input=1, idempotency_key="Größe-é")
    assert (first.status, again.status) == (201, 200)
    assert first.json["run_id"] == again.json["run_id"]
    both = await api.ask(
        "POST", "/runs", key, body={**body, "idempotency_key": "Größe-é"}, headers=sent("Größe-é".encode())
    )
    assert both.status == 200
    other = await api.ask("POST", "/runs", key, body=body, headers=sent(b"\xe9"))
    assert (other.status, other.code) == (400, "INVALID_REQUEST")


async def test_the_header_idempotency_key_means_the_field(api: Api, key: str) -> None:
    body = {"workflow": "order", "input": 1}
    first = await api.ask("POST", "/runs", key, body=body, headers={"Idempotency-Key": "k"})
    again = await post(api, key, input=1, idempotency_key="k")
    both = await api.ask("POST", "/runs", key, body={**body, "idempotency_key": "k"}, headers={"Idempotency-Key": "k"})
    assert (first.status, again.status, both.status) == (201, 200, 200)
    assert again.json["created"] is False
    assert len({answer.json["run_id"] for answer in (first, again, both)}) == 1
    differ = await api.ask(
        "POST", "/runs", key, body={**body, "idempotency_key": "x"}, headers={"Idempotency-Key": "k"}
    )
    assert (differ.status, differ.code) == (400, "INVALID_REQUEST")


async def test_an_unknown_workflow_is_refused_and_those_that_there_are_are_named(api: Api, key: str) -> None:
    found = await post(api, key, workflow="ordre")
    assert (found.status, found.code, found.json["details"]) == (404, "WORKFLOW_UNKNOWN", {"known": ["order"]})


async def test_ids_that_need_quoting_are_found_again(api: Api, key: str) -> None:
    for run_id in ("a/b/c", "ä €", "100%", "a?b#c", "steps"):
        made = await post(api, key, id=run_id)
        assert made.status == 201, made
        assert (await api.ask("GET", f"/runs/{run_id}", key)).json["run_id"] == run_id
        assert (await api.ask("GET", f"/runs/{run_id}/journal", key)).json["items"][0]["kind"] == "run_created"


# ---- lists


async def test_a_list_read_page_by_page_is_the_whole_list_while_runs_are_added(api: Api, key: str) -> None:
    for n in range(25):
        assert await answer(api.store, create(f"r{n:02}", created_at=1_000 + n // 3)) == APPLIED
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 4}
    while True:
        page = (await api.ask("GET", "/runs", key, query=query)).json
        seen += [one["run_id"] for one in page["items"]]
        assert await answer(api.store, create(f"new{len(seen)}", created_at=9_000_000_000)) == APPLIED
        if page["next"] is None:
            break
        assert len(page["items"]) == 4
        query["cursor"] = page["next"]
    assert seen == [f"r{n:02}" for n in sorted(range(25), key=lambda n: (n // 3, n), reverse=True)]


async def test_lists_select_by_everything_that_they_say(api: Api, key: str) -> None:
    tagged = f"order\x1f1\x1f{join_tags(['gpu'])}"
    for change in (
        create("old", created_at=1_000),
        create("tagged", created_at=2_000, route=tagged),
        create("labelled", created_at=3_000, labels='{"shop":"x=y"}'),
        create("urgent", created_at=4_000, priority=50),
        create("other", created_at=5_000, workflow="refund"),
        start("running", created_at=6_000),
    ):
        assert await answer(api.store, change) == APPLIED

    async def chosen(**query: Any) -> list[str]:
        found = await api.ask("GET", "/runs", key, query=query)
        return [one["run_id"] for one in found.json["items"]]

    assert await chosen(state="running") == ["running"]
    assert await chosen(state=["running", "pending"], workflow="refund") == ["other"]
    assert await chosen(label="shop=x=y") == ["labelled"]
    assert await chosen(priority=50) == ["urgent"]
    assert await chosen(worker_tag="gpu") == ["tagged"]
    assert await chosen(created_to="1970-01-01T00:00:02Z") == ["old"]
    assert await chosen(created_from="1970-01-01T01:00:05+01:00") == ["running", "other"]


@pytest.mark.parametrize(
    "query",
    [{"limit": 0}, {"limit": 501}, {"limit": "x"}, {"state": "done"}, {"label": "x"}, {"priority": 1000}, {"page": 2},
     {"created_from": "yesterday"}, {"created_from": "2020-01-01T00:00:00"},
        {"created_to": "5"}, {"worker_tag": "a b"}],
)  # fmt: skip
async def test_a_question_that_makes_no_sense_is_refused(api: Api, key: str, query: dict[str, Any]) -> None:
    found = await api.ask("GET", "/runs", key, query=query)
    assert (found.status, found.code) == (400, "INVALID_REQUEST")
    assert next(iter(query)) in found.json["detail"]


async def test_a_cursor_of_another_query_or_list_is_refused(api: Api, key: str) -> None:
    for n in range(3):
        await post(api, key, id=f"r{n}")
    cursor = (await api.ask("GET", "/runs", key, query={"limit": 1})).json["next"]
    steps = await api.ask("GET", "/runs/r1/steps", key, query={"cursor": cursor})
    other = await api.ask("GET", "/runs", key, query={"cursor": cursor, "state": "pending"})
    mangled = await api.ask("GET", "/runs", key, query={"cursor": cursor[:-3]})
    assert {(one.status, one.code) for one in (steps, other, mangled)} == {(400, "INVALID_CURSOR")}
    assert (await api.ask("GET", "/runs", key, query={"cursor": cursor, "limit": 500})).status == 200


async def test_journals_and_steps_come_in_pages(api: Api, key: str) -> None:
    for change in (start("r1"), append("r1", 4, count=120)):
        assert await answer(api.store, change) == APPLIED
    seen: list[int] = []
    query: dict[str, Any] = {"limit": 50, "after": 2}
    while True:
        page = (await api.ask("GET", "/runs/r1/journal", key, query=query)).json
        seen += [one["seq"] for one in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == list(range(3, 124))


async def test_the_steps_of_a_long_run_come_in_pages_too(api: Api, key: str) -> None:
    many = append("r1", 4, count=2_400)
    for place, event in enumerate(many.events):
        event.kind, event.step_id = (j.STEP_STARTED, j.STEP_COMPLETED)[place % 2], f"{1 + place // 2}:s"
        event.payload = '{"try":1}' if event.kind == j.STEP_STARTED else '{"result":1}'
    for change in (start("r1"), many):
        assert await answer(api.store, change) == APPLIED
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 500}
    while True:
        page = (await api.ask("GET", "/runs/r1/steps", key, query=query)).json
        seen += [one["step_id"] for one in page["items"]]
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == ["0:a", *(f"{n}:s" for n in range(1, 1_201))]


async def test_a_page_of_large_values_ends_early(api: Api, key: str) -> None:
    big = append("r1", 4, count=6)
    for event in big.events:
        event.payload = f'{{"result":"{"x" * 400_000}"}}'
    for change in (start("r1"), big):
        assert await answer(api.store, change) == APPLIED
    page = await api.ask("GET", "/runs/r1/journal", key)
    assert [one["seq"] for one in page.json["items"]] == [1, 2, 3, 4, 5]
    assert len(page.content) < 1_200_000
    rest = await api.ask("GET", "/runs/r1/journal", key, query={"cursor": page.json["next"]})
    assert rest.json["items"][0]["seq"] == 6


# ---- looking and steering


async def test_a_queued_run_says_which_workers_could_take_it(api: Api, key: str) -> None:
    made = (await post(api, key, worker_tags=["gpu"])).json["run_id"]

    async def routing() -> dict[str, Any]:
        found: dict[str, Any] = (await api.ask("GET", f"/runs/{made}", key)).json["worker_routing"]
        return found

    nobody = {"required_tags": ["gpu"], "workers_seen": 0, "workers_eligible": 0, "slots_free": 0}
    assert await routing() == nobody
    serves = '{"tags":[%s],"workflows":{"order":{"versions":["1"],"tags":[]}}}'
    await api.store.open_session(session(api.store, "s1", serves=serves % ""))
    await api.store.open_session(session(api.store, "s2", serves=serves % '"gpu"', org="other"))
    assert await routing() == {**nobody, "workers_seen": 1}
    await api.store.open_session(session(api.store, "s3", serves=serves % '"gpu","eu"', credits=3))
    assert await routing() == {**nobody, "workers_seen": 2, "workers_eligible": 1, "slots_free": 3}


async def test_commands_do_what_they_say_and_are_written_under_the_name_of_the_key(api: Api, key: str) -> None:
    made = (await post(api, key)).json["run_id"]

    async def steer(verb: str, **body: Any) -> Any:
        return await api.ask("POST", f"/runs/{made}/{verb}", key, **({"body": body} if body else {}))

    steps = [("pause", True, "paused"), ("pause", False, "paused"), ("resume", True, "pending"),
             ("cancel", True, "cancelled"), ("cancel", False, "cancelled"), ("retry", True, "pending"),
             ("cancel", True, "cancelled")]  # fmt: skip
    for verb, changed, state in steps:
        assert (await steer(verb)).json == {"run_id": made, "changed": changed, "state": state}
    assert ((await steer("resume")).status, (await steer("resume")).code) == (409, "INVALID_TRANSITION")
    assert (await steer("cancel", force="yes")).code == "INVALID_REQUEST"
    assert (await steer("retry", restart=True)).json["changed"] is True
    (row,) = await api.store.keys(None)
    written = (await api.ask("GET", "/audit", key, query={"run_id": made})).json["items"]
    assert len(written) >= 6
    assert {one["actor"] for one in written} == {f"{row.name} ({row.key_id})"}


async def test_g36_of_two_retries_at_once_one_is_answered_409(postgres_url: str) -> None:
    async with serving(postgres_url) as one, serving(postgres_url) as two:
        key = await one.key("developer")
        for n in range(10):
            for change in (start(f"r{n}"), leave(f"r{n}", 4, "failed")):
                assert await answer(one.store, change) == APPLIED
            found = await asyncio.gather(*(node.ask("POST", f"/runs/r{n}/retry", key) for node in (one, two)))
            assert sorted(asked.status for asked in found) == [200, 409]
            assert [asked.code for asked in found if asked.status == 409] == ["INVALID_TRANSITION"]
            events = await one.store.journal(f"r{n}")
            assert [event.kind for event in events].count(j.RUN_REOPENED) == 1


async def test_only_an_ended_run_is_deleted_and_the_audit_log_remembers_it(api: Api, key: str) -> None:
    made = (await post(api, key)).json["run_id"]
    live = await api.ask("DELETE", f"/runs/{made}", key)
    assert (live.status, live.code) == (409, "INVALID_TRANSITION")
    await api.ask("POST", f"/runs/{made}/cancel", key)
    assert (await api.ask("DELETE", f"/runs/{made}", key)).status == 204
    gone = [await api.ask("GET", f"/runs/{made}{rest}", key) for rest in ("", "/steps", "/journal", "/events", "/why")]
    gone.append(await api.ask("DELETE", f"/runs/{made}", key))
    assert {(one.status, one.code) for one in gone} == {(404, "RUN_NOT_FOUND")}
    assert (await api.ask("GET", "/audit", key)).json["items"][0]["action"] == "run.delete"


async def test_why_names_every_hold(api: Api, key: str) -> None:
    made = (await post(api, key, scheduled_at="2099-01-01T00:00:00Z", worker_tags=["gpu"])).json["run_id"]
    await api.ask("POST", "/workflows/order/pause", key)
    found = (await api.ask("GET", f"/runs/{made}/why", key)).json
    assert [one["code"] for one in found] == ["WORKFLOW_PAUSED", "SCHEDULED", "NO_WORKER"]
    assert found[1]["until"] == "2099-01-01T00:00:00.000Z"


async def test_paths_without_api_are_aliases(api: Api, key: str) -> None:
    for change in (start("r1"), leave("r1", 4, "completed")):
        assert await answer(api.store, change) == APPLIED
    for path in ("/v1/runs/r1", "/v1/runs/r1/events", "/v1/runs", "/v1/openapi.json"):
        alias, full = await api.ask("GET", path, key), await api.ask("GET", path.removeprefix("/v1"), key)
        assert (alias.status, alias.content) == (200, full.content)
