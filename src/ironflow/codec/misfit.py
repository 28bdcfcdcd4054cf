"""What can never fit a JSON schema, so that it need not be sent to a worker to be refused there.

Owns the one look at an input where the author's code is not: for a required field that is missing, for a field where
the schema says that there are no others, and for something else where an object, a list, a scalar or null is asked for.
Promises to refuse nothing that the code would take: a scalar is read as pydantic reads it in the worker, to which `"5"`
is a whole number. So it is no validator: choices, bounds, formats and every keyword that is not named here are let
through, as is what a schema marks as read by the author's own code (`LENIENT`), what is stored with a tag, and whatever
lies deeper than `DEEPEST` or behind `_MOST_STEPS` steps: the schema and the value may both be a stranger's.

A field that a schema does not name is another matter where it does not say `"additionalProperties": false`. JSON Schema
lets it through and the worker drops it, so programs may send it (`misfit`): during a rolling deployment a newer client
sends a field that the workers do not know yet. A person who types one has made a slip, and is told (`unnamed`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import SchemaValidator, ValidationError, core_schema

from ironflow.codec.schema import DEEPEST, LENIENT, Look
from ironflow.codec.tags import segment

#: How much of a value and of its schema is looked at: some hundredths of a second, in which a node does nothing else.
_MOST_STEPS: Final = 10_000
#: What a scalar is called, and what tells whether it is one.
_SCALARS: Final = {
    "integer": ("a whole number", SchemaValidator(core_schema.int_schema())),
    "number": ("a number", SchemaValidator(core_schema.float_schema())),
    "boolean": ("true or false", SchemaValidator(core_schema.bool_schema())),
    "string": ("text", SchemaValidator(core_schema.str_schema())),
}
#: What says in another way which fields there are.
_OTHERWISE: Final = frozenset({"$ref", "allOf", "anyOf", "oneOf", "patternProperties"})


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
    return _Fitting(schema).misfit(schema, value, place, DEEPEST)


def unnamed(schema: Any, value: Any, place: str) -> list[str]:
    """The places at which a value has a field that no property of the schema is for: what a person has misspelt.

    Args:
        schema, value, place: as for `misfit`, which has found nothing.
    """
    return _Fitting(schema).unnamed(schema, value, place, DEEPEST)


class _Fitting(Look):
    """One look at a value, too. What it would see beyond `_MOST_STEPS` steps is let through."""

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self._steps = _MOST_STEPS

    def misfit(self, schema: Any, value: Any, place: str, left: int) -> Misfit | None:
        self._steps -= 1
        if not isinstance(schema, dict) or schema.get("$comment") == LENIENT or left == 0 or self._steps < 0:
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self.misfit(self.at(reference), value, place, left - 1)
        for kind in ("anyOf", "oneOf"):
            arms = schema.get(kind)
            if isinstance(arms, list) and arms:
                found = self._in_arms(arms, value, place, left)
                if found is not None:
                    return found
        match schema.get("type"):
            case "null" if value is not None:
                return Misfit(place, f"must be null, not {_shown(value)}")
            case "object":
                return self._in_object(schema, value, place, left)
            # A list of a fixed length may be a named tuple, which may be given as an object.
            case "array" if "items" in schema:
                return self._in_list(schema["items"], value, place, left)
            # An enum's own code may know more names for its values than these.
            case str(kind) if kind in _SCALARS and "enum" not in schema and "const" not in schema:
                return self._in_scalar(kind, value, place, formatted="format" in schema)
        return None

    def _in_arms(self, arms: list[Any], value: Any, place: str, left: int) -> Misfit | None:
        """What keeps a value from fitting any of these: one that may take it is enough."""
        told: Misfit | None = None
        for arm in arms:
            found = self.misfit(arm, value, place, left - 1)
            if found is None:
                return None
            # The arms that would take nothing of this kind have less to say than the one that misses a field.
            if told is None or (told.place == place and found.place != place):
                told = found
        return told

    def _in_object(self, schema: dict[str, Any], value: Any, place: str, left: int) -> Misfit | None:
        if not isinstance(value, dict):
            return Misfit(place, f"must be an object, not {_shown(value)}")
        fields, required = schema.get("properties"), schema.get("required")
        fields = fields if isinstance(fields, dict) else {}
        required = required if isinstance(required, list) else []
        self._steps -= len(required)
        if self._tagged(value):
            return None
        for name in required:
            if isinstance(name, str) and name not in value:
                return Misfit(f"{place}{segment(name)}", "field required")
        others = schema.get("additionalProperties")
        closed = others is False and "patternProperties" not in schema
        for name, part in value.items():
            if closed and name not in fields:
                return Misfit(f"{place}{segment(name)}", "no such field")
            inner = fields.get(name, others)
            # A place is put into words only for what is looked at.
            found = self.misfit(inner, part, f"{place}{segment(name)}", left - 1) if inner is not None else None
            if found is not None or self._steps < 0:
                return found
        return None

    def _in_list(self, items: Any, value: Any, place: str, left: int) -> Misfit | None:
        if self._tagged(value):
            return None
        if not isinstance(value, list | tuple):
            return Misfit(place, f"must be a list, not {_shown(value)}")
        for index, item in enumerate(value):
            found = self.misfit(items, item, f"{place}[{index}]", left - 1)
            if found is not None or self._steps < 0:
                return found
        return None

    def _in_scalar(self, kind: str, value: Any, place: str, *, formatted: bool) -> Misfit | None:
        if self._tagged(value):
            return None
        # A time, an address and more that is text of a format may be given as a number, too.
        if formatted and kind == "string" and isinstance(value, int | float):
            return None
        asked, reader = _SCALARS[kind]
        try:
            reader.validate_python(value)
        except ValidationError:
            return Misfit(place, f"must be {asked}, not {_shown(value)}")
        return None

    def _tagged(self, value: Any) -> bool:
        """Whether a value may be stored with a tag, for something else than an object."""
        if not isinstance(value, dict):
            return False
        self._steps -= len(value)
        return self._steps < 0 or any(isinstance(key, str) and key.startswith("$") for key in value)

    def unnamed(self, schema: Any, value: Any, place: str, left: int) -> list[str]:
        """See the function of this name."""
        self._steps -= 1
        if not isinstance(schema, dict) or schema.get("$comment") == LENIENT or left == 0 or self._steps < 0:
            return []
        if isinstance(schema.get("$ref"), str):
            return self.unnamed(self.at(schema["$ref"]), value, place, left - 1)
        arms = [arm for kind in ("anyOf", "oneOf") if isinstance(schema.get(kind), list) for arm in schema[kind]]
        if arms:
            fitting = (arm for arm in arms if self.misfit(arm, value, place, left - 1) is None)
            return min((self.unnamed(arm, value, place, left - 1) for arm in fitting), key=len, default=[])
        if isinstance(value, list | tuple):
            return self._unnamed_in_list(schema, value, place, left)
        if isinstance(value, dict) and not self._tagged(value):
            return self._unnamed_in_object(schema, value, place, left)
        return []

    def _unnamed_in_list(self, schema: dict[str, Any], value: Sequence[Any], place: str, left: int) -> list[str]:
        first, rest = schema.get("prefixItems"), schema.get("items")
        first = first if isinstance(first, list) else []
        found: list[str] = []
        for index, item in enumerate(value):
            if self._steps < 0:
                break
            inner = first[index] if index < len(first) else rest
            found += self.unnamed(inner, item, f"{place}[{index}]", left - 1)
        return found

    def _unnamed_in_object(self, schema: dict[str, Any], value: dict[str, Any], place: str, left: int) -> list[str]:
        fields, others = schema.get("properties"), schema.get("additionalProperties")
        closed = isinstance(fields, dict) and not others and _OTHERWISE.isdisjoint(schema)
        fields = fields if isinstance(fields, dict) else {}
        found: list[str] = []
        for name, part in value.items():
            if closed and name not in fields:
                found.append(f"{place}{segment(name)}")
            else:
                found += self.unnamed(fields.get(name, others), part, f"{place}{segment(name)}", left - 1)
        return found


def _shown(value: Any) -> str:
    """The kind of a value in the words of JSON."""
    kinds = {dict: "an object", list: "a list", tuple: "a list", str: "text", bool: "true or false", type(None): "null"}
    return repr(value) if type(value) is float else kinds.get(type(value), "a number")
