"""A recorded value is read as the class it was, or refused: never as another one that has the same fields."""

from __future__ import annotations

import dataclasses
import typing
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import pytest
import typing_extensions
from pydantic import BaseModel, Discriminator, Field, RootModel, Tag
from tests.codec.samples import Cat, Circle, Dog, Square

from ironflow.codec.arguments import Arguments
from ironflow.codec.values import codec_for
from ironflow.errors import PayloadRejected

T = TypeVar("T")


@dataclass
class Charge:
    amount: int


@dataclass(frozen=True)
class Refund:
    amount: int


@dataclass(frozen=True)
class GiveBack:
    amount: int


@dataclass(frozen=True)
class Noted:
    amount: int
    note: str = ""


@dataclass
class Named:
    amount: str


@dataclass
class Kept(Generic[T]):
    item: T
    n: int = 0


class ChargeModel(BaseModel):
    amount: int


class RefundModel(BaseModel):
    amount: int


class GiveBackModel(BaseModel):
    amount: int


class ChargePair(NamedTuple):
    amount: int
    note: str


class RefundPair(NamedTuple):
    amount: int
    note: str


class GiveBackPair(NamedTuple):
    amount: int
    note: str


class Bag(typing_extensions.TypedDict):
    amount: int
    what: typing_extensions.NotRequired[str]


Alias = typing_extensions.TypeAliasType("Alias", Charge | Refund)

KINDS: list[tuple[Any, Any, Any, Any]] = [
    (Charge, Refund, GiveBack, Refund(5)),
    (ChargeModel, RefundModel, GiveBackModel, RefundModel(amount=5)),
    (ChargePair, RefundPair, GiveBackPair, RefundPair(5, "n")),
]
#: How an annotation holds what is recorded, and the path of it.
PLACES: list[tuple[Any, Any, str]] = [
    (lambda t: t, lambda v: v, ""),
    (lambda t: t | None, lambda v: v, ""),
    (lambda t: list[t], lambda v: [v], r"\[0\]"),
    (lambda t: list[t] | None, lambda v: [v], r"\[0\]"),
    (lambda t: Sequence[t], lambda v: [v], r"\[0\]"),
    (lambda t: deque[t], lambda v: deque([v]), r"\[0\]"),
    (lambda t: tuple[int, t], lambda v: (1, v), r"\[1\]"),
    (lambda t: tuple[t, ...], lambda v: (v,), r"\[0\]"),
    (lambda t: dict[str, t], lambda v: {"k": v}, r"\.k"),
    (lambda t: Mapping[str, list[t]], lambda v: {"k": [v]}, r"\.k\[0\]"),
    (lambda t: Kept[t], lambda v: Kept(v), r"\.item"),
    (lambda t: Kept[list[t]], lambda v: Kept([v]), r"\.item\[0\]"),
    (lambda t: Annotated[t, "said of it"], lambda v: v, ""),
]


@pytest.mark.parametrize(("first", "second", "other", "value"), KINDS)
@pytest.mark.parametrize(("around", "held", "path"), PLACES)
def test_a_class_that_was_renamed_or_removed_is_not_read_as_another(
    first: Any, second: Any, other: Any, value: Any, around: Any, held: Any, path: str
) -> None:
    text = codec_for(around(first | second)).encode(held(value))
    assert codec_for(around(first | second)).decode(text) == held(value)
    assert codec_for(around(other | second | first)).decode(text) == held(value)  # widened, and in another order
    for now in (first | other, first, other, Any, dict[str, Any]):
        with pytest.raises(PayloadRejected, match=f"^result{path}: it was stored as {second.__name__}"):
            codec_for(around(now)).decode(text, path="result")


@pytest.mark.parametrize(("first", "second", "other", "value"), KINDS)
@pytest.mark.parametrize(("around", "held", "path"), PLACES)
def test_a_value_stored_before_there_were_several_classes_is_not_guessed(
    first: Any, second: Any, other: Any, value: Any, around: Any, held: Any, path: str
) -> None:
    text = codec_for(around(second)).encode(held(value))
    assert codec_for(around(second)).decode(text) == held(value)
    assert codec_for(around(second | None)).decode(text) == held(value)
    for now in (first | second, second | other, first | second | None):
        with pytest.raises(PayloadRejected, match=f"^result{path}: it could be .*{second.__name__}"):
            codec_for(around(now)).decode(text, path="result")


def test_a_class_beside_a_dict_comes_back_as_it_was_and_a_dict_that_would_do_for_it_is_refused_at_once() -> None:
    for other in (Bag, dict[str, Any], dict, Any):
        codec = codec_for(other | Charge | None)
        assert codec.copy(Charge(5)) == Charge(5)
        assert codec.copy({"amount": 5, "what": "x"}) == {"amount": 5, "what": "x"}
        with pytest.raises(PayloadRejected, match=r"^value: it could be .* or Charge"):
            codec.copy({"amount": 5})
    assert codec_for(list[Charge] | list[Refund]).copy([Refund(5)]) == [Refund(5)]


@pytest.mark.parametrize(("first", "second", "other", "value"), KINDS)
def test_the_only_class_may_be_renamed(first: Any, second: Any, other: Any, value: Any) -> None:
    back = codec_for(list[other] | None).decode(codec_for(list[second] | None).encode([value]))
    assert type(back[0]) is other


def test_a_union_that_shrinks_to_the_class_of_the_value_reads_it() -> None:
    text = codec_for(list[Charge | Refund]).encode([Refund(5)])
    assert codec_for(list[Refund]).decode(text) == [Refund(5)]


def test_a_class_known_elsewhere_is_not_taken_for_the_one_of_its_place() -> None:
    @dataclass
    class Both:
        one: Charge | Refund
        two: Charge | Refund

    @dataclass
    class Narrow:
        one: Charge
        two: Charge | Refund

    text = codec_for(Both).encode(Both(Refund(1), Refund(2)))
    with pytest.raises(PayloadRejected, match=r"^value\.one"):
        codec_for(Narrow).decode(text)
    assert codec_for(Narrow).decode('{"one":{"amount":1},"two":{"$as":["Refund",{"amount":2}]}}') == Narrow(
        Charge(1), Refund(2)
    )


@pytest.mark.parametrize(
    ("annotation", "text", "value"),
    [
        (Charge | Named, '{"amount":5}', Charge(5)),
        (Charge | Named, '{"amount":"5"}', Named("5")),
        (Charge | Noted, '{"amount":5,"note":"x"}', Noted(5, "x")),
        (list[Charge | Circle], '[{"r":1},{"amount":2}]', [Circle(1), Charge(2)]),
        (Cat | Dog, '{"kind":"dog","n":1}', Dog(n=1)),
        (Annotated[Cat | Dog, Field(discriminator="kind")], '{"kind":"dog","n":1}', Dog(n=1)),
        (
            Annotated[
                Annotated[Charge, Tag("c")] | Annotated[Refund, Tag("r")],
                Discriminator(lambda v: "r" if isinstance(v, Refund) or v["amount"] < 0 else "c"),
            ],
            '{"amount":-5}',
            Refund(-5),
        ),
        (Charge | dict[str, Any], '{"other":5}', {"other": 5}),
        (Charge | Bag, '{"amount":5,"what":"x"}', {"amount": 5, "what": "x"}),
        (list[Charge] | list[Refund], "[]", []),
        (list[Charge] | tuple[str, ...], "[]", []),
        (list[Charge] | tuple[Charge, ...], '[{"amount":5}]', [Charge(5)]),
        (list[Charge] | tuple[Charge, ...], '{"$tuple":[{"amount":5}]}', (Charge(5),)),
        (Bag | dict[str, int], '{"amount":5}', {"amount": 5}),
        (Charge | list[Charge], '[{"amount":5}]', [Charge(5)]),
        (list[Charge | Circle] | list[Refund | Square], '[{"$as":["Square",{"r":1}]}]', [Square(1)]),
    ],
)
def test_a_value_that_says_by_its_parts_what_it_is_is_read(annotation: Any, text: str, value: Any) -> None:
    back = codec_for(annotation).decode(text)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Charge | Refund, '{"amount":5}'),
        (Charge | Noted, '{"amount":5}'),  # Noted may have had no note when it was stored
        (Charge | Refund, '{"amount":5,"gone":1}'),
        (Cat | Dog, '{"n":1}'),
        (Bag | Charge, '{"amount":"5"}'),
        (Charge | dict[str, Any], '{"amount":5}'),
        (Charge | dict, '{"amount":5,"other":5}'),
        (Charge | Any, '{"amount":5}'),
        (list[Charge] | list[Refund], '[{"amount":5}]'),
        (ChargePair | list[Any] | int, '[5,"n"]'),
        (Charge | Refund | str, '{"amount":5}'),
        (frozenset[Noted | Refund], '{"$frozenset":[{"amount":5}]}'),
        (Alias, '{"amount":5}'),
        (list[Alias], '[{"amount":5}]'),
        (typing.NewType("New", Kept[Alias]), '{"item":{"amount":5}}'),
    ],
)
def test_a_value_that_more_than_one_class_would_take_is_refused(annotation: Any, text: str) -> None:
    with pytest.raises(PayloadRejected, match="it could be"):
        codec_for(annotation).decode(text)


def test_a_union_in_a_field_is_found_by_its_name_and_by_its_alias() -> None:
    class Order(BaseModel):
        what: Charge | Refund = Field(alias="w")
        sure: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None

    for name in ("what", "w"):
        with pytest.raises(PayloadRejected, match=rf"^value\.{name}: it could be Charge or Refund"):
            codec_for(Order).decode(f'{{"{name}":{{"amount":5}}}}')


def test_two_classes_of_one_name_are_told_apart_by_their_modules() -> None:
    there = dataclasses.make_dataclass("Charge", [("amount", int)])
    there.__module__, there.__qualname__ = "elsewhere", "Charge"
    codec = codec_for(Charge | there)
    text = codec.encode(there(5))
    assert text == '{"$as":["elsewhere.Charge",{"amount":5}]}'
    assert type(codec.decode(text)) is there
    for now in (Charge, Charge | Refund):
        with pytest.raises(PayloadRejected, match=r"stored as elsewhere\.Charge"):
            codec_for(now).decode(text)
    assert type(codec_for(there | Refund).decode(text)) is there


def test_two_classes_that_nothing_tells_apart_are_refused_at_once() -> None:
    one, other = (dataclasses.make_dataclass("Twin", [("amount", int)]) for _ in range(2))
    with pytest.raises(PayloadRejected, match="it could be Twin"):
        codec_for(one | other).encode(one(5))
    with pytest.raises(PayloadRejected, match="expected Twin, got Twin"):
        codec_for(one | other).encode(other(5))


def test_a_value_whose_class_has_other_fields_now_is_refused_with_their_place() -> None:
    with pytest.raises(PayloadRejected, match=r"^result\[0\]\.amount: field required"):
        codec_for(list[Charge | Refund]).decode('[{"$as":["Refund",{"x":1}]}]', path="result")


def test_arguments_are_held_to_the_same_rule() -> None:
    def before(what: Charge | Refund, *more: Refund) -> None: ...
    def after(what: Charge | GiveBack, *more: Charge | Refund) -> None: ...

    with pytest.raises(PayloadRejected, match=r"^args\.what: it was stored as Refund"):
        Arguments(after).decode(Arguments(before).encode((Refund(5),), {}))
    with pytest.raises(PayloadRejected, match=r"^args\.more\[0\]: it could be Charge or Refund"):
        Arguments(after).decode(Arguments(before).encode((Charge(5), Refund(5)), {}))


Json = typing_extensions.TypeAliasType("Json", dict[str, "Json"] | list["Json"] | Charge | int)  # type: ignore[misc]
Of = typing_extensions.TypeAliasType("Of", list[T] | Charge, type_params=(T,))  # type: ignore[misc]


class Several(RootModel[list[Charge | Refund]]):
    pass


class Sack(typing_extensions.TypedDict):
    what: Charge | Refund
    more: typing_extensions.NotRequired[list[Charge | Refund]]


class Two(NamedTuple):
    n: int
    what: Charge | Refund
    more: int = 0


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (Json, {"a": [Charge(1), {"b": 2}]}, None),
        (Of[Refund], [Refund(1)], None),
        (Several, Several([Refund(1)]), '[{"amount":5}]'),
        (list[Several], [Several([Refund(1)])], '[[{"amount":5}]]'),
        (typing.Final[Charge | Refund], Refund(1), '{"amount":5}'),
        (Sack, {"what": Refund(1)}, '{"what":{"amount":5}}'),
        (
            Sack,
            {"what": Refund(1), "more": [Charge(1)]},
            '{"what":{"$as":["Refund",{"amount":1}]},"more":[{"amount":5}]}',
        ),
        (Two, Two(1, Refund(1)), '[1,{"amount":5}]'),
    ],
)
def test_a_union_is_found_wherever_it_is_written(annotation: Any, value: Any, text: str | None) -> None:
    codec = codec_for(annotation)
    assert codec.decode(codec.encode(value)) == value
    if text is not None:
        with pytest.raises(PayloadRejected, match="it could be"):
            codec.decode(text)


def test_a_chain_of_unions_is_read_in_one_go() -> None:
    @dataclass
    class Add:
        left: Add | Mul | int
        right: int

    @dataclass
    class Mul:
        left: Add | Mul | int
        right: int

    for cls in (Add, Mul):
        cls.__annotations__ = {"left": Add | Mul | int, "right": int}
    Add, Mul = dataclass(Add), dataclass(Mul)  # noqa: N806
    value: Any = 1
    for n in range(40):
        value = (Add, Mul)[n % 2](value, n)
    codec = codec_for(Add | Mul)
    assert codec.decode(codec.encode(value)) == value


def test_the_literal_of_a_kind_decides_also_where_it_was_not_set() -> None:
    text = codec_for(Dog).encode(Dog(n=1))
    assert codec_for(Cat | Dog).decode(text) == Dog(n=1)
