"""Runs of workflows whose code is elsewhere: what a worker declares is enough to start one as its code would."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from ironflow.codec.misfit import misfit
from ironflow.codec.schema import schema_of, takes_null
from ironflow.codec.values import codec_for
from ironflow.context import Context, Lane, workflow
from ironflow.engine.declared import Declared, checked
from ironflow.engine.definitions import WorkflowSpec, seen
from ironflow.engine.starting import Start, new_run
from ironflow.errors import InvalidInput, PayloadError, PayloadTooLarge
from ironflow.model.ids import split_route
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope

LIMIT = 1 << 20
ACME = Scope("acme", "staging")


@dataclass
class Order:
    number: int
    day: date


@workflow(version="2", compatible=["1"], lane=Lane(3), priority=7, timeout=60, max_recoveries=4, worker_tags=["gpu"])
async def ship(ctx: Context, order: Order) -> None:
    """Send an order out."""


@workflow
async def tick(ctx: Context) -> None:
    pass


@workflow(lane=Lane(1, key=str))
async def one_each(ctx: Context, customer: str) -> None:
    pass


class Odd:
    """A class that pydantic knows nothing of."""


@workflow
async def odd(ctx: Context, given: Odd) -> None:
    pass


def declared(spec: WorkflowSpec) -> Declared:
    """As it comes back from the database."""
    row = seen(spec)
    return Declared(
        {"name": row.name, "version": row.version, "worker_tags": row.worker_tags, "definition": row.definition}
    )


def test_a_run_by_declaration_is_the_run_by_code() -> None:
    options = Start(id="r1", worker_tags=["big"], limits={"api": 2})
    by_code = new_run(ship.spec, Order(1, date(2026, 1, 2)), options, 5, LIMIT, ACME)
    by_name = new_run(declared(ship.spec), {"number": 1, "day": "2026-01-02"}, options, 5, LIMIT, ACME)

    def of(row: RunRow) -> dict[str, Any]:
        return {name: getattr(row, name) for name in RunRow.__slots__ if name != "input_hash"}

    assert of(by_name[0]) == of(by_code[0])
    assert by_name[2] == by_code[2]
    assert (by_name[0].priority, by_name[0].deadline_at, by_name[0].max_recoveries) == (7, 60_005, 4)
    stored = json.dumps(json.loads(by_name[1])["input"])
    assert ship.spec.input.decode(stored) == Order(1, date(2026, 1, 2))


def test_the_scope_of_a_start_is_in_its_row_its_route_and_its_lanes() -> None:
    for spec in (ship.spec, declared(ship.spec)):
        value: Any = Order(1, date(2026, 1, 2)) if spec is ship.spec else {"number": 1, "day": "2026-01-02"}
        row, _, lanes = new_run(spec, value, Start(limits={"api": 2}), 5, LIMIT, ACME)
        assert row.scope == split_route(row.route).scope == ACME
        assert lanes == [("@acme/staging/group:api", 2), ("@acme/staging/workflow:ship", 3)]
        row, _, lanes = new_run(spec, value, Start(limits={"api": 2}), 5, LIMIT)
        assert row.scope == split_route(row.route).scope == DEFAULT
        assert lanes == [("group:api", 2), ("workflow:ship", 3)]


def test_what_a_workflow_declares_of_itself() -> None:
    told = ship.spec.definition()
    assert told["doc"] == "Send an order out."
    assert told["compatible"] == ["1"]
    assert set(told["input_schema"]["properties"]) == {"number", "day"}
    assert told["lanes"] == [{"name": "workflow:ship", "limit": 3}]
    assert json.loads(json.dumps(told)) == told
    assert (tick.spec.definition()["lanes"], tick.spec.definition()["doc"]) == ([], None)
    assert odd.spec.definition()["input_schema"] is None


def test_json_that_looks_like_a_stored_tag_stays_the_json_it_was() -> None:
    given = {"$decimal": "1", "list": [{"$as": ["Order", {}]}]}
    _, created, _ = new_run(declared(odd.spec), given, {}, 5, LIMIT)
    stored = json.dumps(json.loads(created)["input"])
    assert declared(odd.spec).input.decode(stored) == given


def test_an_input_is_refused_where_the_workflow_takes_none() -> None:
    assert new_run(declared(tick.spec), None, {}, 5, LIMIT)[1] == '{"t":5,"input":null}'
    with pytest.raises(InvalidInput, match="takes no input"):
        new_run(declared(tick.spec), {"a": 1}, {}, 5, LIMIT)


def test_a_missing_input_is_refused_where_the_workflow_has_declared_that_it_needs_one() -> None:
    for stored in (False, True):
        row = seen(ship.spec)
        told = Declared({"name": row.name, "version": row.version, "worker_tags": "", "definition": row.definition},
                        stored=stored)  # fmt: skip
        with pytest.raises(InvalidInput, match="workflow ship needs an input, and got none or null") as refused:
            new_run(told, None, {}, 0, LIMIT)
        assert '"number"' in refused.value.hint
        assert refused.value.details["errors"][0]["at"] == "input"
    for spec in (tick.spec, odd.spec):
        new_run(declared(spec), None, {}, 0, LIMIT)


@dataclass
class Basket:
    owner: str
    orders: list[Order]
    gift: Order | None = None
    by_name: dict[str, Order] = field(default_factory=dict)
    parent: Basket | None = None


class Lenient(BaseModel):
    """Takes text as well, and one of its fields under two names: its JSON schema says neither."""

    owner_id: str = Field(alias="ownerId")

    @model_validator(mode="before")
    @classmethod
    def read(cls, given: Any) -> Any:
        return {"owner_id": given} if isinstance(given, str) else given


class TwoNames(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    owner_id: str = Field(alias="ownerId")


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclass
class Anything:
    lenient: Lenient
    point: Point
    words: Annotated[list[str], BeforeValidator(lambda given: given.split() if isinstance(given, str) else given)]


ORDER = {"number": 1, "day": "2026-01-02"}


@pytest.mark.parametrize(
    ("given", "place", "problem"),
    [
        ([], "input", "must be an object, not a list"),
        ({"orders": []}, "input.owner", "field required"),
        ({"owner": "o", "orders": {}}, "input.orders", "must be a list, not an object"),
        ({"owner": "o", "orders": [ORDER, {"number": 1}]}, "input.orders[1].day", "field required"),
        ({"owner": "o", "orders": [], "gift": {"number": 1}}, "input.gift.day", "field required"),
        ({"owner": "o", "orders": [], "by_name": {"a": ORDER, "b": 3}}, "input.by_name.b", "must be an object, not a"),
        ({"owner": "o", "orders": [], "parent": {"owner": "p"}}, "input.parent.orders", "field required"),
    ],
)
@pytest.mark.parametrize("form", [False, True])
def test_an_input_that_could_never_fit_the_declared_schema_is_refused_with_the_place(
    given: Any, place: str, problem: str, form: bool
) -> None:
    told = {"input_schema": schema_of(codec_for(Basket))}
    row = {"name": "shop", "version": "1", "worker_tags": "", "definition": json.dumps(told)}
    with pytest.raises(PayloadError):
        codec_for(Basket).validate(given)
    with pytest.raises(InvalidInput, match="the input does not fit workflow shop: input") as refused:
        new_run(Declared(row, stored=form), given, {}, 0, LIMIT)
    [error] = refused.value.details["errors"]
    assert error["at"] == place
    assert error["problem"].startswith(f"{place}: {problem}")


@pytest.mark.parametrize(
    ("annotation", "given"),
    [
        (Basket, {"owner": "o", "orders": [], "gift": None, "unknown": 1}),
        (Anything, {"lenient": "me", "point": {"x": 1}, "words": "a b"}),
        (Anything, {"lenient": {"owner_id": "me"}, "point": [1], "words": ["a"]}),
        (Anything, {"lenient": {"ownerId": "me"}, "point": [1, 2], "words": []}),
        (list[TwoNames], [{"owner_id": "me"}, {"ownerId": "me"}]),
        (dict[str, list[int]], {"a": ["1"]}),
        (Order | str | list[Order], "text"),
        (Order | list[Order], [ORDER]),
    ],
)
def test_a_start_by_declaration_is_no_stricter_than_the_code(annotation: Any, given: Any) -> None:
    codec_for(annotation).validate(given)
    assert misfit(schema_of(codec_for(annotation)), given, "input") is None


def test_a_schema_without_an_end_and_one_that_is_none_refuse_nothing() -> None:
    endless = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    for schema in (endless, {"type": "object", "required": 3, "properties": []}, {"$ref": "elsewhere"}, {"anyOf": []}):
        assert misfit(schema, {"a": 1}, "input") is None


@workflow(lane=Lane(2, key=lambda n: str(n)))
async def par(ctx: Context, n: int = 12) -> int:
    return n


@workflow
async def dated(ctx: Context, order: Order = Order(3, date(2026, 1, 2))) -> Order:  # noqa: B008 - it is only encoded
    return order


@workflow
async def wrong(ctx: Context, n: int = "many") -> None:  # type: ignore[assignment]
    pass


def test_the_default_of_the_signature_is_the_input_of_a_start_without_one() -> None:
    assert new_run(par.spec, None, {}, 5, LIMIT)[1:] == ('{"t":5,"input":12}', [("workflow:par:12", 2)])
    assert new_run(par.spec, 0, {}, 5, LIMIT)[1] == '{"t":5,"input":0}'
    row, created, _ = new_run(dated.spec, None, {"id": "r"}, 5, LIMIT)
    for stored in (False, True):
        told = seen(dated.spec)
        by_name = Declared({"name": "dated", "version": "1", "worker_tags": "", "definition": told.definition},
                           stored=stored)  # fmt: skip
        again, by_declaration, _ = new_run(by_name, None, {"id": "r"}, 5, LIMIT)
        assert (by_declaration, again.input_hash) == (created, row.input_hash)
    with pytest.raises(InvalidInput, match=r"the input does not fit workflow wrong: .*Expected: integer"):
        new_run(wrong.spec, None, {}, 5, LIMIT)
    assert wrong.spec.definition()["input_default"] is None


@pytest.mark.parametrize(
    ("annotation", "takes"),
    [
        (int, False), (str | None, True), (None, True), (Any, True), (list[int], False), (Order, False),
        (Order | None, True), (dict[str, Any], False), (Literal["a", None], True), (Literal["a", "b"], False),
        (Literal["a"], False), (int | str, False), (date | list[Order], False), (tuple[int, ...], False),
    ],
)  # fmt: skip
def test_whether_null_fits_is_told_of_the_schemas_that_annotations_make(annotation: Any, takes: bool) -> None:
    schema = schema_of(codec_for(annotation))
    assert schema is not None
    assert takes_null(schema) is takes


@pytest.mark.parametrize(
    ("schema", "takes"),
    [
        ({}, True), (True, True), (False, False), ({"type": ["integer", "null"]}, True), ({"type": ["integer"]}, False),
        ({"$ref": "#"}, True), ({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, True),
        ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}}, False), ({"$ref": "https://x"}, True),
        ({"$ref": "#/nowhere"}, True), ({"allOf": [{}, {"type": "object"}]}, False), ({"const": None}, True),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, True), ({"anyOf": []}, True), ({"anyOf": "x"}, True),
        ({"type": 5}, False), ({"enum": [None]}, True), ({"enum": [1]}, False),
    ],
)  # fmt: skip
def test_whether_null_fits_is_told_of_any_schema_that_a_worker_may_send(schema: Any, takes: bool) -> None:
    assert takes_null(schema) is takes


def test_an_input_over_the_limit_is_refused_with_both_sizes() -> None:
    with pytest.raises(InvalidInput, match=r"2,0\d\d bytes|2\.0 KiB|100") as refused:
        new_run(declared(ship.spec), "x" * 2_000, {}, 5, 100)
    assert isinstance(refused.value.__cause__, PayloadTooLarge)


def test_a_lane_that_depends_on_the_input_needs_the_code() -> None:
    with pytest.raises(InvalidInput, match="the lane of workflow one_each depends on the input"):
        new_run(declared(one_each.spec), "ann", {}, 5, LIMIT)


def test_a_worker_of_an_older_release_declares_nothing_and_its_workflows_start() -> None:
    found = Declared({"name": "ship", "version": "2", "worker_tags": "gpu", "definition": None})
    row, _, lanes = new_run(found, {"anything": 1}, {}, 5, LIMIT)
    assert (row.priority, row.deadline_at, row.max_recoveries, lanes) == (0, None, None, [])
    assert split_route(row.route).tags == {"gpu"}


@pytest.mark.parametrize("spec", [ship.spec, tick.spec, one_each.spec, odd.spec], ids=lambda spec: spec.name)
def test_what_a_workflow_declares_passes_the_check_as_it_is(spec: WorkflowSpec) -> None:
    assert checked(spec.name, json.loads(json.dumps(spec.definition()))) == spec.definition()


def test_what_a_definition_does_not_say_does_not_apply() -> None:
    told = checked("ship", {"unheard": "of"})
    assert Declared({"name": "ship", "version": "1", "worker_tags": "", "definition": json.dumps(told)}).lanes(1) == []
    assert (told["priority"], told["timeout_ms"], told["compatible"]) == (0, None, [])


@pytest.mark.parametrize(
    "told",
    [[], "x", {"priority": "high"}, {"priority": True}, {"priority": 1 << 60}, {"timeout_ms": 0}, {"timeout_ms": 1.5},
     {"max_recoveries": -1}, {"doc": 1}, {"input_schema": []}, {"compatible": "1"}, {"compatible": ["1", 2]},
     {"compatible": ["1\n"]}, {"lanes": {}}, {"lanes": [{"name": "workflow:ship"}]},
     {"lanes": [{"name": "workflow:ship", "limit": 0}]}, {"lanes": [{"name": "workflow:ship", "limit": True}]},
     {"lanes": [{"name": "workflow:ship", "limit": 1}] * 2}],
)  # fmt: skip
def test_a_definition_of_another_form_is_refused(told: Any) -> None:
    with pytest.raises(InvalidInput):
        checked("ship", told)


@pytest.mark.parametrize("lane", ["@acme/staging/workflow:ship", "group:api", "workflow:tick", "workflow:ship:ann"])
def test_a_worker_cannot_put_its_runs_into_a_lane_of_others(lane: str) -> None:
    with pytest.raises(InvalidInput, match="lanes must be null, or hold the limit of the workflow itself"):
        checked("ship", {"lanes": [{"name": lane, "limit": 1}]})
