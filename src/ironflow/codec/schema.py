"""The JSON schema of what a codec reads, for callers that send JSON and do not have the author's code."""

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
