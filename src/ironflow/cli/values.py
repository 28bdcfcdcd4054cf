"""Stored values as a person reads them: plain JSON, without the tags that keep kinds apart.

For reading only, and only where nothing is lost for the reader: a tuple is shown as a list and a date as its text,
bytes stay as they are stored. What programs read (`--json`, the journal itself) keeps the stored form, from which every
value comes back as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

_FLOATS = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def readable(tree: Any) -> Any:
    """A stored tree with its tags replaced by what they say; an unknown tag is left as it is."""
    if isinstance(tree, list):
        return [readable(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) == 1:
        ((key, content),) = tree.items()
        show = _TAGS.get(key)
        if show is not None:
            try:
                return show(content)
            except (TypeError, ValueError, KeyError, IndexError):  # damaged: shown as it lies there
                return tree
    return {key: readable(item) for key, item in tree.items()}


def _items(content: Any) -> Any:
    return [readable(item) for item in content]


def _text(content: Any) -> str:
    return str(content)


def _moment(content: Any) -> str:
    return f"{content[0]}[{content[1]}]" if isinstance(content, list) else str(content)


def _pairs(content: Any) -> Any:
    """An object where every key can be one; else the pairs, since two keys might look alike."""
    keys = [readable(key) for key, _ in content]
    names = [str(key) for key in keys]
    if all(isinstance(key, str | int | float) for key in keys) and len(set(names)) == len(names):
        return {name: readable(value) for name, (_, value) in zip(names, content, strict=True)}
    return [[key, readable(value)] for key, (_, value) in zip(keys, content, strict=True)]


def _named(content: Any) -> Any:
    return {content[0]: readable(content[1])}


_TAGS: dict[str, Callable[[Any], Any]] = {
    "$tuple": _items,
    "$set": _items,
    "$frozenset": _items,
    "$dict": _pairs,
    "$as": _named,
    "$float": lambda content: float(_FLOATS[content]),
    "$decimal": _text,
    "$uuid": _text,
    "$date": _text,
    "$time": _text,
    "$datetime": _moment,
    "$timedelta": lambda content: str(timedelta(*content)),
    "$complex": lambda content: str(complex(float(content[0]), float(content[1]))),
}
