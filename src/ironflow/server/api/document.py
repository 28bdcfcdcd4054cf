"""The OpenAPI 3.1 document of the API, as `/api/v1/openapi.json` serves it.

FastAPI makes it from the routes. What is put right here: refusals are `application/problem+json`, which it cannot be
told; a parameter is left out rather than null, for which an address has no form; and the refusal of its own validation
is left out, because `problems` answers in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi.openapi.utils import get_openapi
from starlette.routing import BaseRoute

from ironflow.server.problems import MEDIA_TYPE

_FOREIGN = ("HTTPValidationError", "ValidationError")
_DESCRIPTION = """\
Runs, workflows, capacity, audit and keys of an Ironflow server.

Every request carries an API key: `Authorization: Bearer …`. `security` names the roles of which a key needs one; an
admin may do what a developer may, and a developer what a viewer may. Keys of workers are refused here.

A refusal is a problem document (RFC 9457) with a stable `code`; an unknown path is a 404 with the code `NOT_FOUND`, and
a method that a path does not have a 405 with `METHOD_NOT_ALLOWED`. Bodies are JSON, whatever their media type says, of
at most 2 MiB unless the server is set otherwise; the 413 names the limit.

Lists are read page by page: pass `next` back as `cursor`, with the same filters (`limit` may change), until it is null.
Times are there twice: `x_at_ms` in milliseconds since 1970 and `x_at` in ISO 8601, UTC. An id in a path may hold any
printable character; percent-encode it.

A run's `state`: `pending` and `retrying` wait in the queue, `running` executes, `sleeping`, `waiting` and
`awaiting_approval` wait without holding a worker, `paused` waits for a person, `cancelling` undoes its steps. It has
ended as `completed`, as `warning` (completed, with something to look at), as `failed` or as `cancelled`.
"""


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of these routes."""
    found = get_openapi(title="Ironflow", version="1", description=_DESCRIPTION, routes=routes, openapi_version="3.1.0")
    for path in found["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _given(parameter["schema"])
            if "security" in operation:
                # One entry per role: whoever reads the document takes a list of roles for "all of these".
                asked = [pair for entry in operation["security"] for pair in entry.items()]
                operation["security"] = [{scheme: [role]} for scheme, roles in asked for role in roles]
            responses = operation.get("responses", {})
            responses.pop("422", None)
            for status, response in responses.items():
                content = response.get("content", {})
                if int(status) >= 400 and "application/json" in content:
                    content[MEDIA_TYPE] = content.pop("application/json")
    for name in _FOREIGN:
        found["components"]["schemas"].pop(name, None)
    return found


def _given(schema: dict[str, Any]) -> dict[str, Any]:
    """What a parameter is where it is given."""
    kinds = [one for one in schema.get("anyOf", ()) if one != {"type": "null"}]
    return {**{name: value for name, value in schema.items() if name != "anyOf"}, **kinds[0]} if kinds else schema
