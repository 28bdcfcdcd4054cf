"""A workflow by what its workers declared of it: enough to start a run where the code is not.

What only the code can do is left to the worker: the input is checked for being JSON, for being there where the workflow
has declared that it needs one, and for what could never fit the declared schema; it is decoded by the worker, by its
annotation.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ironflow.errors import InvalidInput, WorkflowUnknown
from ironflow.model.ids import LONGEST_VERSION, check_text, split_tags

if TYPE_CHECKING:
    from ironflow.codec.values import Codec, StoredForm

#: The largest number in a definition: a time in milliseconds that can still be added to another one.
_MOST = 1 << 53
#: Names of other workflows that an error tells people, and those that it lists for programs.
_MOST_TOLD, _MOST_LISTED = 50, 1_000
#: The schema of a workflow that takes no input.
_NO_INPUT = {"type": "null"}


def unknown(name: str, known: Iterable[str]) -> WorkflowUnknown:
    """The error of a name that no worker has registered, among those that some have."""
    names = sorted(known)
    told = ", ".join(names[:_MOST_TOLD]) + (f" and {len(names) - _MOST_TOLD:,} more" if names[_MOST_TOLD:] else "")
    return WorkflowUnknown(
        f"no worker has registered a workflow {name!r}",
        hint=f"Known: {told or 'none'}. Start a worker that has it: `ironflow worker FILE`.",
        details={"known": names[:_MOST_LISTED]},
    )


def checked(
    name: str, told: object, look: Callable[[dict[str, Any]], str | None] | None = None
) -> dict[str, Any]:
    """A definition as a worker sent it, with the parts that a start goes by and no others.

    Its lane is the workflow's own. A worker that could name another one could fill up a stranger's.

    Args:
        name: of the workflow.
        told: JSON data.
        look: what keeps a schema from being used, of a caller who knows; else it is looked at here.

    Raises:
        InvalidInput: it is not what `WorkflowSpec.definition` makes; the message names the part.
    """
    from ironflow.codec.strange import problem

    if not isinstance(told, dict):
        raise _misfit(name, "it must be an object")
    lanes, doc, schema = told.get("lanes", []), told.get("doc"), told.get("input_schema")
    versions = told.get("compatible", [])
    if doc is not None and not isinstance(doc, str):
        raise _misfit(name, "doc must be text")
    if schema is not None and not isinstance(schema, dict):
        raise _misfit(name, "input_schema must be an object")
    wrong = None if schema is None else (look or problem)(schema)
    if wrong is not None:
        raise _misfit(name, wrong)
    if not isinstance(versions, list):
        raise _misfit(name, "compatible must be a list of versions")
    for version in versions:
        check_text(version, f"a version that {name} continues", LONGEST_VERSION)
    if lanes is not None and lanes != [] and not _own_lane(name, lanes):
        raise _misfit(name, "lanes must be null, or hold the limit of the workflow itself")
    return {
        "priority": _number(name, told, "priority", -_MOST) or 0,
        "timeout_ms": _number(name, told, "timeout_ms", 1),
        "max_recoveries": _number(name, told, "max_recoveries", 0),
        "lanes": lanes,
        "keyed_limit": _number(name, told, "keyed_limit", 1),
        "input_schema": schema,
        "input_default": told.get("input_default"),
        "doc": doc,
        "compatible": versions,
    }


def _own_lane(name: str, lanes: object) -> bool:
    match lanes:
        case [{"name": own, "limit": int(limit), **more}]:
            return own == f"workflow:{name}" and 1 <= limit <= _MOST and type(limit) is int and not more
    return False


def _number(name: str, told: dict[str, Any], part: str, least: int) -> int | None:
    found = told.get(part)
    if found is None or (type(found) is int and least <= found <= _MOST):
        return found
    raise _misfit(name, f"{part} must be a whole number from {least}")


def _misfit(name: str, what: str) -> InvalidInput:
    return InvalidInput(f"the definition of workflow {name} is not usable: {what}", hint="")


def _optional(schema: dict[str, Any] | None) -> bool:
    from ironflow.codec.schema import takes_null

    return schema is None or takes_null(schema)


class Declared:
    """See the module's docstring. It has of a `WorkflowSpec` what a start asks for.

    Args:
        row: of `Store.workflows`. A worker of an older release declared nothing: then nothing of it applies.
        stored: whether the input comes in the form in which it is stored, from a program that had the code to encode
            it; else it is any JSON.
    """

    __slots__ = (
        "_keyed_limit",
        "_lane_key",
        "_lanes",
        "_stored",
        "compatible",
        "default",
        "doc",
        "input_schema",
        "max_recoveries",
        "name",
        "priority",
        "timeout_ms",
        "version",
        "worker_tags",
        "_needs_input",
    )

    def __init__(self, row: Mapping[str, Any], *, stored: bool = False) -> None:
        self._stored = stored
        self._lane_key: str | None = None
        definition: dict[str, Any] = json.loads(row["definition"]) if row["definition"] else {}
        self.name: str = row["name"]
        self.version: str = row["version"]
        self.worker_tags = split_tags(row["worker_tags"])
        self.compatible: tuple[str, ...] = tuple(definition.get("compatible", ()))
        self.priority: int = definition.get("priority", 0)
        self.timeout_ms: int | None = definition.get("timeout_ms")
        self.max_recoveries: int | None = definition.get("max_recoveries")
        self.input_schema: dict[str, Any] | None = definition.get("input_schema")
        #: in the form in which values are stored
        self.default: Any = definition.get("input_default")
        self.doc: str | None = definition.get("doc")
        self._lanes: list[dict[str, Any]] | None = definition.get("lanes", [])
        self._keyed_limit: int | None = definition.get("keyed_limit")
        self._needs_input = self.has_input and not _optional(self.input_schema)

    @property
    def has_input(self) -> bool:
        """Whether it takes one; assumed where its workers could not say."""
        return self.input_schema != _NO_INPUT

    @property
    def input(self) -> Codec | StoredForm:
        """The codec of any JSON, or of what is encoded already."""
        from ironflow.codec.values import StoredForm, codec_for

        return StoredForm() if self._stored else codec_for(Any)

    def encode_input(self, value: Any, limit: int) -> str:
        """The text of an input, the default in place of none; it is refused if the code could never take it.

        Raises:
            InvalidInput: it is None, and the workflow has declared that it needs one, or it cannot fit the schema.
            PayloadError: it cannot be stored.
        """
        from ironflow.codec.misfit import misfit
        from ironflow.codec.values import StoredForm

        if value is None and self.default is not None:
            return StoredForm().encode(self.default, path="input", limit=limit)
        if value is None and self._needs_input:
            raise self._refused(f"workflow {self.name} needs an input, and got none or null")
        text = self.input.encode(value, path="input", limit=limit)
        found = None if self.input_schema is None else misfit(self.input_schema, value, "input")
        if found is not None:
            told = f"{found.place}: {found.problem}"
            errors = [{"at": found.place, "problem": told}]
            raise self._refused(f"the input does not fit workflow {self.name}: {told}", errors=errors)
        return text

    def _refused(self, message: str, **details: Any) -> InvalidInput:
        from ironflow.codec.schema import shape_of

        return InvalidInput(message, hint=f"Expected: {shape_of(self.input_schema or {})}", details=details)

    def in_lane(self, key: str | None) -> Declared:
        """The same for a run that belongs to this one of the workflow's lanes, as a program with the code has told."""
        made = copy.copy(self)
        made._lane_key = key
        return made

    def in_stored_form(self) -> Declared:
        """The same for an input that comes in the form in which it is stored."""
        made = copy.copy(self)
        made._stored = True
        return made

    def lanes(self, value: Any) -> list[tuple[str, int]]:
        """The lanes a run counts in by the workflow's own limit.

        Raises:
            InvalidInput: they depend on the input, and nobody who has the code has said which it is.
        """
        if self._lanes is None:
            if self._lane_key is not None and self._keyed_limit is not None:
                check_text(self._lane_key, "the lane's key", empty=True)
                return [(f"workflow:{self.name}:{self._lane_key}", self._keyed_limit)]
            raise InvalidInput(
                f"the lane of workflow {self.name} depends on the input, and its code is not here to tell which it is",
                hint=f"Start it where its code is: `ironflow runs create path/file.py:{self.name}`, or from Python.",
            )
        return [(one["name"], one["limit"]) for one in self._lanes]

    def __repr__(self) -> str:
        return f"Declared({self.name!r}, version={self.version!r})"
