"""Which fields of a model were set is a part of its value, and comes back with it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest
from pydantic import BaseModel, model_validator

from ironflow.cli.values import readable
from ironflow.codec.values import codec_for
from ironflow.errors import PayloadRejected

T = TypeVar("T")


@dataclass
class Charge:
    amount: int


@dataclass
class Kept(Generic[T]):
    item: T


class Patch(BaseModel):
    a: int
    b: int | None = None


class Wide(BaseModel, extra="allow"):
    a: int = 1
    patches: list[Patch] = []
    named: dict[str, tuple[int, Patch]] = {}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Patch, Patch(a=1)),
        (Patch, Patch(a=1, b=None)),
        (Patch | None, Patch(a=1)),
        (Charge | Patch, Patch(a=1)),
        (Patch | Wide, Wide(patches=[Patch(a=1), Patch(a=2, b=3)], named={"x": (1, Patch(a=3))})),
        (Wide, Wide()),
        (Wide, Wide.model_validate({"extra": 1, "$b": {1: 2}})),
        (list[Kept[Patch]], [Kept(Patch(a=1))]),
        (dict[int, Patch], {1: Patch(a=1)}),
        (deque[Patch], deque([Patch(a=1)])),
        (tuple[Patch, ...], (Patch(a=1),)),
    ],
)
def test_a_model_comes_back_with_the_same_fields_set(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    text, copy = codec.snapshot(value)
    for back in (copy, codec.decode(text)):
        assert back == value
        assert codec.encode(back) == text
        assert _unset(back) == _unset(value)


def _unset(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(exclude_unset=True)
    if isinstance(value, dict):
        return {key: _unset(item) for key, item in value.items()}
    return [_unset(getattr(item, "item", item)) for item in value]


def test_a_default_that_was_not_set_is_recorded_as_it_was_then() -> None:
    class Price(BaseModel):
        amount: int
        currency: str = "USD"

    text = codec_for(Price).encode(Price(amount=1))
    assert text == '{"amount":1,"currency":"USD","$unset":["currency"]}'
    Now = type("Price", (Price,), {"__annotations__": {"currency": str}, "currency": "EUR"})  # noqa: N806
    back = codec_for(Now).decode(text)
    assert (back.currency, back.model_fields_set) == ("USD", {"amount"})
    assert codec_for(dict[str, Any]).decode(text) == {"amount": 1, "currency": "USD"}
    assert type(codec_for(Any).decode(text)) is dict


def test_a_model_that_says_something_else_of_its_fields_when_it_is_read_is_refused() -> None:
    class Odd(BaseModel):
        a: int = 1

        @model_validator(mode="wrap")
        @classmethod
        def _read(cls, given: Any, handler: Any) -> Any:
            return given if isinstance(given, cls) else cls.model_construct(_fields_set=set(), **given)

    with pytest.raises(PayloadRejected, match="this Odd would come back changed"):
        codec_for(Odd).encode(Odd.model_construct(a=2))


def test_a_model_in_a_set_comes_back_with_all_its_fields_set() -> None:
    class Frozen(BaseModel, frozen=True):
        a: int
        b: int = 2

    codec = codec_for(set[Frozen])
    (back,) = codec.copy({Frozen(a=1)})
    assert back == Frozen(a=1)
    assert back.model_fields_set == {"a", "b"}


def test_a_person_is_shown_the_fields_alone() -> None:
    assert readable({"a": [{"b": 1, "$unset": ["b"]}]}) == {"a": [{"b": 1}]}
