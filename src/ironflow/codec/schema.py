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
#: How far a schema is followed; recursive ones have no end of their own.
DEEPEST: Final = 100
#: Parts of a schema that are looked at for the question whether it lets `null` through.
_MOST_LOOKS: Final = 10_000
#: How much of a shape is told, and down to which depth.
_SHOWN: Final = 500
_DEEPEST_SHOWN: Final = 8
#: What of a schema is held against an input.
_HELD: Final = frozenset(
    {"type", "required", "properties", "patternProperties", "items", "prefixItems", "additionalProperties", "allOf",
     "anyOf", "oneOf", "$ref", "enum", "const", "format"}
)  # fmt: skip
#: Kinds of which pydantic reads more than their JSON schema tells: numbers as well as text.
_WIDER: Final = frozenset({"complex", "timedelta"})


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
    if kind in _WIDER or (kind.startswith("function-") and kind != "function-after"):
        return True
    fields = core.get("fields", ())
    fields = fields.values() if isinstance(fields, dict) else fields
    if core.get("custom_init") or any("validation_alias" in one for one in fields):
        return True
    if core.get("on_error", "raise") != "raise":  # what does not fit is left out, or becomes the default
        return True
    if any(one.get("coerce_numbers_to_str") for one in (core, core.get("config") or {})):
        return True
    return kind == "json-or-python" or _by_hand(core)


def _by_hand(core: Any) -> bool:
    """Whether an author has a hand in the JSON schema of a node, and not in what it takes."""
    told, cls = core.get("metadata") or {}, core.get("cls")
    config = getattr(cls, "model_config", None) or getattr(cls, "__pydantic_config__", None) or {}
    extras = (told.get("pydantic_js_updates"), told.get("pydantic_js_extra"), config.get("json_schema_extra"))
    if any(callable(one) or not _HELD.isdisjoint(one) for one in extras if one):
        return True
    functions = told.get("pydantic_js_functions") or ()
    own = [one for one in functions if not str(getattr(one, "__module__", "")).startswith("pydantic.")]
    return bool(own or told.get("pydantic_js_annotation_functions"))


def schema_of(codec: Codec) -> dict[str, Any] | None:
    """The schema, or None where the annotation has none: a class with a form of its own, a name that is unknown. One
    that no server would let in is none, either: its workflow can be started, and the worker looks at the input.
    """
    from ironflow.codec.strange import problem  # which reads what is below

    try:
        made = TypeAdapter(for_pydantic(codec.annotation)).json_schema(schema_generator=_Marking)
        return made if problem(made) is None else None
    except Exception:  # pydantic's own errors, and those of the authors' classes
        return None


def shape(annotation: Any) -> str:
    """An annotation for a person who has to write JSON for it: an object's fields, or the type's name."""
    try:
        schema = TypeAdapter(for_pydantic(annotation)).json_schema()
    except Exception:  # a type without a schema is named all the same
        return shown(annotation)
    return _shape(schema) if schema.get("type") else shown(annotation)


def shape_of(schema: dict[str, Any]) -> str:
    """The same of a schema that a worker has declared: of any form, and by anybody."""
    found = pointed_at(schema["$ref"], schema) if isinstance(schema.get("$ref"), str) else schema
    return _shape(found if isinstance(found, dict) else schema)[:_SHOWN]


def _shape(schema: dict[str, Any]) -> str:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return _kind(schema)
    required = {one for one in _list(schema.get("required"), []) if isinstance(one, str)}
    fields = (f'"{name}": {_kind(one)}{"" if name in required else " (optional)"}' for name, one in properties.items())
    return f"{{{', '.join(fields)}}}"


def _kind(schema: Any, left: int = _DEEPEST_SHOWN) -> str:
    if not isinstance(schema, dict) or left == 0:
        return "any value"
    if _list(schema.get("anyOf"), []):
        return " or ".join(dict.fromkeys(_kind(one, left - 1) for one in schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    found = schema.get("format") or schema.get("type") or "any value"
    return " or ".join(map(str, found)) if isinstance(found, list) else str(found)


def takes_null(schema: Any) -> bool:
    """Whether `null` may fit a JSON schema; False only where it certainly does not."""
    return _Nulls(schema).fits(schema, DEEPEST)


class Look:
    """One look at a schema that anybody may have written. What a reference points at is searched for once."""

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self._found: dict[str, Any] = {}

    def at(self, reference: str) -> Any:
        """What a reference points at: see `pointed_at`."""
        if reference not in self._found:
            self._found[reference] = pointed_at(reference, self._whole)
        return self._found[reference]


class _Nulls(Look):
    """What the schema says beyond `_MOST_LOOKS` looks is taken to allow."""

    def __init__(self, whole: Any) -> None:
        super().__init__(whole)
        self._looks = _MOST_LOOKS

    def fits(self, schema: Any, left: int) -> bool:
        if not isinstance(schema, dict):
            return schema is not False
        self._looks -= 1
        if self._looks < 0 or left == 0:
            return True
        reference = schema.get("$ref")
        if isinstance(reference, str) and not self.fits(self.at(reference), left - 1):
            return False
        kinds = schema.get("type", "null")
        if "null" not in (kinds if isinstance(kinds, list) else [kinds]):
            return False
        if schema.get("const") is not None or None not in _list(schema.get("enum"), [None]):
            return False
        if not all(self.fits(one, left - 1) for one in _list(schema.get("allOf"), [])):
            return False
        return all(
            any(self.fits(one, left - 1) for one in _list(schema.get(kind), [True])) for kind in ("anyOf", "oneOf")
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
