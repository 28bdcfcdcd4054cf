"""What can never fit a JSON schema, so that it need not be sent to a worker to be refused there.

Owns the one look at an input where the author's code is not: for a required field that is missing, and for something
else where an object, a list or null is asked for. Promises to refuse nothing that the code would take. So it is no
validator: other scalars, formats and every keyword that is not named here are let through, as is what a schema marks as
read by the author's own code (`LENIENT`), what is stored with a tag, and whatever lies deeper than `_DEEPEST`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ironflow.codec.schema import LENIENT, pointed_at
from ironflow.codec.tags import segment

#: How far a schema is followed; recursive ones have no end of their own.
_DEEPEST: Final = 100


class Misfit(NamedTuple):
    """Where a value does not fit, and why."""

    place: str
    problem: str


def misfit(schema: Any, value: Any, place: str) -> Misfit | None:
    """The first thing that keeps a value from ever fitting a schema, None where there may be none.

    Args:
        schema: as `schema_of` makes it.
        value: JSON data.
        place: how the value is called: the first part of `input.items[3].rate`.
    """
    return _misfit(schema, value, place, schema, _DEEPEST)


def _misfit(schema: Any, value: Any, place: str, whole: Any, left: int) -> Misfit | None:
    if not isinstance(schema, dict) or schema.get("$comment") == LENIENT or left == 0:
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return _misfit(pointed_at(reference, whole), value, place, whole, left - 1)
    for kind in ("anyOf", "oneOf"):
        arms = schema.get(kind)
        if isinstance(arms, list) and arms:
            found = [_misfit(arm, value, place, whole, left - 1) for arm in arms]
            if None not in found:
                # The arms that would take nothing of this kind have less to say than the one that misses a field.
                return next((one for one in found if one and one.place != place), found[0])
    if schema.get("type") == "null" and value is not None:
        return Misfit(place, f"must be null, not {_shown(value)}")
    if schema.get("type") == "object":
        return _in_object(schema, value, place, whole, left)
    # A list of a fixed length may be a named tuple, which may be given as an object.
    if schema.get("type") == "array" and "items" in schema:
        return _in_list(schema["items"], value, place, whole, left)
    return None


def _in_object(schema: dict[str, Any], value: Any, place: str, whole: Any, left: int) -> Misfit | None:
    if not isinstance(value, dict):
        return Misfit(place, f"must be an object, not {_shown(value)}")
    if any(isinstance(key, str) and key.startswith("$") for key in value):
        return None  # it may be stored with a tag, for something else than an object
    fields = schema.get("properties")
    fields = fields if isinstance(fields, dict) else {}
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if name not in value:
            return Misfit(f"{place}{segment(name)}", "field required")
    others = schema.get("additionalProperties")
    for name, part in value.items():
        found = _misfit(fields.get(name, others), part, f"{place}{segment(name)}", whole, left - 1)
        if found is not None:
            return found
    return None


def _in_list(items: Any, value: Any, place: str, whole: Any, left: int) -> Misfit | None:
    if isinstance(value, dict) and any(isinstance(key, str) and key.startswith("$") for key in value):
        return None  # as above
    if not isinstance(value, list | tuple):
        return Misfit(place, f"must be a list, not {_shown(value)}")
    for index, item in enumerate(value):
        found = _misfit(items, item, f"{place}[{index}]", whole, left - 1)
        if found is not None:
            return found
    return None


def _shown(value: Any) -> str:
    """The kind of a value in the words of JSON."""
    kinds = {dict: "an object", list: "a list", tuple: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
