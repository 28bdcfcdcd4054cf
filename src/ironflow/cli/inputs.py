"""What a person gives a run on the command line, turned into the input its workflow asks for.

Owns the reading of text (JSON, files, `key=value`, times). Promises that what is wrong is refused before anything is
written, with a message that names the option and shows how to write it.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ironflow.duration import to_ms
from ironflow.errors import InvalidInput, PayloadError
from ironflow.model import journal

if TYPE_CHECKING:
    from ironflow.engine.definitions import WorkflowSpec

InputOption = Annotated[
    str | None,
    typer.Option(
        "--input", "-i", metavar="JSON|@FILE|-", help="The input: JSON, a file of it, or - for stdin.",
        show_default=False,
    ),
]  # fmt: skip

#: No input was given, which is not the same as the input `null`.
MISSING: Final = object()


def read_input(text: str | None) -> Any:
    """The JSON that `--input` means, or MISSING.

    Raises:
        InvalidInput: the file cannot be read, or what was given is no JSON.
    """
    if text is None:
        return MISSING
    source = "--input"
    try:
        if text == "-":
            source, text = "stdin", sys.stdin.read()
        elif text.startswith("@"):
            source = text[1:]
            text = Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        hint = "Name a file of JSON text: --input @order.json."
        raise InvalidInput(f"the input cannot be read from {source}: {error}", hint=hint) from error
    try:
        return json.loads(text, parse_constant=_no_constant, parse_float=journal.finite)
    except RecursionError as error:
        raise InvalidInput(f"the input from {source} is nested too deeply to be read", hint="") from error
    except ValueError as error:
        raise InvalidInput(
            f"the input from {source} is no JSON: {error}",
            hint="""Text needs quotes of its own: --input '"hello"'. An object: --input '{"n": 1}'.""",
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def typed_input(spec: WorkflowSpec, value: Any) -> Any:
    """The input as the workflow's annotation wants it.

    Raises:
        InvalidInput: it does not fit, is missing, or the workflow takes none.
    """
    from ironflow.codec.schema import shape

    if not spec.has_input:
        if value is MISSING or value is None:
            return None
        raise InvalidInput(f"workflow {spec.name} takes no input", hint="Leave --input out.")
    given = None if value is MISSING else value
    if given is None and spec.default is not None:
        return spec.default
    try:
        typed = spec.input.validate(given, path="input")
        _check_fields(spec.name, spec.input.unknown_fields(given, path="input"), shape(spec.input.annotation))
        return typed
    except PayloadError as error:
        wanted = f"Expected: {shape(spec.input.annotation)}"
        if value is MISSING:
            message = f"workflow {spec.name} needs an input"
            raise InvalidInput(message, hint=f"Give it with --input. {wanted}") from error
        raise InvalidInput(
            f"the input does not fit workflow {spec.name}: {error.message}",
            hint=wanted,
            details=error.details,
        ) from error


def named_input(name: str, schema: dict[str, Any] | None, value: Any) -> Any:
    """The input of a workflow that is known by its name and by the schema that its workers declared.

    What else keeps it from fitting is found where the run is created, for whoever creates one. This is what only people
    are held to, here as where the code is: see `codec.misfit`.

    Raises:
        InvalidInput: it has a field that the schema does not know.
    """
    from ironflow.codec.misfit import misfit, unnamed
    from ironflow.codec.schema import shape_of

    if value is MISSING:
        return None
    if schema is not None and misfit(schema, value, "input") is None:
        _check_fields(name, unnamed(schema, value, "input"), shape_of(schema))
    return value


def _check_fields(workflow: str, unknown: list[str], expected: str) -> None:
    if unknown:
        raise InvalidInput(
            f"the input does not fit workflow {workflow}: it has no field {', '.join(unknown)}",
            hint=f"Expected: {expected}",
            details={"fields": unknown},
        )


def pairs(texts: list[str] | None, what: str, form: str = "key=value") -> dict[str, str]:
    """`key=value` options as a dictionary; `form`: how an error writes such an option.

    Raises:
        InvalidInput: one has no `=` or no key.
    """
    found = {}
    for text in texts or ():
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise InvalidInput(f"{text!r} is no {what}", hint=f"Give it as {form}.")
        found[key] = value
    return found


def moment(text: str | None, option: str = "--at") -> datetime | None:
    """A time: ISO 8601 with a zone, or `+10m` from now. `option`: how an error calls it.

    Raises:
        InvalidInput, InvalidDuration: it is neither.
    """
    if text is None:
        return None
    if text.startswith("+"):
        return datetime.now(UTC) + timedelta(milliseconds=to_ms(text[1:], name=option))
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidInput(
            f"{option}: {text!r} is no time", hint="Give 2026-12-01T08:00:00+01:00, or +10m from now."
        ) from error
    if at.tzinfo is None:
        raise InvalidInput(f"{option}: {text!r} does not say its time zone", hint="Add it: +01:00, or Z for UTC.")
    return at
