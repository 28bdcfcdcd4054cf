"""Does a value come back as it was? The comparison behind the promise "equal and of the same type".

`==` is not enough: 1 equals True, a named tuple equals a tuple, an IntEnum equals an int, and classes may
define equality as they like. This walk compares the types of all parts as well, and it names the first part
that differs.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Sequence, Set
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from pydantic import BaseModel

from ironflow.codec.shapes import shape_of
from ironflow.codec.tags import Refused, segment

_SCALARS: Final = frozenset(
    {str, int, float, bool, type(None), bytes, bytearray, complex, Decimal, uuid.UUID,
     dt.datetime, dt.date, dt.time, dt.timedelta}
)  # fmt: skip
_ONLY_STR: Final = frozenset({str})
_QUICK: Final = frozenset({str, int, bool, float, type(None)})


def check_same(value: Any, back: Any) -> None:
    """Compare a value with what reading its stored form gave.

    A whole number where a float is expected counts as the same if it is equal, as in Python's type system.

    Raises:
        Refused: they differ; `trail` leads to the first difference.
    """
    kind = type(value)
    if kind is not type(back):
        if kind is int and type(back) is float and value == back:
            return
        raise Refused(f"expected {type(back).__name__}, got {kind.__name__}")
    if kind in _SCALARS:
        if value == back or (value != value and back != back):  # NaN is as it was
            return
        raise _changed(kind)
    if kind is dict:
        _same_dict(value, back)
    elif kind is list or kind is tuple:
        _same_items(value, back)
    elif kind is set or kind is frozenset:
        _same_set(value, back)
    else:
        _same_object(value, back, kind)


def _changed(kind: type) -> Refused:
    return Refused(
        f"this {kind.__name__} would come back changed",
        "Look for a validator, a constraint or a default of the class that alters it.",
    )


def _same_dict(value: dict[Any, Any], back: dict[Any, Any]) -> None:
    for key, item in value.items():
        if key not in back:
            raise Refused(f"key {segment(key).strip('.')} is not declared and would be lost")
        other = back[key]
        kind = type(item)
        if kind in _QUICK and kind is type(other) and item == other:
            continue
        try:
            check_same(item, other)
        except Refused as refused:
            refused.trail.append(segment(key))
            raise
    if len(back) != len(value):
        raise _changed(dict)
    if not _ONLY_STR.issuperset(map(type, value)):
        _same_kinds(value.keys(), back.keys())


def _same_items(value: Sequence[Any], back: Sequence[Any]) -> None:
    if len(value) != len(back):
        raise _changed(type(value))
    index = 0
    try:
        for index, item in enumerate(value):
            check_same(item, back[index])
    except Refused as refused:
        refused.trail.append(f"[{index}]")
        raise


def _same_set(value: Set[Any], back: Set[Any]) -> None:
    if value != back:
        raise _changed(type(value))
    _same_kinds(value, back)


def _same_kinds(value: Set[Any], back: Set[Any]) -> None:
    """Equal sets (of keys) may still hold True for 1."""
    kinds, others = set(map(type, value)), set(map(type, back))
    if kinds != others and not (kinds | others <= {int, float} and value == back):
        names = sorted(kind.__name__ for kind in kinds ^ others)
        raise Refused(f"elements or keys would change their type ({', '.join(names)})")


def _same_object(value: Any, back: Any, kind: type) -> None:
    shape = None if issubclass(kind, Enum) else shape_of(kind)
    if shape is None:
        try:
            same = bool(value == back)
        except Exception:  # equality of foreign classes may fail, or give an array
            same = False
        if not same:
            raise _changed(kind)
        return
    check_same(shape(value), shape(back))
    _same_hidden(value, back, kind)


def _same_hidden(value: Any, back: Any, kind: type) -> None:
    """Parts beside the declared ones: private attributes of models, the bound of a deque."""
    if issubclass(kind, BaseModel):
        check_same(value.__pydantic_private__, back.__pydantic_private__)
    elif not dataclasses.is_dataclass(kind) and _bound(value) != _bound(back):
        raise _changed(kind)


def _bound(value: Any) -> int | None:
    """How many items a deque keeps; None for all, and for what is no deque."""
    bound: int | None = getattr(value, "maxlen", None)
    return bound
