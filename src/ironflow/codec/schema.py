"""The JSON schema of what a codec reads, for callers that send JSON and do not have the author's code.

Owns also two questions that are asked of such a schema: whether it lets `null` through, and how a person reads it. That
is no validator (nor is `misfit`): what a schema says in any other way than those that are made here is taken to allow.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from ironflow.codec.annotations import for_pydantic, shown
from ironflow.codec.values import Codec

#: Stands in a schema, as `$comment`, where the code may take more than the schema says.
LENIENT: Final = "read by the author's own code, which may take more than this"
#: What of a schema is held against an input.
_HELD: Final = frozenset({"type", "required", "properties", "items", "additionalProperties", "anyOf", "oneOf", "$ref"})


class _Marking(GenerateJsonSchema):
    """Writes the comment `LENIENT` where validators and aliases, which a JSON schema cannot tell, have a say."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        made = super().generate_inner(schema)
        if _lenient(schema):
            (self.get_schema_from_definitions(made["$ref"]) or made if "$ref" in made else made)["$comment"] = LENIENT
        return made


def _lenient(core: Any) -> bool:
    """Whether a node of pydantic's own schema takes what its JSON schema does not tell."""
    kind = core["type"]
    if kind.startswith("function-") and kind != "function-after":
        return True
    fields = core.get("fields", ())
    fields = fields.values() if isinstance(fields, dict) else fields
    if core.get("custom_init") or any("validation_alias" in one for one in fields):
        return True
    told = core.get("metadata") or {}
    by_hand = [told.get("pydantic_js_updates") or {}, told.get("pydantic_js_extra") or {}]
    return kind == "json-or-python" or any(callable(one) or not _HELD.isdisjoint(one) for one in by_hand)


def schema_of(codec: Codec) -> dict[str, Any] | None:
    """The schema, or None where the annotation has none: a class with a form of its own, a name that is unknown."""
    try:
        return TypeAdapter(for_pydantic(codec.annotation)).json_schema(schema_generator=_Marking)
    except Exception:  # pydantic's own errors, and those of the authors' classes
        return None


def shape(annotation: Any) -> str:
    """An annotation for a person who has to write JSON for it: an object's fields, or the type's name."""
    try:
        schema = TypeAdapter(for_pydantic(annotation)).json_schema()
    except Exception:  # a type without a schema is named all the same
        return shown(annotation)
    required = set(schema.get("required", ()))
    fields = [
        f'"{name}": {_kind(field)}{"" if name in required else " (optional)"}'
        for name, field in schema.get("properties", {}).items()
    ]
    if fields:
        return f"{{{', '.join(fields)}}}"
    return f"{_kind(schema)}" if schema.get("type") else shown(annotation)


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    return str(schema.get("format") or schema.get("type") or "any value")


def takes_null(schema: Any) -> bool:
    """Whether `null` may fit a JSON schema; False only where it certainly does not."""
    return _takes_null(schema, schema, frozenset())


def _takes_null(schema: Any, whole: Any, seen: frozenset[str]) -> bool:
    if not isinstance(schema, dict):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        found = pointed_at(reference, whole)
        if not _takes_null(found, whole, seen | {reference}):
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


def pointed_at(reference: str, whole: Any) -> Any:
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
