"""What keeps a JSON schema of somebody else from being read: its size, its form, or references that multiply.

Owns the check by which such a schema is let in, where a worker declares it. Promises that what passes is small, has the
form that `takes_null` and `misfit` expect, and holds one value against few of its parts. Both are bounded by
themselves, too: what was stored before there was this check costs no more. The check itself comes in pieces, for who
shares a loop with others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from ironflow.codec.schema import DEEPEST, pointed_at

#: Characters of a schema as JSON.
LONGEST: Final = 65_536
#: Parts of a schema that one value is held against, references followed.
MOST_PARTS: Final = 2_000
#: How a schema is called.
_PLACE: Final = "input_schema"
#: Where other schemas stand: one, a list of them, or one under each name.
_ONE: Final = ("items", "additionalProperties")
_MANY: Final = ("allOf", "anyOf", "oneOf")
_NAMED: Final = ("properties", "$defs", "definitions")
#: How much of a place an error repeats.
_SHOWN: Final = 200
#: Parts of a schema that make a piece of the check: a millisecond or two.
_PIECE: Final = 100
_NO_MORE: Final = object()


def problem(schema: dict[str, Any]) -> str | None:
    """Why a schema (JSON data) cannot be used, None where it can be. What is not read here may have any form."""
    return next((found for found in looking(schema) if found is not None), None)


def looking(schema: dict[str, Any]) -> Iterator[str | None]:
    """The same in pieces: None behind each of them, and the problem, with which it ends, where there is one."""
    size = len(json.dumps(schema, separators=(",", ":")))
    if size > LONGEST:
        yield f"{_PLACE} has {size:,} characters as JSON, and {LONGEST:,} is the most"
        return
    open_: list[tuple[str, Iterator[tuple[str, Any]]]] = [(_PLACE, iter([("", schema)]))]
    seen: set[int] = set()
    costs: dict[int, tuple[int, int]] = {}
    while open_:
        above, parts = open_[-1]
        where, part = next(parts, ("", _NO_MORE))
        if part is _NO_MORE:
            open_.pop()
            continue
        if id(part) in seen:
            continue
        seen.add(id(part))
        at = f"{above}{where}"[: _SHOWN + 1]
        found = _form(part)
        if found is None and isinstance(part, dict):
            found = _cost(part, schema, costs)
            open_.append((at, _inside(part, schema)))
        if found is not None:
            yield f"{at[:_SHOWN]}{found}"
            return
        if len(seen) % _PIECE == 0:
            yield None


def _form(part: Any) -> str | None:
    """What of a schema has a form that none may have."""
    if isinstance(part, bool):
        return None
    if not isinstance(part, dict):
        return " must be a schema: an object, true or false"
    kinds = part.get("type", "null")
    for name, fits, form in (
        ("$ref", isinstance(part.get("$ref", ""), str), "text"),
        ("type", _are_texts(kinds if isinstance(kinds, list) else [kinds]), "text, or a list of texts"),
        ("required", _are_texts(part.get("required", [])), "a list of texts"),
        ("enum", isinstance(part.get("enum", []), list), "a list"),
        *((name, isinstance(part.get(name, []), list), "a list of schemas") for name in _MANY),
        *((name, isinstance(part.get(name, {}), dict), "an object of schemas") for name in _NAMED),
    ):
        if not fits:
            return f".{name} must be {form}"
    return None


def _are_texts(found: Any) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)


def _inside(part: dict[str, Any], whole: Any) -> Iterator[tuple[str, Any]]:
    """The schemas in one, each with its place behind that one's."""
    for name in _ONE:
        found = part.get(name, True)
        if isinstance(found, list):  # as old schemas say what a list of a fixed length holds
            yield from ((f".{name}[{index}]", one) for index, one in enumerate(found))
        else:
            yield f".{name}", found
    for name in _MANY:
        yield from ((f".{name}[{index}]", one) for index, one in enumerate(part.get(name, ())))
    for name in _NAMED:
        yield from ((f".{name}.{key}", one) for key, one in part.get(name, {}).items())
    if "$ref" in part:
        yield ".$ref", pointed_at(part["$ref"], whole)


def _cost(part: dict[str, Any], whole: Any, costs: dict[int, tuple[int, int]]) -> str | None:
    try:
        if _counted(part, whole, costs, 0)[0] > MOST_PARTS:
            return f" holds one value against more than {MOST_PARTS:,} schemas: its references multiply"
    except RecursionError:
        return f" follows more than {DEEPEST} references one after the other, or goes round in a circle"
    return None


def _counted(part: Any, whole: Any, costs: dict[int, tuple[int, int]], depth: int) -> tuple[int, int]:
    """How many schemas a value is held against by one, and how many of them stand one behind the other.

    Raises:
        RecursionError: that are more than `DEEPEST`; of a circle, there is no end of them.
    """
    if not isinstance(part, dict):
        return 1, 1
    found = costs.get(id(part))
    if found is None:
        if depth >= DEEPEST:
            raise RecursionError
        below = [pointed_at(part["$ref"], whole)] if isinstance(part.get("$ref"), str) else []
        for name in _MANY:
            arms = part.get(name)
            below += arms if isinstance(arms, list) else []
        number = deepest = 1
        for one in below:
            more, further = _counted(one, whole, costs, depth + 1)
            number, deepest = number + more, max(deepest, 1 + further)
            if number > MOST_PARTS:  # which is too many, however many there are
                break
        found = costs[id(part)] = min(number, MOST_PARTS + 1), deepest
    if depth + found[1] > DEEPEST:
        raise RecursionError
    return found
