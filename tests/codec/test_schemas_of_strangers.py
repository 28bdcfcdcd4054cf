"""JSON schemas that somebody else wrote: none of them takes a node long, and one that cannot be read is refused."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

import pytest

from ironflow.codec.misfit import misfit
from ironflow.codec.schema import schema_of, takes_null
from ironflow.codec.strange import LONGEST, problem
from ironflow.codec.values import codec_for
from ironflow.engine.declared import Declared, checked
from ironflow.errors import InvalidInput


def doubling(depth: int, kind: str) -> dict[str, Any]:
    """A schema of `depth` definitions, each of which names the next one twice."""
    links = {f"a{i}": {kind: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(depth)}
    last = {"type": "object"} if kind == "anyOf" else True
    return {"$defs": {**links, f"a{depth}": last}, kind: [{"$ref": "#/$defs/a0"}]}


def endless(kind: str) -> dict[str, Any]:
    arms = {kind: [{"$ref": "#/$defs/a"}] * 2}
    return {**arms, "$defs": {"a": arms}}


#: each is a few kilobytes, and was to be followed for longer than the universe has been there
POISON = [doubling(60, "allOf"), doubling(60, "anyOf"), endless("anyOf"), endless("oneOf")]


@pytest.mark.parametrize("schema", POISON)
def test_a_schema_that_multiplies_takes_no_time_where_it_is_used_and_is_refused_where_it_comes_in(schema: Any) -> None:
    began = time.process_time()
    takes_null(schema)
    misfit(schema, 1, "input")
    misfit(schema, {"a": 1}, "input")
    row = {"name": "w", "version": "1", "worker_tags": "", "definition": json.dumps({"input_schema": schema})}
    Declared(row)
    with pytest.raises(InvalidInput, match="the definition of workflow w is not usable: input_schema"):
        checked("w", {"input_schema": schema})
    assert time.process_time() - began < 5


def test_a_long_chain_of_references_is_refused_and_harmless() -> None:
    chain = {"$defs": {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(1_500)}, "$ref": "#/$defs/a0"}
    takes_null(chain)
    assert misfit(chain, 1, "input") is None
    assert "one after the other" in str(problem(chain))


def test_a_long_reference_is_searched_for_once() -> None:
    far = "#" + "/a" * 30_000
    schema = {"$defs": {"a": {"$ref": far}}, "a": {}, "type": "array", "items": {"$ref": "#/$defs/a"}}
    began = time.process_time()
    assert misfit(schema, [1] * 50_000, "input") is None
    assert time.process_time() - began < 5


def test_many_arms_before_a_large_value_take_no_longer_than_a_few() -> None:
    names = [f"n{i}" for i in range(3_000)]
    schema = {"$defs": {"a": {"type": "object", "required": [*names, "z"]}}, "anyOf": [{"$ref": "#/$defs/a"}] * 3_000}
    began = time.process_time()
    misfit(schema, dict.fromkeys(names, 1), "input")
    assert time.process_time() - began < 1


def test_what_lies_far_into_a_large_value_is_left_to_the_worker() -> None:
    schema = {"type": "array", "items": {"type": "object"}}
    assert misfit(schema, [{}] * 1_000 + [1], "input") is not None
    assert misfit(schema, [{}] * 1_000_000 + [1], "input") is None


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"required": [["x"]]}, "input_schema.required"),
        ({"required": "x"}, "input_schema.required"),
        ({"properties": []}, "input_schema.properties"),
        ({"properties": {"a": {"properties": {"b": 1}}}}, "input_schema.properties.a.properties.b"),
        ({"anyOf": {}}, "input_schema.anyOf"),
        ({"oneOf": [{}, 3]}, "input_schema.oneOf[1]"),
        ({"type": {"a": 1}}, "input_schema.type"),
        ({"type": ["null", []]}, "input_schema.type"),
        ({"enum": 1}, "input_schema.enum"),
        ({"$ref": 1}, "input_schema.$ref"),
        ({"$defs": {"a": {"required": [1]}}}, "input_schema.$defs.a.required"),
        ({"$ref": "#/x/y", "x": {"y": {"required": [1]}}}, "input_schema.$ref"),
        ({"items": {"additionalProperties": 1}}, "input_schema.items.additionalProperties"),
        ({"a": "x" * LONGEST}, "input_schema has"),
    ],
)
def test_a_schema_that_is_none_is_refused_with_the_place(schema: Any, place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        checked("w", {"input_schema": schema})
    assert place in refused.value.message
    assert len(refused.value.message) < 400


@pytest.mark.parametrize(
    "schema",
    [
        {}, {"$ref": "https://elsewhere"}, {"$ref": "#/nowhere"}, {"anyOf": []}, {"enum": [None, [1]]}, {"const": {}},
        {"default": {"required": [["x"]]}, "examples": [{"type": 1}]}, {"items": [{}, True], "type": ["array", "null"]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"properties": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {}]}}}}},
        {"properties": {"type": {"type": "string"}, "required": True}},
    ],
)  # fmt: skip
def test_what_may_stand_in_a_schema_is_let_through(schema: Any) -> None:
    assert problem(schema) is None


def test_the_schema_of_an_annotation_that_is_too_large_to_declare_is_left_out() -> None:
    many = Literal[tuple(f"{i:0>100}" for i in range(1_000))]  # type: ignore[valid-type]
    assert schema_of(codec_for(many)) is None
    few = schema_of(codec_for(Literal["a", "b"]))
    assert few is not None
    assert problem(few) is None


def test_a_required_name_that_is_none_refuses_nothing_where_it_was_stored_already() -> None:
    assert misfit({"type": "object", "required": [["x"]]}, {"a": 1}, "input") is None
