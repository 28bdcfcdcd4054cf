"""The OpenAPI 3.1 document of the API, as `/api/v1/openapi.json` serves it.

FastAPI makes it from the routes. What is put right here: refusals are `application/problem+json`, which it cannot be
told; titles of operations are those of their ids, and not of functions; a parameter is left out rather than null, for
which an address has no form; the forms of bodies stand beside those of answers, under their names; and the refusal of
its own validation is left out, because `problems` answers in its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from ironflow.config import Settings
from ironflow.server.problems import MEDIA_TYPE

_FOREIGN = ("HTTPValidationError", "ValidationError")
_DESCRIPTION = """\
Runs, workflows, capacity, audit and keys of an Ironflow server.

Every request carries an API key: `Authorization: Bearer …`. `security` names the roles of which a key needs one; an
admin may do what a developer may, and a developer what a viewer may. Keys of workers are refused here.

A refusal is a problem document (RFC 9457) with a stable `code`. Those that any request may meet: an unknown path is a
404 with the code `NOT_FOUND`; a method that a path does not have is a 405 with `METHOD_NOT_ALLOWED`, whose header
`Allow` names those that it has.

Bodies are JSON, and say so by `Content-Type: application/json` or another type that ends in `+json`; one that says
something else is refused with 415, one that says nothing is taken for JSON. A body has at most {most_bytes:,} bytes.

Lists are read page by page: pass `next` back as `cursor`, with the same filters (`limit` may change), until it is null.
Times are there twice: `x_at_ms` in milliseconds since 1970 and `x_at` in ISO 8601, UTC. An id in a path may hold any
printable character; percent-encode it.

**Values** of the code of workflows (`input`, `output`, `result`) are in the form in which journals hold them: JSON, in
which an object with one key that begins with `$` stands for a type that JSON does not have.

- `{{"$decimal": "14.90"}}`: a decimal number; `$uuid`, `$date`, `$time`: their text
- `$float`: `"nan"`, `"inf"` or `"-inf"`
- `$datetime`: ISO 8601, or a list of that and the name of the time zone
- `$timedelta`: a list of days, seconds, microseconds; `$complex`: a list of two numbers as texts
- `$bytes`, `$bytearray`: base64
- `$tuple`, `$set`, `$frozenset`: a list; `$dict`: a list of pairs, each a key and its value
- `$as`: a list of the name of a class and what it holds

A run's `state`: `pending` and `retrying` wait in the queue, `running` executes, `sleeping`, `waiting` and
`awaiting_approval` wait without holding a worker, `paused` waits for a person, `cancelling` undoes its steps. It has
ended as `completed`, as `warning` (completed, with something to look at), as `failed` or as `cancelled`.
"""
#: The largest body, unless it is set otherwise.
_MOST_BYTES = Settings().max_api_body_bytes
#: What the parameters of paths mean.
_PATHS = {"run_id": "The run's id.", "name": "The name of the workflow.", "key_id": "The id of the key."}


def document(routes: Sequence[BaseRoute], most_bytes: int = _MOST_BYTES) -> dict[str, Any]:
    """The document of these routes.

    Args:
        routes: of the API; others are left out.
        most_bytes: the largest body that the server reads.
    """
    about = _DESCRIPTION.format(most_bytes=most_bytes)
    found = get_openapi(title="Ironflow", version="1", description=about, routes=routes, openapi_version="3.1.0")
    schemas = found["components"]["schemas"]
    for operation in _operations(found):
        operation["summary"] = _words(operation["operationId"])
        for parameter in operation.get("parameters", ()):
            parameter["schema"] = _given(parameter["schema"])
            if parameter["in"] == "path":
                parameter["description"] = _PATHS[parameter["name"]]
        if "security" in operation:
            # One entry per role: whoever reads the document takes a list of roles for "all of these".
            asked = [pair for entry in operation["security"] for pair in entry.items()]
            operation["security"] = [{scheme: [role]} for scheme, roles in asked for role in roles]
        for content in operation.get("requestBody", {}).get("content", {}).values():
            content["schema"] = _named(content["schema"], schemas)
        _put_right(operation.get("responses", {}), most_bytes)
    for name in _FOREIGN:
        schemas.pop(name, None)
    return found


def _operations(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in found["paths"].values():
        yield from path.values()


def _words(name: str) -> str:
    """An operation's id as a title: "Get input schema" of `getInputSchema`."""
    return re.sub("[A-Z]", lambda found: f" {found[0].lower()}", name).capitalize()


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """What a parameter is where it is given."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **kinds[0]} if kinds else schema


def _named(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Put a form and those that it is made of among the others; the reference to it."""
    own = {name: part for name, part in schema.items() if name != "$defs"}
    schemas.update({**schema.get("$defs", {}), own["title"]: own})
    return {"$ref": f"#/components/schemas/{own['title']}"}


def _put_right(responses: dict[str, Any], most_bytes: int) -> None:
    responses.pop("422", None)
    for status, response in responses.items():
        content = response.get("content", {})
        if int(status) >= 400 and "application/json" in content:
            content[MEDIA_TYPE] = content.pop("application/json")
        if status == "413":
            response["description"] += (
                f". A body has at most {most_bytes:,} bytes, and `details` holds its `size` and the `limit`."
            )
