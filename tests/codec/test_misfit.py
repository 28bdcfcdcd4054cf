"""What could never fit a declared schema is refused where the code is not, and nothing that the worker would take."""

from __future__ import annotations

import enum
import ipaddress
import json
import uuid
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    Json,
    OnErrorOmit,
    PlainValidator,
    RootModel,
    SkipValidation,
    WithJsonSchema,
)
from typing_extensions import TypedDict

from ironflow.codec.annotations import allows_extra
from ironflow.codec.misfit import misfit, unnamed
from ironflow.codec.schema import schema_of
from ironflow.codec.values import codec_for, encode_any
from ironflow.errors import PayloadError


class Color(enum.Enum):
    RED = 1

    @classmethod
    def _missing_(cls, value: object) -> Color | None:
        return cls.RED if value == "red" else None


class Size(enum.IntEnum):
    S = 1
    L = 2


@dataclass
class Item:
    name: str
    count: int = 1
    price: Decimal = Decimal(1)


@dataclass
class Basket:
    owner: str
    items: list[Item] = field(default_factory=list)
    gift: Item | None = None
    by_name: dict[str, Item] = field(default_factory=dict)
    either: int | Item = 0
    pair: tuple[Item, int] | None = None


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Coercing(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True, ser_json_timedelta="float")
    a: str
    b: timedelta = timedelta()


class ByHand(BaseModel):
    model_config = ConfigDict(json_schema_extra={"type": "integer"})
    a: int


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    a: int = Field(alias="A")


class Part(TypedDict, total=False):
    a: int


class Point(NamedTuple):
    x: int
    y: float = 0


KINDS: list[Any] = [
    int, float, bool, str, None, Decimal, Fraction, complex, bytes, uuid.UUID, Path, ByteSize, Json[int], Color, Size,
    date, datetime, timedelta, ipaddress.IPv4Address, ipaddress.IPv4Network, Literal[1, "a", True], Literal[Size.L],
    Annotated[int, Field(gt=3)], Annotated[str, Field(coerce_numbers_to_str=True)], OnErrorOmit[int], RootModel[int],
    Annotated[int, SkipValidation], Annotated[str, WithJsonSchema({"type": "object"})],
    Annotated[int, BeforeValidator(lambda given: 1)], Annotated[bool, PlainValidator(lambda given: True)],
    Annotated[Any, Field(json_schema_extra={"type": "integer"})],
    Item, Basket, Closed, Open, Coercing, ByHand, Renamed, Part, Point, tuple[int, str],
]  # fmt: skip

SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 2, 5, 10**20, 5.0, 5.5, 1e300, "", "x", "5", " 5 ", "5.0", "5.5", "1_000", "1e3",
     "+5", "0x10", "5.", ".5", "٥", "inf", "NaN", "true", "Yes", "on", "t", "null", "red", "P1D", "2026-01-02"]
)  # fmt: skip
NAMES = st.sampled_from(
    ["a", "A", "b", "x", "y", "name", "count", "price", "owner", "items", "gift", "by_name", "pair"]
)
VALUES = st.recursive(
    SCALARS | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=8,
)
ANNOTATIONS = st.recursive(
    st.sampled_from(KINDS),
    lambda inner: st.one_of(
        inner.map(list.__class_getitem__),
        inner.map(lambda one: dict.__class_getitem__((str, one))),
        st.tuples(inner, inner).map(lambda two: Union[two]),  # noqa: UP007 - None | None is an error
    ),
    max_leaves=3,
)


@given(ANNOTATIONS, VALUES)
@settings(max_examples=1_500, deadline=None)
def test_what_is_refused_by_the_schema_is_refused_by_the_worker(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    schema = schema_of(codec)
    assert schema is not None
    if misfit(json.loads(json.dumps(schema)), value, "input") is not None:
        with pytest.raises(PayloadError):
            codec.decode(encode_any(value))


@given(ANNOTATIONS, VALUES)
@settings(max_examples=500, deadline=None)
def test_a_field_that_is_refused_by_name_is_refused_by_the_code(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    schema = schema_of(codec)
    if misfit(schema, value, "input") is None and unnamed(schema, value, "input"):
        try:
            codec.validate(value)
        except PayloadError:
            return
        # Beside a model that takes any field, the code looks at less than the schema says.
        assert codec.unknown_fields(value) or allows_extra(annotation)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (complex, 5),
        (date, 0),
        (ipaddress.IPv4Address, 5),
        (Color, "red"),
        (list[OnErrorOmit[int]], ["x"]),
        (Annotated[int, SkipValidation], "x"),
        (Annotated[str, WithJsonSchema({"type": "object"})], "x"),
        (Annotated[str, Field(coerce_numbers_to_str=True)], 5),
        (Coercing, {"a": 5, "b": "P1D"}),
        (ByHand, {"a": 1}),
    ],
)
def test_what_the_worker_takes_beyond_its_schema_is_not_refused(annotation: Any, value: Any) -> None:
    codec_for(annotation).validate(value)
    assert misfit(schema_of(codec_for(annotation)), value, "input") is None


@pytest.mark.parametrize("annotation", [int, float, bool, str])
@given(value=VALUES)
@settings(max_examples=300, deadline=None)
def test_a_scalar_is_refused_exactly_where_the_worker_refuses_it(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    try:
        codec.decode(encode_any(value))
        takes = True
    except PayloadError:
        takes = False
    assert (misfit(schema_of(codec), value, "input") is None) is takes


@pytest.mark.parametrize(
    ("annotation", "value", "problem"),
    [
        (int, {"a": 1}, "input: must be a whole number, not an object"),
        (int, "x", "input: must be a whole number, not text"),
        (int, 5.5, "input: must be a whole number, not 5.5"),
        (float, [1], "input: must be a number, not a list"),
        (bool, 5, "input: must be true or false, not a number"),
        (str, 5, "input: must be text, not a number"),
        (date, {"a": 1}, "input: must be text, not an object"),
        (int | None, "x", "input: must be a whole number, not text"),
        (list[Item], [{"name": "a", "count": "many"}], "input[0].count: must be a whole number, not text"),
        (Closed, {"a": 1, "b": 2}, "input.b: no such field"),
    ],
)
def test_a_refusal_names_the_place_and_what_is_asked_for(annotation: Any, value: Any, problem: str) -> None:
    found = misfit(schema_of(codec_for(annotation)), value, "input")
    assert found is not None
    assert f"{found.place}: {found.problem}" == problem


def test_what_is_stored_with_a_tag_is_left_to_the_worker() -> None:
    for annotation in (int, Item, list[int]):
        assert misfit(schema_of(codec_for(annotation)), {"$decimal": "5"}, "input") is None


ITEM = {"name": "pen"}


@pytest.mark.parametrize(
    ("annotation", "value", "fields"),
    [
        (Basket, {"owner": "o", "itms": [ITEM]}, ["input.itms"]),
        (list[Item], [ITEM, {**ITEM, "cnt": 1, "prc": 2}], ["input[1].cnt", "input[1].prc"]),
        (Basket, {"owner": "o", "gift": {**ITEM, "x": 1}}, ["input.gift.x"]),
        (Basket, {"owner": "o", "by_name": {"any": {**ITEM, "x": 1}}}, ["input.by_name.any.x"]),
        (Basket, {"owner": "o", "either": {**ITEM, "x": 1}}, ["input.either.x"]),
        (Basket, {"owner": "o", "pair": [{**ITEM, "x": 1}, 2]}, ["input.pair[0].x"]),
        (Basket, {"owner": "o", "either": 3, "gift": None}, []),
        (Part, {"b": 1}, ["input.b"]),
        (Item | Part, {"a": 1}, []),
        (Open, {"a": 1, "b": 2}, []),
        (Renamed, {"a": 1, "b": 2}, []),
        (dict[str, int], {"b": 1}, []),
        (Any, {"b": 1}, []),
        (Item, {**ITEM, "$x": 1}, []),
    ],
)  # fmt: skip
def test_a_field_that_no_property_is_for_is_named_and_no_misfit(annotation: Any, value: Any, fields: list[str]) -> None:
    schema = schema_of(codec_for(annotation))
    assert misfit(schema, value, "input") is None
    assert unnamed(schema, value, "input") == fields


@pytest.mark.parametrize(
    "schema",
    [{"type": "object"}, {"type": "object", "properties": {"a": {}}, "patternProperties": {"": {}}},
     {"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]}, {"properties": {"a": {}}, "$ref": "#/$defs/b"},
     {"properties": {"a": {}}, "additionalProperties": True}, {"properties": 1}, {"prefixItems": 1}, True, None],
)  # fmt: skip
def test_a_schema_that_names_its_fields_in_another_way_refuses_none(schema: Any) -> None:
    assert unnamed(schema, {"b": 1}, "input") == []
    assert unnamed(schema, [{"b": 1}], "input") == []
    assert misfit(schema, {"b": 1}, "input") is None


def test_a_schema_without_an_end_and_a_large_value_name_nothing() -> None:
    endless = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}] * 2}}, "$ref": "#/$defs/a"}
    assert unnamed(endless, {"a": 1}, "input") == []
    closed = {"type": "array", "items": {"type": "object", "properties": {}}}
    assert unnamed(closed, [{}] * 100_000 + [{"a": 1}], "input") == []
