"""One request and its answer for the routes that workers use: JSON in, JSON out, errors as problem details.

These are asked thousands of times a second, so they stand on ASGI itself: no signature is inspected and nothing is
parsed twice. The body is read up to its limit and not a byte further.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from pydantic_core import from_json, to_json
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ironflow.errors import InvalidRequest, MalformedJson, PayloadTooLarge, UnsupportedMediaType
from ironflow.server import problems
from ironflow.server.access import Access, Caller, worker
from ironflow.server.catalogue import Catalogue
from ironflow.server.turns import Turn

_JSON: Final = b"application/json"
_BODY: Final = "the body of the request"
#: Bytes of a body that are parsed in some milliseconds.
_LARGE: Final = 1 << 17
#: Entries of a list in one request: no caller may hold the database for longer than so many take.
MOST_ITEMS: Final = 10_000
#: Beyond these numbers neither every reader of JSON nor every database is exact.
_NUMBERS: Final = range(-(1 << 53) + 1, 1 << 53)


class ClientGone(Exception):
    """Whoever asked has closed the connection: there is nobody to answer."""


class Exchange:
    """One request, as a handler sees it."""

    __slots__ = ("_receive", "body", "caller", "request")

    def __init__(self, request: Request, caller: Caller, body: dict[str, Any], receive: Receive) -> None:
        self.request = request
        self.caller = caller
        #: the parsed body; empty where the method has none
        self.body = body
        self._receive = receive

    async def gone(self) -> None:
        """Return when the caller has closed the connection."""
        await until_gone(self._receive)

    async def counts(self) -> bool:
        """Whether the caller's key still counts: one that is held on may be revoked meanwhile."""
        access: Access = self.request.app.state.access
        return await access.counts(self.caller)

    @property
    def catalogue(self) -> Catalogue:
        """What this node knows of declared workflows."""
        found: Catalogue = self.request.app.state.catalogue
        return found

    # ---- fields, each refused by name
    def text(self, name: str) -> str:
        """A field that must be text."""
        return _text(self.body.get(name), name)

    def optional(self, name: str) -> str | None:
        """A field that may be missing or null."""
        return None if self.body.get(name) is None else self.text(name)

    def count(self, name: str, most: int) -> int:
        """A whole number from 0 to `most`; a larger one is cut down to it."""
        return min(_number(self.body.get(name, 0), name), most)

    def entries(self, name: str, most: int = MOST_ITEMS) -> list[Any]:
        """A list, of a bounded length; empty where it is missing."""
        found = self.body.get(name, [])
        if not isinstance(found, list) or len(found) > most:
            raise InvalidRequest(f"{name} must be a list of at most {most:,} entries", hint="")
        return found

    def rows(self, name: str, kinds: Sequence[type]) -> list[tuple[Any, ...]]:
        """A list of lists, each of these types in this order."""
        found = self.entries(name)
        for row in found:
            if not isinstance(row, list) or [type(value) for value in row] != list(kinds):
                form = ", ".join(kind.__name__ for kind in kinds)
                raise InvalidRequest(f"each of {name} must be [{form}]", hint="")
            if not all(map(_storable, row)):
                raise InvalidRequest(f"one of {name} holds a NUL or a number of more than 53 bits", hint="")
        return [tuple(row) for row in found]

    def query(self, name: str) -> str:
        """A parameter of the address that must be there."""
        return _text(self.request.query_params.get(name), name)

    def query_count(self, name: str) -> int:
        """A parameter that is a whole number, 0 where it is missing."""
        text = self.request.query_params.get(name, "0")
        if not text.isascii() or not text.isdigit() or len(text) > 15:
            raise InvalidRequest(f"{name} must be a whole number", hint="")
        return int(text)


Answer = tuple[int, Any]
Handler = Callable[[Exchange], Awaitable[Answer]]


class Endpoint:
    """An ASGI app of one handler.

    Args:
        handler: gives the status and the body of the answer.
        most_bytes: the largest body that is read.
    """

    def __init__(self, handler: Handler, most_bytes: int) -> None:
        self._handler = handler
        self._most = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            request = Request(scope)
            caller = await worker(request)
            turn = request.app.state.node.turns.of(caller.scope.org)
            body = await read_json(scope, receive, self._most, turn) if scope["method"] != "GET" else {}
            status, answer = await self._handler(Exchange(request, caller, body, receive))
            content = to_json(answer)
        except ClientGone:
            return
        except Exception as error:
            await refuse(send, error)
            return
        await _send(send, status, content, _JSON)


async def refuse(send: Send, error: Exception) -> None:
    """Answer with the problem that an error is."""
    problem = problems.of_error(error)
    more = [(name.lower().encode(), value.encode()) for name, value in problems.headers(problem).items()]
    await _send(send, problem["status"], to_json(problem), problems.MEDIA_TYPE.encode(), more)


async def until_gone(receive: Receive) -> None:
    """Return when the caller has closed the connection; what it may still send is dropped."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(
    send: Send, status: int, content: bytes, media: bytes, more: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    headers = [(b"content-type", media), (b"content-length", str(len(content)).encode()), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def read_json(scope: Scope, receive: Receive, most: int, turn: Turn) -> dict[str, Any]:
    """The body of a request: a JSON object, or nothing. A large one is parsed in its organisation's `turn`.

    Raises:
        PayloadTooLarge: it is larger than `most` bytes; the rest is not read.
        UnsupportedMediaType, MalformedJson, InvalidRequest: it is no JSON, or no object.
        ClientGone: the connection broke.
    """
    content = await read_body(scope, receive, most)
    if not content:
        return {}
    try:
        if len(content) < _LARGE:
            found = from_json(content, allow_inf_nan=False)
        else:
            async with turn:
                found = from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedJson(f"the body is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidRequest("the body must be a JSON object", hint="")
    return found


async def read_body(scope: Scope, receive: Receive, most: int, hint: str = "Send less in one request.") -> bytes:
    """The whole body of a request. One that says it is too large is not read at all.

    Raises:
        PayloadTooLarge: it is larger than `most` bytes; the rest is not read. `hint` says what to do.
        UnsupportedMediaType: there is one, and it says that it is something else than JSON, or compressed.
        ClientGone: the connection broke.
    """
    media: list[bytes] = []
    codings: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:18]) > most:
            raise PayloadTooLarge(_BODY, int(value[:18]), most, hint=hint)
        if name == b"content-type":
            media.append(value)
        if name == b"content-encoding" or (name == b"transfer-encoding" and value.lower() != b"chunked"):
            codings.append(value)
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size += len(part)
        if size > most:
            raise PayloadTooLarge(_BODY, size, most, hint=hint)
        parts.append(part)
        if not message.get("more_body", False):
            break
    if size and codings:
        _check_codings(b", ".join(codings).decode("latin-1"))
    for said in media if size else ():
        if said != _JSON:
            _check_media(said.decode("latin-1"))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _check_codings(said: str) -> None:
    """Refuse what has been coded, whichever of several codings was named last."""
    if any(one.strip().lower() not in ("", "identity") for one in said.split(",")):
        raise UnsupportedMediaType(
            f"the body is said to be in the coding {said[:100]!r}, and none is undone here",
            hint="Send it as it is, without `Content-Encoding`; in chunks, `Transfer-Encoding` is `chunked` alone.",
            details={"content_encoding": said[:100]},
        )


def _check_media(said: str) -> None:
    """Refuse what is no JSON by its own words; whoever says nothing of it is taken to send JSON."""
    media = said.partition(";")[0].strip().lower()
    if media and media != "application/json" and not media.endswith("+json"):
        raise UnsupportedMediaType(
            f"the body is said to be {said[:100]!r}, and only JSON is read here", details={"media_type": said[:100]}
        )


def _text(value: object, name: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 1_000 or not _storable(value):
        raise InvalidRequest(f"{name} must be text of 1 to 1,000 characters, none of them a NUL", hint="")
    return value


def _storable(value: str | int) -> bool:
    """Whether either database can hold it; half of a surrogate pair has been refused as no JSON by then."""
    return "\0" not in value if isinstance(value, str) else value in _NUMBERS


def _number(value: object, name: str) -> int:
    if type(value) is not int or value < 0:  # not bool
        raise InvalidRequest(f"{name} must be a whole number that is not negative", hint="")
    return value
