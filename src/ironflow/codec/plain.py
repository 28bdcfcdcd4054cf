"""Values that need no pydantic: plain JSON data, and dataclasses made of it.

For these, looking at exact types is several times cheaper than a validator and at least as strict. A check
made here holds only for values whose JSON text is faithful as it is; everything it does not hold for is not
wrong, it merely takes the thorough path.
"""

from __future__ import annotations

import dataclasses
import operator
import typing
from collections.abc import Callable, Iterable
from typing import Any, Final, get_args, get_origin

from ironflow.codec.annotations import UNIONS

Check = Callable[[Any], bool]

SCALARS: Final = frozenset({str, int, float, bool, type(None)})
_ONLY_STR: Final = frozenset({str})
_DEPTH: Final = 60


def is_plain(value: Any, depth: int = _DEPTH) -> bool:
    """Is this JSON data through and through, of exactly the types the JSON reader gives?"""
    kind = type(value)
    if kind is dict:
        if not _ONLY_STR.issuperset(map(type, value)):
            return False
        value = value.values()
    elif kind is not list:
        return kind in SCALARS
    if SCALARS.issuperset(map(type, value)):
        return True
    if depth <= 0:
        return False
    for item in value:  # noqa: SIM110 - a generator would double the time
        if type(item) not in SCALARS and not is_plain(item, depth - 1):
            return False
    return True


def plain_check(annotation: Any) -> Check | None:
    """Return the check of an annotation of plain JSON data, or None if it has other parts.

    Covers the scalars, Any, and lists, string-keyed dicts and unions of those.
    """
    return _Maker(classes=False).check(annotation)


def exact_check(annotation: Any) -> Check | None:
    """Return the check of an annotation of plain JSON data and of dataclasses made of it, or None.

    A dataclass counts only if making it again from its fields can change nothing: no `__post_init__`, all
    fields given at creation, nothing in it addressed to pydantic.
    """
    return _Maker(classes=True).check(annotation)


class _Maker:
    __slots__ = ("classes", "open")

    def __init__(self, *, classes: bool) -> None:
        self.classes = classes
        self.open: set[type] = set()  # dataclasses being looked at: one that contains itself is left out

    def check(self, tp: Any) -> Check | None:
        if tp is Any or tp is object:
            return is_plain
        kinds = _scalar_kinds(tp)
        if kinds is not None:
            return lambda value: type(value) in kinds
        origin, args = get_origin(tp) or tp, get_args(tp)
        if origin in UNIONS:
            checks = [check for check in map(self.check, args) if check is not None]
            return (lambda value: any(check(value) for check in checks)) if checks else None
        if origin is list:
            return self.list(args[0] if args else Any)
        if origin is dict and (not args or args[0] is str):
            return self.dict(args[1] if args else Any)
        return self.dataclass(tp) if self.classes and _is_bare(tp) else None

    def list(self, tp: Any) -> Check | None:
        items = self.items(tp)
        return None if items is None else lambda value: type(value) is list and items(value)

    def dict(self, tp: Any) -> Check | None:
        items = self.items(tp)
        if items is None:
            return None
        return lambda value: (
            type(value) is dict and _ONLY_STR.issuperset(map(type, value)) and items(value.values())
        )

    def items(self, tp: Any) -> Callable[[Iterable[Any]], bool] | None:
        """Return the check of all elements of a container at once."""
        kinds = _scalar_kinds(tp)
        if kinds is not None:
            return lambda values: kinds.issuperset(map(type, values))
        check = self.check(tp)
        return None if check is None else lambda values: all(map(check, values))

    def dataclass(self, cls: type) -> Check | None:
        if cls in self.open:
            return None
        self.open.add(cls)
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
            names = [field.name for field in dataclasses.fields(cls)]
            checks = [self.check(hints[name]) for name in names]
        except Exception:  # unresolved names; the thorough path says what is wrong
            return None
        finally:
            self.open.remove(cls)
        found = [check for check in checks if check is not None]
        if len(found) < len(checks) or len(names) < 2:  # attrgetter gives a tuple only from two names on
            return None
        read = operator.attrgetter(*names)

        def check(value: Any) -> bool:
            if type(value) is not cls:
                return False
            try:
                parts = read(value)
            except AttributeError:  # an instance that was never initialised
                return False
            for test, part in zip(found, parts, strict=True):  # noqa: SIM110 - as above
                if not test(part):
                    return False
            return True

        return check


def _scalar_kinds(tp: Any) -> frozenset[type] | None:
    if tp is float:
        return frozenset({float, int})  # an int is a float to every type checker
    if tp is None:
        return frozenset({type(None)})
    if isinstance(tp, type) and tp in SCALARS:
        return frozenset({tp})
    if get_origin(tp) in UNIONS:
        arms = [_scalar_kinds(arm) for arm in get_args(tp)]
        return frozenset().union(*(arm for arm in arms if arm)) if all(arms) else None
    return None


def _is_bare(tp: Any) -> bool:
    """Is this a dataclass that does nothing but hold its fields?"""
    return (
        isinstance(tp, type)
        and dataclasses.is_dataclass(tp)
        and not any(hasattr(tp, name) for name in _SPECIAL)
        and all(field.init for field in dataclasses.fields(tp))
    )


_SPECIAL: Final = (
    "__post_init__",
    "__get_pydantic_core_schema__",
    "__pydantic_config__",
    "__pydantic_fields__",
    "__pydantic_serializer__",
)
