"""The OpenAPI document by itself: a stranger has nothing else, so each field says what it means and may hold."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.asking import Api, serving
from tests.store.build import answer, create, leave, start

import ironflow
from ironflow.codec import tags
from ironflow.engine import why
from ironflow.model import capacity, payloads
from ironflow.model import journal as j
from ironflow.model import key as keys
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.transition import ACTIONS, APPLIED
from ironflow.server.api import routes
from ironflow.server.api.document import document
from ironflow.server.event_meanings import PAYLOAD_FIELDS, PAYLOADS
from ironflow.server.meanings import MEANINGS, VALUES

DOCUMENT = document(routes())
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[Api]:
    async with serving(sqlite_url, max_api_body_bytes=5_000) as made:
        await made.declare("order")
        yield made


def properties() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for name, schema in SCHEMAS.items():
        for field, found in schema.get("properties", {}).items():
            yield name, field, found


def operations() -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def kinds_of(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """What a value may be, beside null."""
    return [one for one in schema.get("anyOf", [schema]) if one != {"type": "null"}]


def values_of(schema: dict[str, Any]) -> set[Any]:
    (kind,) = kinds_of(schema)
    return set(kind.get("enum", [kind.get("const")]))


def test_every_field_and_every_parameter_says_what_it_means() -> None:
    silent = [f"{name}.{field}" for name, field, found in properties() if not found.get("description")]
    for label, operation in operations():
        silent += [f"{label} {one['name']}" for one in operation.get("parameters", ()) if not one.get("description")]
        silent += [f"{label} {status}" for status, one in operation["responses"].items() if not one["description"]]
    assert silent == []


def test_nothing_is_explained_that_is_not_there() -> None:
    there = {(name, field) for name, field, _ in properties()}
    assert [(name, field) for name, told in MEANINGS.items() for field in told if (name, field) not in there] == []
    assert [place for place in VALUES if place not in there] == []


def test_every_time_has_the_form_of_one() -> None:
    times = [one for one in properties() if f"{one[1]}_ms" in SCHEMAS[one[0]]["properties"]]
    assert len(times) > 20
    for name, field, found in times:
        assert [one["format"] for one in kinds_of(found)] == ["date-time"], (name, field)
        (number,) = kinds_of(SCHEMAS[name]["properties"][f"{field}_ms"])
        assert number["type"] == "integer", (name, field)
    alike = {(name, field) for name, field, _ in properties() if field.endswith("_at") and name[:3] in ("Run", "Key")}
    assert alike - {(name, field) for name, field, _ in times} == {
        ("RunStart", "scheduled_at"), ("RunStart", "deadline_at"), ("KeyCreate", "expires_at"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "field", "values"),
    [
        ("Run", "state", runs.STATES),
        ("RunWhole", "state", runs.STATES),
        ("RunCreated", "resume_state", runs.STATES),
        ("Steered", "state", runs.STATES),
        ("Step", "state", steps.STATES),
        ("Step", "kind", steps.KINDS),
        ("Try", "state", steps.STATES),
        ("Event", "kind", j.KINDS),
        ("Hold", "code", why.CODES),
        ("QueueRow", "status", (capacity.READY, capacity.DELAYED, capacity.BLOCKED, capacity.RESERVED)),
        ("Session", "kind", (capacity.EMBEDDED, capacity.HTTP)),
        ("Audit", "action", ACTIONS),
        ("Key", "kind", (keys.ORG, keys.PLATFORM, keys.WORKER)),
        ("KeyCreated", "role", keys.ROLES),
        ("KeyCreate", "kind", (keys.ORG, keys.PLATFORM, keys.WORKER)),
        ("KeyCreate", "role", keys.ROLES),
    ],
)
def test_what_has_a_few_values_lists_those_of_the_model(schema: str, field: str, values: Any) -> None:
    assert values_of(SCHEMAS[schema]["properties"][field]) == set(values)


def test_no_state_kind_or_the_like_is_left_open() -> None:
    closed = {"state", "kind", "status", "role", "action"}
    numbers = {("Problem", "status"), ("StartOutcome", "status")}
    left = [
        (name, field)
        for name, field, found in properties()
        if field in closed and (name, field) not in numbers and values_of(found) == {None}
    ]
    assert left == []


def test_the_actions_of_the_audit_log_are_those_that_the_code_writes() -> None:
    source = Path(ironflow.__file__).parent
    found: set[str] = set()
    for folder in ("model", "store", "server"):
        for path in (source / folder).glob("*.py"):
            if path.name not in ("transition.py", "meanings.py"):
                form = r'"((?:run|workflow|key|capacity|invariant)\.[a-z_.]+)"'
                found.update(re.findall(form, path.read_text(encoding="utf-8")))
    assert found - {"runs.concurrency_key"} == set(ACTIONS)


def test_a_new_run_says_where_it_is_and_who_asks_too_often_when_to_come_back() -> None:
    create_run = DOCUMENT["paths"]["/api/v1/runs"]["post"]["responses"]
    assert create_run["201"]["headers"]["Location"]["schema"] == {"type": "string"}
    for label, operation in operations():
        assert operation["responses"]["429"]["headers"]["Retry-After"]["schema"] == {"type": "integer"}, label
        assert ("415" in operation["responses"]) == ("requestBody" in operation) == ("413" in operation["responses"])


def test_forms_of_bodies_have_names_and_every_reference_leads_somewhere() -> None:
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for _, operation in operations()
        if "requestBody" in operation
    ]
    assert {"$ref": "#/components/schemas/RunStart"} in bodies
    assert all([*schema] == ["$ref"] for schema in bodies)
    named = set(re.findall(r"'\$ref': '([^']+)'", repr(DOCUMENT)))
    assert named == {f"#/components/schemas/{name}" for name in SCHEMAS}


def test_every_operation_has_a_title_of_its_own() -> None:
    titles = [operation["summary"] for _, operation in operations()]
    assert {"List runs", "List credits", "Get input schema"} <= set(titles)
    assert [title for title in titles if title != title.strip()] == []
    assert len(titles) == len(set(titles))


def test_no_refusal_is_named_twice() -> None:
    for label, operation in operations():
        for status, response in operation["responses"].items():
            named = re.findall(r"`([A-Z_]+)`: ", response["description"])
            assert len(named) == len(set(named)), (label, status)


def test_every_kind_of_event_tells_what_it_may_hold() -> None:
    assert PAYLOADS.keys() == j.KINDS.keys()
    assert {name for names in PAYLOADS.values() for name in names} == PAYLOAD_FIELDS.keys()
    checked = {kind: {*places} - {*PAYLOADS[kind]} for kind, places in payloads._PLACES.items()}
    assert {kind: names for kind, names in checked.items() if names} == {}
    told = SCHEMAS["Event"]["properties"]["payload"]["description"]
    assert all(f"- `{name}`" in told for name in (*PAYLOADS, *PAYLOAD_FIELDS))


@ironflow.step(retry=ironflow.Retry(max_attempts=2, backoff="1ms"))
async def fails() -> None:
    raise ValueError("no")


@ironflow.step
async def undone() -> None:
    raise RuntimeError("not this either")


@ironflow.workflow(retry=ironflow.Retry(max_attempts=2, backoff="1ms"))
async def eventful(ctx: ironflow.Context) -> str:
    ctx.patched("new")
    ctx.skip("old", "not needed")
    ctx.set_status("begins")
    ctx.set_output("so far")
    ctx.warn("odd")
    ctx.compensate(undone)
    await ctx.sleep("1ms")
    await fails()
    return "done"


def test_what_a_run_writes_is_what_the_document_tells(sqlite_url: str) -> None:
    with ironflow.open(sqlite_url, workflows=[eventful]) as engine:
        run = engine.wait(engine.start(eventful))
        with pytest.raises(ironflow.RunFailed):
            engine.wait(run.result())
        engine.wait(run.retry(restart=True))
        with pytest.raises(ironflow.RunFailed):
            engine.wait(run.result())
        events = engine.wait(engine.store.journal(run.id))
    assert {event.kind for event in events} >= {j.RUN_RETRYING, j.RUN_COMPENSATING, j.RUN_REOPENED, j.STEP_SKIPPED}
    assert [(event.kind, event.data()) for event in events if event.data().keys() - {*PAYLOADS[event.kind]}] == []


def test_every_tag_of_a_value_is_explained() -> None:
    told = DOCUMENT["info"]["description"]
    assert [tag for tag in tags._MAKERS if not re.search(rf"{re.escape(tag)}[`\"]", told)] == []


async def test_the_document_of_a_server_states_its_own_limit_of_bodies(api: Api) -> None:
    served = (await api.ask("GET", "/openapi.json")).json
    refused = served["paths"]["/api/v1/runs"]["post"]["responses"]["413"]["description"]
    assert "5,000 bytes" in refused
    assert "5,000 bytes" in served["info"]["description"]
    assert "2,097,152 bytes" in DOCUMENT["info"]["description"]


async def test_what_holds_a_run_is_told_in_one_form_with_facts_for_programs(api: Api) -> None:
    (hold,) = kinds_of(SCHEMAS["RunWhole"]["properties"]["hold"])
    assert hold == {"$ref": "#/components/schemas/Hold"}
    key = await api.key()
    assert await answer(api.store, create("r1")) == APPLIED
    assert (await api.ask("GET", "/runs/r1", key)).json["hold"] is None
    assert (await api.ask("POST", "/runs/r1/pause", key)).status == 200
    held = (await api.ask("GET", "/runs/r1", key)).json["hold"]
    assert held in (await api.ask("GET", "/runs/r1/why", key)).json
    assert held.keys() == SCHEMAS["Hold"]["properties"].keys()
    assert (held["code"], held["details"]["reason"], held["until"]) == ("PAUSED", "PAUSED_BY_OPERATOR", None)
    assert held["details"]["by"].startswith("org admin (key_")


async def test_a_step_of_a_kind_that_nobody_knows_is_shown_as_an_ordinary_one(api: Api) -> None:
    strange = start("r1")
    strange.events[-1].payload = '{"kind": "quantum"}'
    assert await answer(api.store, strange) == APPLIED
    assert await answer(api.store, leave("r1", 4, "completed")) == APPLIED
    (step,) = (await api.ask("GET", "/runs/r1/steps", await api.key())).json["items"]
    assert step["kind"] == steps.TOOL
