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

Every request carries an API key: `Authorization: Bearer …`. A refusal is a problem document (RFC 9457) with a stable
`code`. Lists are read page by page: pass `next` back as `cursor`, with the same filters, until it is null.
"""


def document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """The document of these routes."""
    found = get_openapi(title="Ironflow", version="1", description=_DESCRIPTION, routes=routes, openapi_version="3.1.0")
    for path in found["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = _given(parameter["schema"])
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
