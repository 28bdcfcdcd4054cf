"""What can never fit a JSON schema, so that it need not be sent to a worker to be refused there.

Owns the one look at an input where the author's code is not: for a required field that is missing, and for something
else where an object, a list or null is asked for. Promises to refuse nothing that the code would take. So it is no
validator: other scalars, formats and every keyword that is not named here are let through, as is what a schema marks as
read by the author's own code (`LENIENT`), what is stored with a tag, and whatever lies deeper than `DEEPEST` or behind
`_MOST_STEPS` steps: the schema and the value may both be a stranger's.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from ironflow.codec.schema import DEEPEST, LENIENT, Look
from ironflow.codec.tags import segment

#: How much of a value and of its schema is looked at: some hundredths of a second, in which a node does nothing else.
_MOST_STEPS: Final = 10_000


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
        if schema.get("type") == "null" and value is not None:
            return Misfit(place, f"must be null, not {_shown(value)}")
        if schema.get("type") == "object":
            return self._in_object(schema, value, place, left)
        # A list of a fixed length may be a named tuple, which may be given as an object.
        if schema.get("type") == "array" and "items" in schema:
            return self._in_list(schema["items"], value, place, left)
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
        self._steps -= len(value) + len(required)
        if self._steps < 0 or any(isinstance(key, str) and key.startswith("$") for key in value):
            return None  # it may be stored with a tag, for something else than an object
        for name in required:
            if isinstance(name, str) and name not in value:
                return Misfit(f"{place}{segment(name)}", "field required")
        others = schema.get("additionalProperties")
        for name, part in value.items():
            inner = fields.get(name, others)
            # A place is put into words only for what is looked at.
            found = self.misfit(inner, part, f"{place}{segment(name)}", left - 1) if inner is not None else None
            if found is not None or self._steps < 0:
                return found
        return None

    def _in_list(self, items: Any, value: Any, place: str, left: int) -> Misfit | None:
        if isinstance(value, dict):
            self._steps -= len(value)
            if self._steps < 0 or any(isinstance(key, str) and key.startswith("$") for key in value):
                return None  # as above
        if not isinstance(value, list | tuple):
            return Misfit(place, f"must be a list, not {_shown(value)}")
        for index, item in enumerate(value):
            found = self.misfit(items, item, f"{place}[{index}]", left - 1)
            if found is not None or self._steps < 0:
                return found
        return None


def _shown(value: Any) -> str:
    """The kind of a value in the words of JSON."""
    kinds = {dict: "an object", list: "a list", tuple: "a list", str: "text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")
