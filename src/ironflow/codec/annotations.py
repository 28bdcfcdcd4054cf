"""Reading annotations: resolving them, and making them fit for pydantic.

Authors annotate as the type checker likes it. Between that and a stored value stand names that cannot be
resolved at run time, and forms that pydantic reads differently than meant (`Iterable` as a one-shot stream,
`typing.TypedDict` before Python 3.12).
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

UNIONS: Final = (Union, types.UnionType)
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


# ---- unions of classes -----------------------------------------------------------------------------------


def union_members(tp: Any) -> dict[type, str]:
    """Return the classes that an annotation offers as alternatives, each with the name it is stored under.

    Only where a union has several structured classes can a stored object be taken for the wrong one (two of
    them may have the same fields, now or after the next change of the code), so only these carry their name.
    """
    members: dict[type, str] = {}
    for union in _unions(tp, set()):
        classes = [arm for arm in map(_bare, get_args(union)) if _structured(arm)]
        if len(classes) > 1:
            members |= {cls: cls.__qualname__ for cls in classes}
    names = list(members.values())
    return {cls: name for cls, name in members.items() if names.count(name) == 1}


def structured_arms(tp: Any) -> dict[str, type]:
    """The structured classes that an annotation is, or offers itself as alternatives, by the names they are stored
    under.
    """
    arms = map(_bare, get_args(tp) if get_origin(tp) in UNIONS else (tp,))
    return {arm.__qualname__: arm for arm in arms if _structured(arm)}


def allows_extra(tp: Any) -> bool:
    """Whether an annotation has a model somewhere in it that takes fields nobody declared."""
    return _allows_extra(tp, set())


def _allows_extra(tp: Any, seen: set[Any]) -> bool:
    if isinstance(tp, type) and not get_args(tp):
        if tp in seen:
            return False
        seen.add(tp)
        config = getattr(tp, "model_config", None) or getattr(tp, "__pydantic_config__", None) or {}
        return config.get("extra") == "allow" or any(_allows_extra(hint, seen) for hint in _fields(tp))
    return any(_allows_extra(arg, seen) for arg in get_args(tp))


def _bare(tp: Any) -> Any:
    return _bare(get_args(tp)[0]) if get_origin(tp) is typing.Annotated else tp


def _structured(tp: Any) -> bool:
    return isinstance(tp, type) and (dataclasses.is_dataclass(tp) or issubclass(tp, BaseModel))


def _unions(tp: Any, seen: set[Any]) -> Iterator[Any]:
    if get_origin(tp) in UNIONS:
        yield tp
    for arg in get_args(tp):
        yield from _unions(arg, seen)
    if isinstance(tp, type) and tp not in seen and not get_args(tp):
        seen.add(tp)
        for hint in _fields(tp):
            yield from _unions(hint, seen)


def _fields(tp: type) -> list[Any]:
    if issubclass(tp, BaseModel):  # resolved already, and with the arguments of a generic model filled in
        return [field.annotation for field in tp.model_fields.values()]
    if dataclasses.is_dataclass(tp) or hasattr(tp, "__required_keys__") or hasattr(tp, "_fields"):
        try:
            return list(typing.get_type_hints(tp, include_extras=True).values())
        except Exception:  # as in `resolve`; pydantic will say what is wrong with the class
            return []
    return []
