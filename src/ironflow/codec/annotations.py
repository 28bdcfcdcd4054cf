"""Reading annotations: resolving them, and making them fit for pydantic.

Authors annotate as the type checker likes it. Between that and a stored value stand names that cannot be
resolved at run time, and forms that pydantic reads differently than meant (`Iterable` as a one-shot stream,
`typing.TypedDict` before Python 3.12). What several classes in one annotation mean is for `unions`.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final, Union, get_args, get_origin

import typing_extensions
from pydantic import BaseModel
from pydantic.fields import FieldInfo

UNIONS: Final = (Union, types.UnionType)
_WRAPPERS: Final = (typing.Annotated, typing.Required, typing.NotRequired, typing_extensions.ReadOnly, typing.Final)
_ONE_SHOT: Final = (collections.abc.Iterable, collections.abc.Iterator, collections.abc.Generator)


# ---- resolving -------------------------------------------------------------------------------------------


def resolve(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's annotations as objects; what cannot be resolved becomes `Any`.

    An import under `if TYPE_CHECKING:` is no reason to refuse a step: its values are then treated as untyped,
    which refuses what would be changed instead of guessing.
    """
    target = _annotated(fn)
    names = _closure(target)
    try:
        return typing.get_type_hints(target, localns=names, include_extras=True)
    except Exception:  # any annotation may run any code when it is evaluated
        hints: dict[str, Any] = {}
        for name, annotation in getattr(target, "__annotations__", {}).items():
            one = types.SimpleNamespace(__annotations__={name: annotation})
            try:
                scope = getattr(target, "__globals__", {})
                hints |= typing.get_type_hints(one, scope, names, include_extras=True)
            except Exception:  # as above
                hints[name] = Any
        return hints


def _annotated(fn: Callable[..., Any]) -> Any:
    while True:
        if hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif hasattr(fn, "func"):  # functools.partial
            fn = fn.func
        elif isinstance(fn, types.MethodType):
            fn = fn.__func__
        elif not isinstance(fn, type) and not hasattr(fn, "__annotations__"):
            return type(fn).__call__
        else:
            return fn


def _closure(fn: Any) -> dict[str, Any] | None:
    """Names of enclosing functions: classes defined inside a test are annotations too."""
    cells = getattr(fn, "__closure__", None)
    if not cells:
        return None
    names = {}
    for name, cell in zip(fn.__code__.co_freevars, cells, strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def shown(tp: Any) -> str:
    """Return an annotation as people write it."""
    if tp is None or tp is type(None):
        return "None"
    if isinstance(tp, type) and not get_args(tp):
        return tp.__name__
    return str(tp).replace("typing.", "")


# ---- for pydantic ----------------------------------------------------------------------------------------


def for_pydantic(tp: Any) -> Any:
    """Return an equivalent annotation that pydantic reads as it is meant."""
    if sys.version_info < (3, 12) and type(tp) is typing._TypedDictMeta:  # type: ignore[attr-defined]
        return _typed_dict(tp)
    origin, args = get_origin(tp), get_args(tp)
    if not args:
        return list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any] if tp in _ONE_SHOT else tp
    if origin in _ONE_SHOT:
        item = for_pydantic(args[0])
        return list[item] | tuple[item, ...] | set[item] | frozenset[item]  # type: ignore[valid-type]
    if origin is typing.Literal or origin is collections.abc.Callable:
        return tp
    if origin is typing.Annotated:
        return typing.Annotated[(for_pydantic(args[0]), *args[1:])]
    changed = tuple(for_pydantic(arg) for arg in args)
    if all(new is old for new, old in zip(changed, args, strict=True)):
        return tp
    if origin in UNIONS:
        return Union[changed]  # noqa: UP007 - built from a tuple
    return origin[changed if len(changed) > 1 else changed[0]]


def _typed_dict(tp: Any) -> Any:
    fields = {}
    for name, hint in typing.get_type_hints(tp, include_extras=True).items():
        presence = typing.Required if name in tp.__required_keys__ else typing.NotRequired
        if get_origin(hint) in (typing.Required, typing.NotRequired):  # as text: not in __required_keys__
            presence, hint = get_origin(hint), get_args(hint)[0]
        fields[name] = presence[for_pydantic(hint)]
    # Built by name at run time, which the type checkers cannot follow.
    return typing_extensions.TypedDict(tp.__name__, fields)  # type: ignore[operator]


# ---- what annotations are made of -------------------------------------------------------------------------


def bare(tp: Any) -> Any:
    """Return an annotation without what is only wrapped around it: `Annotated`, `Required`, `type X = …`, `NewType`."""
    while (inner := _unwrapped(tp)) is not tp:
        tp = inner
    return tp


def parts_of(tp: Any) -> Iterator[Any]:
    """Yield an annotation and all that it is made of, the fields of its classes too: each bare, classes only once."""
    return _parts(tp, set())


def fields_of(tp: type) -> dict[str, Any]:
    """Return the fields of a dataclass, model, TypedDict or named tuple with their annotations; none of other types."""
    if issubclass(tp, BaseModel):  # resolved already, and with the arguments of a generic model filled in
        return {name: _of_field(field) for name, field in tp.model_fields.items()}
    if dataclasses.is_dataclass(tp) or hasattr(tp, "__required_keys__") or hasattr(tp, "_fields"):
        try:
            return typing.get_type_hints(tp, include_extras=True)
        except Exception:  # as in `resolve`; pydantic will say what is wrong with the class
            return {}
    return {}


def structured(tp: Any) -> bool:
    """Whether it is a class whose instances are stored as their fields."""
    if not isinstance(tp, type):
        return False
    return (
        dataclasses.is_dataclass(tp) or issubclass(tp, BaseModel) or (issubclass(tp, tuple) and hasattr(tp, "_fields"))
    )


def allows_extra(tp: Any) -> bool:
    """Whether an annotation has a model somewhere in it that takes fields nobody declared."""
    configs = (getattr(p, "model_config", None) or getattr(p, "__pydantic_config__", None) for p in parts_of(tp))
    return any(config.get("extra") == "allow" for config in configs if config)


def _parts(tp: Any, seen: set[Any]) -> Iterator[Any]:
    args = get_args(tp)
    if not args and (isinstance(tp, type) or hasattr(tp, "__value__")):  # what may contain itself
        if tp in seen:
            return
        seen.add(tp)
    inner = _unwrapped(tp)
    if inner is not tp:
        yield from _parts(inner, seen)
        return
    yield tp
    fields = fields_of(tp).values() if isinstance(tp, type) and not args else ()
    origin = get_origin(tp)
    within = (origin,) if structured(origin) else ()
    for part in (*within, *args, *fields):
        yield from _parts(part, seen)


def _unwrapped(tp: Any) -> Any:
    if get_origin(tp) in _WRAPPERS:
        return get_args(tp)[0]
    if isinstance(tp, type):
        return tp
    alias = get_origin(tp)
    if hasattr(alias, "__value__"):  # an alias with parameters
        return alias.__value__[get_args(tp)]
    return getattr(tp, "__value__", getattr(tp, "__supertype__", tp))


def _of_field(field: FieldInfo) -> Any:
    """What pydantic has taken apart, with what was said of it: a discriminator may be among it."""
    return typing.Annotated[(field.annotation, *field.metadata, field)]
