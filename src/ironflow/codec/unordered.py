"""Whether two stored texts hold equal values, whatever the order in which the keys of objects and dicts were given."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["same"]


def same(one: str, other: str) -> bool:
    """Whether these texts differ in nothing but the order of keys; see `tags` for what is stored.

    Texts of different length do, and are not taken apart: a value has one stored form but for that order.
    """
    return one == other or (len(one) == len(other) and _ordered(one) == _ordered(other))


def _ordered(text: str) -> str:
    return _written(json.loads(text, object_hook=_object))


def _object(found: dict[str, Any]) -> dict[str, Any]:
    pairs = found.get("$dict")
    if len(found) == 1 and isinstance(pairs, list):
        found["$dict"] = sorted(pairs, key=_written)
    return found


def _written(tree: Any) -> str:
    # Compared as text: to Python, 1 and true are equal.
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))
