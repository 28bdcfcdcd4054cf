"""The stored form of values: plain JSON as itself, the rest as one-key objects that name the kind.

    [1, "a", null]              a list, as in JSON
    {"$tuple": [1, "a"]}        a tuple; also $set, $frozenset (elements in canonical order)
    {"$decimal": "1.10"}        also $bytes, $bytearray, $datetime, $date, $time, $timedelta, $uuid, $complex,
                                $float (nan, inf, -inf)
    {"$dict": [[1, "a"]]}       a dict whose keys are not all strings, or that could be mistaken for a tag
    {"$as": ["Circle", {...}]}  one of several classes a union allows

A reader without the author's code can thus tell a date from a text that looks like one, and a value keeps its
kind when the annotation around it is widened later. Packing is exact: a value is stored so that reviving
gives an equal value of the same type, or it is refused with the path to the offending part. It also is
canonical: the order of a set's elements does not depend on the process's hash seed, because hashes of inputs
are compared across processes.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import types
import uuid
from collections.abc import Awaitable, Callable, Iterable
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from pydantic_core import to_json

from ironflow.codec.shapes import shape_of

MAX_DEPTH: Final = 90
"""Levels of nesting a value may have. Tags double them, and the JSON reader stops at 200."""
_HUGE_INT_BITS: Final = 14_000  # about 4,200 digits; Python and the JSON reader stop at 4,300
_ALWAYS: Final = frozenset({bool, type(None)})
_SMALL: Final = 1 << 62
_NESTED: Final = frozenset({list, tuple, set, frozenset})


class Refused(Exception):
    """A part of a value cannot be stored. Levels add their segment to `trail` on the way out.

    `unknown` says that the part is of a class this module knows nothing about (an adapter might).
    """

    def __init__(self, reason: str, hint: str | None = None, *, unknown: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.unknown = unknown
        self.trail: list[str] = []

    def path(self, root: str) -> str:
        trail = self.trail[::-1]
        return root + "".join(trail if len(trail) <= 12 else [*trail[:8], "…"])


class Marked(dict[str, Any]):
    """A revived `$as` object: the fields, and the name of the class they belong to."""

    __slots__ = ("name",)

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.name = name


def segment(key: object) -> str:
    """Return one step of a path: `.rate` for names, `['two words']` or `[3]` for other keys."""
    if type(key) is str and key.isidentifier():
        return f".{key}"
    shown = repr(key) if type(key) in (str, int, float, bool) else f"a {type(key).__name__} key"
    return f"[{shown if len(shown) <= 60 else shown[:57] + '...'}]"


# ---- packing ---------------------------------------------------------------------------------------------


class Packer:
    """Turns values into trees of plain JSON data.

    Args:
        typed: dataclasses, models, enums … may be taken apart, because an annotation will put them together.
        marks: classes that must be stored with their name, since the annotation allows several.
    """

    __slots__ = ("marks", "typed")

    def __init__(self, *, typed: bool = False, marks: dict[type, str] | None = None) -> None:
        self.typed = typed
        self.marks = marks or {}

    def pack(self, value: Any, depth: int = MAX_DEPTH) -> Any:
        """Return the tree of a value.

        Raises:
            Refused: a part has no faithful stored form.
        """
        kind = type(value)
        if kind is str:
            return value if value.isascii() else _checked_text(value)
        if kind in _ALWAYS:
            return value
        if kind is int:
            return value if -_SMALL < value < _SMALL else _checked_int(value)
        if kind is float:
            return value if math.isfinite(value) else self._not_finite(value)
        if depth <= 0:
            raise Refused(f"is nested deeper than {MAX_DEPTH} levels, or contains itself", "Flatten it.")
        if kind is dict:
            return self._dict(value, depth - 1)
        if kind in _NESTED:
            return self._items(value, kind, depth - 1)
        tag = _TAGS.get(kind)
        if tag is not None:
            return tag(value)
        return self._object(value, kind, depth - 1)

    def _dict(self, value: dict[Any, Any], depth: int) -> Any:
        pack = self.pack
        out: dict[str, Any] = {}
        key: Any = None
        try:
            for key, item in value.items():
                if type(key) is not str or key.startswith("$"):
                    break
                if not key.isascii():
                    _checked_text(key)
                kind = type(item)
                quick = item.isascii() if kind is str else kind in _ALWAYS
                out[key] = item if quick else pack(item, depth)
            else:
                return out
            pairs: list[list[Any]] = []
            for key, item in value.items():
                pairs.append([self._key(key, depth), pack(item, depth)])
        except Refused as refused:
            refused.trail.append(segment(key))
            raise
        return {"$dict": pairs}

    def _key(self, key: Any, depth: int) -> Any:
        packed = self.pack(key, depth)
        try:
            hash(revive(packed))
        except TypeError:
            raise Refused(f"a dict key of type {type(key).__name__} has no stored form",
                          "Use text, numbers, or tuples of them as keys.") from None  # fmt: skip
        return packed

    def _items(self, value: Iterable[Any], kind: type, depth: int) -> Any:
        pack = self.pack
        out: list[Any] = []
        try:
            for item in value:
                out.append(pack(item, depth))
        except Refused as refused:
            refused.trail.append(f"[{len(out)}]" if kind in (list, tuple) else "{…}")
            raise
        if kind is list:
            return out
        if kind is tuple:
            return {"$tuple": out}
        out.sort(key=to_json)  # the order of a set differs from process to process
        return {"$set" if kind is set else "$frozenset": out}

    def _not_finite(self, value: float) -> Any:
        if self.typed:
            return {"$float": "nan" if value != value else ("inf" if value > 0 else "-inf")}
        raise Refused(f"{value!r} has no JSON form", "Annotate the function with float there, or use None.")

    def _object(self, value: Any, kind: type, depth: int) -> Any:
        shape = shape_of(kind)
        if shape is None:
            raise _no_form(value)
        if not self.typed:
            raise Refused(
                f"{kind.__name__} would not come back as {kind.__name__}",
                f"Annotate the function so that {kind.__name__} is expected there, or use plain data.",
            )
        try:
            parts = shape(value)
        except (AttributeError, KeyError) as error:
            raise Refused(f"{kind.__name__} lacks a field: {error}", "Set all fields.") from None
        except Exception:  # a class's own representation may fail in any way
            raise _no_form(value) from None
        packed = self.pack(parts, depth)
        return {"$as": [self.marks[kind], packed]} if kind in self.marks else packed


def _checked_text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused("the text holds half of a surrogate pair, which no encoding can carry",
                      "Decode the original bytes with errors='replace'.") from None  # fmt: skip
    return value


def _checked_int(value: int) -> int:
    if value.bit_length() > _HUGE_INT_BITS:
        raise Refused("the whole number has more than 4,200 digits", "Store it as bytes or text.")
    return value


_AWAIT: Final = "Put `await` before the call; in a `def` workflow, write `ctx.wait(…)` around it."
_LIVE: Final = (
    ((types.GeneratorType, types.AsyncGeneratorType), "a generator can be read only once", "Use list(...)."),
    ((types.CoroutineType,), "a coroutine is no value", _AWAIT),
    ((Awaitable,), "this was not awaited: the call is no value, its result is", _AWAIT),
    ((types.FunctionType, types.BuiltinFunctionType, types.MethodType), "a function is code, not data",
     "Pass its name, or call it inside the step."),
    ((BaseException,), "an exception is no value", "Raise it, or return its message."),
)  # fmt: skip


def _no_form(value: Any) -> Refused:
    for kinds, reason, hint in _LIVE:
        if isinstance(value, kinds):
            return Refused(reason, hint)
    kind = type(value)
    return Refused(
        f"{kind.__module__}.{kind.__qualname__} has no stored form",
        "Use plain data, a dataclass or a pydantic model; make locks, files and clients inside the step.",
        unknown=True,
    )


def _datetime_tag(value: dt.datetime) -> Any:
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:  # the offset alone would change sums across a DST change
        return {"$datetime": [value.isoformat(), zone.key]}
    return {"$datetime": value.isoformat()}


def _time_tag(value: dt.time) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refused("a time of day in a zone with changing offsets has no stored form", "Use a datetime.")
    return {"$time": value.isoformat()}


_TAGS: Final[dict[type, Callable[[Any], Any]]] = {
    bytes: lambda v: {"$bytes": base64.b64encode(v).decode()},
    bytearray: lambda v: {"$bytearray": base64.b64encode(v).decode()},
    dt.datetime: _datetime_tag,
    dt.date: lambda v: {"$date": v.isoformat()},
    dt.time: _time_tag,
    dt.timedelta: lambda v: {"$timedelta": [v.days, v.seconds, v.microseconds]},
    Decimal: lambda v: {"$decimal": str(v)},
    uuid.UUID: lambda v: {"$uuid": str(v)},
    complex: lambda v: {"$complex": [repr(v.real), repr(v.imag)]},
}


# ---- reviving --------------------------------------------------------------------------------------------


def revive(tree: Any) -> Any:
    """Return the tree with all tags turned into the values they stand for.

    Raises:
        ValueError: an unknown tag, or one whose content makes no sense.
    """
    kind = type(tree)
    if kind is dict:
        if len(tree) == 1:
            ((key, content),) = tree.items()
            if key.startswith("$"):
                return _revive_tag(key, content)
        return {key: revive(item) for key, item in tree.items()}
    if kind is list:
        return [revive(item) for item in tree]
    return tree


def _revive_tag(tag: str, content: Any) -> Any:
    make = _MAKERS.get(tag)
    if make is None:
        raise ValueError(f"unknown tag {tag}")
    try:
        return make(content)
    except (TypeError, ValueError, ArithmeticError, AttributeError) as error:
        raise ValueError(f"the content of {tag} makes no sense ({error})") from None


def _make_datetime(content: Any) -> dt.datetime:
    if isinstance(content, str):
        return dt.datetime.fromisoformat(content)
    text, key = content
    value = dt.datetime.fromisoformat(text)
    try:
        zone = ZoneInfo(key)
    except (KeyError, OSError):
        return value  # this host lacks the zone: the instant is right, and so is the offset
    for fold in (0, 1):
        local = value.replace(tzinfo=zone, fold=fold)
        if local.utcoffset() == value.utcoffset():
            return local
    return value.astimezone(zone)  # the zone's rules changed since: the instant counts


def _make_set(content: Any) -> Any:
    items = revive(content)
    try:
        return set(items)
    except TypeError:  # parts of frozen dataclasses: the annotation makes them hashable again
        return items


def _make_frozenset(content: Any) -> Any:
    items = _make_set(content)
    return frozenset(items) if type(items) is set else items


_MAKERS: Final[dict[str, Callable[[Any], Any]]] = {
    "$bytes": lambda c: base64.b64decode(c, validate=True),
    "$bytearray": lambda c: bytearray(base64.b64decode(c, validate=True)),
    "$datetime": _make_datetime,
    "$date": dt.date.fromisoformat,
    "$time": dt.time.fromisoformat,
    "$timedelta": lambda c: dt.timedelta(*c),
    "$decimal": Decimal,
    "$uuid": uuid.UUID,
    "$complex": lambda c: complex(float(c[0]), float(c[1])),
    "$float": float,
    "$tuple": lambda c: tuple(revive(c)),
    "$set": _make_set,
    "$frozenset": _make_frozenset,
    "$dict": lambda c: {revive(key): revive(item) for key, item in c},
    "$as": lambda c: Marked(c[0], revive(c[1])),
}
