"""Which fields of a model were set, once it has been read again.

A model knows which of its fields somebody gave (`model_fields_set`), and `model_dump(exclude_unset=True)` is how a
PATCH tells "leave it" from "make it null". All fields are stored, since a default is a fact of the day on which it was
taken: the code of tomorrow may have another. So pydantic sets them all when it reads, and the names are taken off again
here. The elements of a set have no place by which to find them: they come back with all fields set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, RootModel

from ironflow.codec.tags import Partial


def restore_unset(tree: Any, value: Any) -> None:
    """Mark in a value what its tree says of fields that were not set. Parts with a name have been done before."""
    while isinstance(value, RootModel):
        value = value.root
    kind = type(tree)
    if kind is Partial or kind is dict:
        if kind is Partial and isinstance(value, BaseModel):
            value.model_fields_set.difference_update(tree.unset)
        for key, part in tree.items():
            restore_unset(part, value.get(key) if isinstance(value, Mapping) else getattr(value, str(key), None))
    elif (kind is list or kind is tuple) and isinstance(value, Sequence):
        for part, made in zip(tree, value, strict=False):
            restore_unset(part, made)
