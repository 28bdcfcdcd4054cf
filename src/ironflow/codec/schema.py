"""The JSON schema of what a codec reads, for callers that send JSON and do not have the author's code.

Owns also the one question that is asked of such a schema here: whether it lets `null` through. That is no validator;
what a schema says in any other way than those that are made here is taken to allow it.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from ironflow.codec.annotations import for_pydantic
from ironflow.codec.values import Codec


def schema_of(codec: Codec) -> dict[str, Any] | None:
    """The schema, or None where the annotation has none: a class with a form of its own, a name that is unknown."""
    try:
        return TypeAdapter(for_pydantic(codec.annotation)).json_schema()
    except Exception:  # pydantic's own errors, and those of the authors' classes
        return None


def takes_null(schema: Any) -> bool:
    """Whether `null` may fit a JSON schema; False only where it certainly does not."""
    return _takes_null(schema, schema, frozenset())


def _takes_null(schema: Any, whole: Any, seen: frozenset[str]) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        pointed_at = _pointed_at(reference, whole)
        if not _takes_null(pointed_at, whole, seen | {reference}):
            return False
    kinds = schema.get("type", "null")
    if "null" not in (kinds if isinstance(kinds, list) else [kinds]):
        return False
    if schema.get("const") is not None or None not in _list(schema.get("enum"), [None]):
        return False
    if not all(_takes_null(one, whole, seen) for one in _list(schema.get("allOf"), [])):
        return False
    return all(
        any(_takes_null(one, whole, seen) for one in _list(schema.get(kind), [True])) for kind in ("anyOf", "oneOf")
    )


def _list(found: Any, missing: list[Any]) -> list[Any]:
    return found if isinstance(found, list) and found else missing


def _pointed_at(reference: str, whole: Any) -> Any:
    """What a reference into the same document points at; True, which allows anything, where that cannot be found."""
    if not reference.startswith("#/"):
        return True
    found = whole
    for part in reference[2:].split("/"):
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return True
        found = found[name]
    return found
