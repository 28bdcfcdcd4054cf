"""Reading the body of a request, within a limit, and writing the one of an answer.

Promises that a body is refused as soon as it is known to be too large, before the rest of it is read; that what is no
JSON, has a field too many or one of a wrong type is refused with each place named; and that an answer is always UTF-8.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.responses import Response

from ironflow.errors import InvalidRequest, MalformedJson
from ironflow.model.journal import DEEPEST, shallow
from ironflow.server.exchange import ClientGone, read_body

M = TypeVar("M", bound=BaseModel)

_TOO_LARGE = "Store the data elsewhere and pass a reference, or raise IRONFLOW_MAX_API_BODY_BYTES."
#: Places that one refusal names at most.
_MOST_ERRORS = 20
#: What a validator calls that something is no object, in words of its own language.
_NO_OBJECT = frozenset({"model_type", "model_attributes_type", "dict_type", "dataclass_type", "mapping_type"})


class Json(Response):
    """An answer of plain data. It is for who asked with this key, so nothing on the way may keep it."""

    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status_code, {"Cache-Control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return encoded(content)


def encoded(content: Any) -> bytes:
    """Plain data as JSON in UTF-8."""
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=str).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which a user's text may hold: only an escape can say it
        return json.dumps(content, separators=(",", ":"), default=str).encode()


def body(model: type[M], *, optional: bool = False) -> Callable[[Request], Awaitable[M]]:
    """A dependency: the body as this model. `optional`: no body means an empty object."""

    async def take(request: Request) -> M:
        limit = request.app.state.node.settings.max_api_body_bytes
        try:
            content = await read_body(request.scope, request.receive, limit, _TOO_LARGE)
        except ClientGone as error:
            raise MalformedJson("the body broke off") from error
        if optional and not content:
            content = b"{}"
        try:
            data = from_json(content, allow_inf_nan=False)
        except ValueError as error:
            raise MalformedJson(f"the body is no JSON: {error}") from error
        if not shallow(data, DEEPEST):
            raise MalformedJson(f"the body is nested more than {DEEPEST} levels deep")
        try:
            return model.model_validate(data)
        except ValidationError as error:
            # Without what was sent: an input may hold what no log or screen should.
            raise refused(error.errors(include_url=False, include_context=False, include_input=False)) from None

    return take


def refused(errors: Iterable[Mapping[str, Any]]) -> InvalidRequest:
    """The refusal that tells each of these findings of a validator."""
    found = [{"at": ".".join(str(part) for part in one["loc"]) or "body", "problem": _problem(one)} for one in errors]
    told = "; ".join(f"{one['at']}: {one['problem']}" for one in found[:_MOST_ERRORS])
    return InvalidRequest(told, details={"errors": found[:_MOST_ERRORS]})


def _problem(found: Mapping[str, Any]) -> str:
    return "a JSON object is wanted" if found["type"] in _NO_OBJECT else str(found["msg"])


def accepts(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What the OpenAPI document says of a body that `body` reads."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}}
