"""Classes as authors write them, values that must be kept, and values that must be refused."""

# ruff: noqa: DTZ001 - naive datetimes are values like any other

from __future__ import annotations

import collections
import datetime as dt
import enum
import ipaddress
import pathlib
import threading
import typing
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PrivateAttr,
    RootModel,
    SecretStr,
    computed_field,
    field_validator,
)
from pydantic_core import core_schema

T = TypeVar("T")
BERLIN = ZoneInfo("Europe/Berlin")


class Color(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclass
class One:
    only: int


@dataclass
class Circle:
    r: int


@dataclass
class Square:
    r: int


@dataclass
class Ball(Circle):
    z: int = 1


@dataclass
class Drawing:
    shapes: list[Circle | Square]
    named: dict[str, Circle | Square] = field(default_factory=dict)
    pair: tuple[Circle | Square, ...] = ()


@dataclass
class Page:
    url: str
    at: dt.datetime
    tags: list[str] = field(default_factory=list)
    price: Decimal = Decimal("1.10")
    raw: bytes = b""
    shape: Circle | Square | None = None


@dataclass
class Flat:
    name: str
    n: int
    rate: float
    ok: bool
    tags: list[str]
    counts: dict[str, int]
    points: list[Point]
    note: str | None = None


@dataclass
class Tree:
    kids: list[Tree]
    value: int


@dataclass(slots=True)
class Slotted:
    a: int
    b: int


@dataclass
class Doubled:
    a: int
    b: int

    def __post_init__(self) -> None:
        self.a *= 2


class Order(BaseModel):
    number: int = Field(alias="no")
    tags: set[str]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def label(self) -> str:
        return f"#{self.number}"


class StrictOrder(BaseModel, strict=True):
    lines: tuple[Order, ...]


class Extra(BaseModel, extra="allow"):
    a: int


class Hidden(BaseModel):
    a: int
    _cache: int = PrivateAttr(1)


class Upper(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def _upper(cls, name: str) -> str:
        return name.upper()


class Login(BaseModel):
    password: SecretStr


class Numbers(RootModel[list[int]]):
    pass


class Box(BaseModel, Generic[T]):
    item: T


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    n: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    n: int


class Options(typing.TypedDict, total=False):
    a: typing.Required[int]
    when: dt.date
    points: list[Point]


class Pair(NamedTuple):
    a: int
    c: Circle


class Token:
    """A class that explains itself to pydantic."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Token) and other.text == self.text

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(
            lambda v: v if isinstance(v, cls) else cls(v),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda v: v.text),
        )


@dataclass
class Broken:
    a: int
    b: Missing  # type: ignore[name-defined] # noqa: F821 - what a forgotten import looks like


class Unreadable(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("closed")

    def __iter__(self) -> Any:
        raise RuntimeError("closed")

    def __len__(self) -> int:
        return 1


NOW = dt.datetime(2026, 11, 29, 10, 0, 0, 5)

KEPT: list[tuple[Any, Any]] = [
    (str, "a\x00é\u2028😀"), (int, 2**70), (float, 1e-7), (float, -0.0), (bool, True), (None, None),
    (float, 3), (Any, [1, {"a": None}]), (object, {"a": [1.5]}), (dict, {"a": 1}), (list, [[]]),
    (dict[str, int], {"a": 1}), (list[str], ["$5", "NaN", "Infinity"]), (int | None, None), (int | str, "x"),
    (list[dict[str, list[int]]], [{"a": [1]}]), (dict[str, Any], {"a": {"b": ()}}),
    (dict[str, Point], {"a": Point(1)}),
    (Any, (1, [2, (3,)])), (Any, {1, 2}), (Any, frozenset({"a"})), (Any, {1: "a", (1, 2): b"x", None: 0}),
    (Any, {"$bytes": 1}), (Any, {"$x": 1, "y": 2}), (Any, {"": {"é": "ü"}}), (Any, b"\xff\x00"),
    (Any, bytearray(b"x")),
    (Any, Decimal("1E+3")), (Any, Decimal("NaN")), (Any, uuid.UUID(int=7)), (Any, complex(0.0, -0.0)),
    (Any, dt.date(2026, 1, 2)), (Any, NOW), (Any, NOW.replace(tzinfo=dt.UTC)),
    (Any, NOW.replace(tzinfo=BERLIN)), (Any, dt.time(1, 2)), (Any, dt.time(1, tzinfo=dt.UTC)),
    (Any, dt.timedelta(-1, 5, 7)), (Any, {"a": dt.timedelta.max}),
    (float, float("inf")), (list[float], [float("-inf"), 1.5, 2.0]), (dict[str, float], {"a": float("inf")}),
    (Decimal, Decimal("1.10")), (bytes, b"\xff"), (bytes | str, b"x"), (bytes | str, "x"),
    (dt.date | dt.datetime, dt.datetime(2026, 1, 1)), (dt.date | dt.datetime, dt.date(2026, 1, 1)),
    (dt.datetime | str, "2026-01-01T00:00:00"), (dt.datetime | str, dt.datetime(2026, 1, 1)),
    (Color, Color.RED), (Color, Color.PAIR), (Level, Level.LOW), (dict[Color, int], {Color.RED: 1}),
    (Literal["a", 1], "a"), (tuple[int, str], (1, "a")), (tuple[int, ...], ()), (set[int], {3, 1}),
    (set[Point], {Point(1), Point(2)}), (frozenset[Point], frozenset({Point(1)})), (dict[int, str], {1: "a"}),
    (dict[uuid.UUID, int], {uuid.UUID(int=1): 1}), (collections.deque[int], collections.deque([1])),
    (collections.defaultdict[str, list[int]], collections.defaultdict(list, {"a": [1]})),
    (collections.OrderedDict[str, int], collections.OrderedDict(a=1)),
    (collections.Counter[str], collections.Counter("aa")),
    (Sequence[int], (1, 2)), (Mapping[str, int], {"a": 1}), (Iterable[str], ["a"]), (Iterable[str], ("a",)),
    (Iterable[int], {1}), (Iterable, [1]), (Iterable[int] | None, (1,)), (list[Iterable[int]], [[1], {2}]),
    (pathlib.PurePosixPath, pathlib.PurePosixPath("/x")),
    (ipaddress.IPv4Address, ipaddress.IPv4Address("1.2.3.4")),
    (Point, Point(1, 2.5)), (One, One(1)), (Page, Page("u", NOW.replace(tzinfo=BERLIN), ["a"], raw=b"\xff")),
    (Page | None, None), (Page | None, Page("u", NOW, shape=Square(2))), (list[Page], [Page("u", NOW)]),
    (Flat, Flat("é", 1, 2.0, True, ["$x"], {"a": 1}, [Point(1, 2.0)])), (Flat | None, None), (list[Flat], []),
    (Slotted, Slotted(1, 2)), (Tree, Tree([Tree([], 1)], 2)), (Ball, Ball(1, 2)),
    (Circle | Square, Square(1)), (Circle | Square, Circle(1)),
    (list[Circle | Square], [Square(1), Circle(2)]),
    (Drawing, Drawing([Square(1)], {"a": Square(2)}, (Square(3), Circle(4)))),
    (Order, Order(no=7, tags={"b", "a"})), (StrictOrder, StrictOrder(lines=(Order(no=1, tags=set()),))),
    (Extra, Extra(a=1, b=[1, 2])), (Hidden, Hidden(a=1)), (Upper, Upper(name="A")), (Numbers, Numbers([1])),
    (Box[int], Box[int](item=1)), (Box[Circle | Square], Box[Circle | Square](item=Square(1))),
    (Annotated[Cat | Dog, Discriminator("kind")], Dog(n=1)), (list[Cat | Dog], [Dog(n=1), Cat(n=2)]),
    (Options, {"a": 1, "when": dt.date(2026, 1, 1), "points": [Point(1)]}), (list[Options], [{"a": 1}]),
    (Options | None, None), (Annotated[Options, "doc"], {"a": 1}), (dict[str, Options], {"x": {"a": 1}}),
    (Pair, Pair(1, Circle(3))), (Token, Token("abc")), (list[Token], [Token("abc")]),
]  # fmt: skip


def generator() -> Iterable[int]:
    yield 1


REFUSED: list[tuple[Any, Any, str]] = [
    (Any, float("nan"), "result: nan has no JSON form"),
    (Any, {"items": [1, 2, 3, {"rate": float("-inf")}]}, "result.items[3].rate: -inf has no JSON form"),
    (Any, ["\ud800"], "result[0]: the text holds half of a surrogate pair"),
    (str, "\ud800", "result: the text holds half of a surrogate pair"),
    (Any, {"\ud800": 1}, "result['\\ud800']: the text holds half"),
    (Any, {"two words": {"c": [{3: b"", 4: open}]}}, "result['two words'].c[0][4]: a function is code"),
    (Any, {"a": threading.Lock()}, "result.a: _thread.lock has no stored form"),
    (Any, generator(), "result: a generator can be read only once"),
    (Any, ValueError("x"), "result: an exception is no value"),
    (Any, {(1, float("nan")): 1}, "result[a tuple key][1]: nan"),
    (Any, {"x" * 100: open}, f"result.{'x' * 100}: a function"),
    (Any, {"x y" * 100: open}, f"result['{'x y' * 18}x ...]: a function"),
    (Any, {Color.RED: 1}, "result[a Color key]: Color would not come back as Color"),
    (Any, {frozenset({open}): 1}, "result[a frozenset key]{…}: a function"),
    (Any, Circle(1), "result: Circle would not come back as Circle"),
    (Any, [Pair(1, Circle(2))], "result[0]: Pair would not come back as Pair"),
    (Any, Level.LOW, "result: Level would not come back as Level"),
    (Any, collections.OrderedDict(), "result: OrderedDict would not come back"),
    (Any, Order(no=1, tags=set()), "result: Order would not come back as Order"),
    (Any, 10**5000, "result: the whole number has more than 4,200 digits"),
    (list[int], [10**5000], "result[0]: the whole number has more"),
    (int, -(10**5000), "result: the whole number has more"),
    (Any, dt.time(1, tzinfo=BERLIN), "result: a time of day in a zone with changing offsets"),
    (int, "3", "result: expected int, got str"), (int, True, "result: expected int, got bool"),
    (str, 3, "result: expected str, got int"), (None, 3, "result: expected None, got int"),
    (float, "x", "result: expected float, got str"), (int, 1.5, "result: expected int, got float"),
    (list[int], [1, "2"], "result[1]: expected int, got str"),
    (list[int], (1,), "result: expected list, got tuple"),
    (tuple[int, ...], [1], "result: expected tuple, got list"),
    (dict[str, int], {"a": {}}, "result.a: input should be"),
    (set[bool], {1}, "result: elements or keys would change their type (bool, int)"),
    (dict[bool, str], {1: "a"}, "result: elements or keys would change their type"),
    (set[Upper], [Upper(name="A")], "result[0]: "),
    (Page, {"url": "x"}, "result: expected Page, got dict"),
    (Circle, {"r": 1}, "result: expected Circle, got dict"),
    (list[Circle], [Circle(1), {"r": 1}], "result[1]: expected Circle, got dict"),
    (Circle, Circle("3"), "result.r: expected int, got str"),  # type: ignore[arg-type]
    (Circle, Circle("z"), "result.r: input should be a valid integer"),  # type: ignore[arg-type]
    (Flat, {"name": 1}, "result: expected Flat, got dict"),
    (Point, Point("1"), "result.x: expected int, got str"),  # type: ignore[arg-type]
    (Circle, Ball(1), "result: expected Circle, got Ball"), (Circle | Square, Ball(1), "result: expected"),
    (Doubled, Doubled(1, 2), "result.a: this int would come back changed"),
    (Options, {"a": 1, "zz": 2}, "result: key zz is not declared and would be lost"),
    (Options, {"when": dt.date.min}, "result.a: field required"),
    (Upper, Upper.model_construct(name="a"), "result.name: this str would come back changed"),
    (Login, Login(password=SecretStr("pw")), "result.password: pydantic.types.SecretStr has no stored form"),
    (Circle, Circle.__new__(Circle), "result: Circle lacks a field: "),
    (Slotted, Slotted.__new__(Slotted), "result: Slotted lacks a field: "),
    (Order, Order.model_construct(tags=set()), "result: Order lacks a field: 'number'"),
    (Annotated[int, Field(gt=0)], -1, "result: input should be greater than 0"),
    (Color, "red", "result: expected Color, got str"),
    (Box[Any], Box[Any](item=Color.RED), "result.item: expected str"),
    (dict[Point, int], {Point(1): 2}, "result[a Point key]: a dict key of type Point has no stored form"),
    (threading.Thread, threading.Thread(), "result: Thread has no stored form"),
    (collections.deque[int], collections.deque([1], 3), "result: this deque would come back changed"),
    (list[Annotated[list[int], AfterValidator(lambda v: v[1:])]], [[1]], "result[0]: this list would"),
    (list[threading.Thread], [], "result: list[threading.Thread] has no stored form"),
    (Mapping[str, int], Unreadable(), "result: tests.codec.samples.Unreadable has no stored form"),
    (Broken, Broken(1, 2), "result: "), (Broken | Circle, Broken(1, 2), "result: "),  # type: ignore[name-defined]
    (Annotated[dict[str, int], AfterValidator(lambda v: v | {"x": 1})], {"a": 1}, "result: this dict would"),
    (Annotated[set[int], AfterValidator(lambda v: v | {7})], {1}, "result: this set would come back changed"),
    (Annotated[int, AfterValidator(lambda v: 1 // 0)], 1, "result: ZeroDivisionError: "),
]  # fmt: skip
