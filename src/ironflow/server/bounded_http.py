"""What one connection may cost before it is known who speaks, and while nobody listens at its other end.

The parser below has no limit on the head of a request, or on how long a request may take to arrive, and a socket none
on how long an answer waits to be taken. Promises that a head of more than `MOST_HEAD` bytes is refused with 431,
however it is cut into packets; what stands behind a body counts, and is dropped. That what is no request is refused
with 400, as a problem like any other refusal. That a request which is not whole `ARRIVES_S` after its first byte, or
after its connection, is refused with 408. That a connection whose other end takes nothing of an answer for `STUCK_S` is
cut off, so that what it was sent is let go of. And that whoever sends no more behind a whole request is answered, but
held for nothing. A connection for which there is no file is refused with 503 (`open_files`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic_core import to_json
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ironflow.server import problems
from ironflow.server.open_files import doorkeeper

#: Bytes of the line and the headers of one request. Browsers and proxies stop at 8 to 32 KiB.
MOST_HEAD: Final = 65_536
#: What a header costs beside its bytes: very many empty ones are no smaller than a few long ones.
_OF_A_HEADER: Final = 64
#: Seconds in which a request arrives whole: the largest body needs 40 kB a second for it.
ARRIVES_S: Final = 60.0
#: Seconds in which the other end takes something of an answer.
STUCK_S: Final = 30.0


class _Refused(Exception):
    """Raised inside the parser, which then stops."""


class BoundedHttp(HttpToolsProtocol):
    """See the module's docstring."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._app = self.app
        self.app = self._answer
        #: bytes of headers that are whole
        self._head = 0
        #: bytes since the parser last had something whole: of a header without an end, it keeps all there is
        self._pending = 0
        #: the head of the present request is there: headers that come now stand behind its body
        self._headed = False
        #: what is said to what the parser stops at
        self._said = _MALFORMED
        #: the other end sends no more
        self._ended = False
        #: who answers waits for the other end to go
        self._waits = False
        self._stuck: asyncio.TimerHandle | None = None
        #: a request has begun and is not whole, or none ever was
        self._arriving = True
        self._late: asyncio.TimerHandle | None = None

    # ---- what comes in

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected, and may take so long to say why."""
        super().connection_made(transport)
        if doorkeeper.refuses(transport):
            self._hang_up(_FULL)
            return
        self._late = self.loop.call_later(ARRIVES_S, self._too_late)

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._pending += len(data)
        super().data_received(data)
        if self._pending > MOST_HEAD and not self.transport.is_closing():
            self._hang_up(_TOO_LARGE)
        # Almost every request comes in one piece: a timer is made for the others only.
        if not self._arriving:
            self._in_time()
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(ARRIVES_S, self._too_late)

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head = 0
        self._headed = False
        self._arriving = True

    def on_url(self, url: bytes) -> None:
        """A part of its address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers; or of those behind its body, by which nobody may be known or anything decided.

        (RFC 9110, 6.5.1: a balancer in front has not seen them when it decided.)
        """
        self._count(len(name) + len(value) + _OF_A_HEADER)
        if not self._headed:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._pending = 0
        self._headed = True
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refuse(_HOSTS)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        self._pending = 0
        self._arriving = False
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MOST_HEAD:
            self._refuse(_TOO_LARGE)

    def _refuse(self, refusal: bytes) -> None:
        self._said = refusal
        raise _Refused

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or what the parser was stopped at."""
        self._hang_up(self._said)

    def _hang_up(self, refusal: bytes) -> None:
        if not self._answers():
            self.transport.write(refusal)
        self.transport.close()

    def _answers(self) -> bool:
        """Whether an answer is under way, of which a refusal would be taken for a part."""
        last: Any = self.cycle  # None before the first request
        begun = last is not None and last.response_started and not last.response_complete
        return bool(self.pipeline) or begun

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        self._hang_up(_TOO_SLOW)

    # ---- what goes out

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and notice when who answers has it whole and still listens: he waits for the end."""
        whole = self._waits = False

        async def heard() -> Message:
            nonlocal whole
            if whole:
                self._waits = True
                if self._ended:
                    self.transport.close()
            message = await receive()
            whole = whole or not message.get("more_body", False)
            return message

        await self._app(scope, heard, send)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The other end sends no more. Returns whether it is still answered.

        It may have gone, for a process that dies says no more than this. So only what is answered anyway is: to hold
        something for it would be to hand runs to the dead.
        """
        self._ended = True
        last: Any = self.cycle  # None before the first request
        due = last is not None and not last.response_complete
        return due and not self._arriving and not self._waits

    def on_response_complete(self) -> None:
        """An answer is out."""
        super().on_response_complete()
        if self._ended and self.cycle.response_complete:
            self.transport.close()

    def pause_writing(self) -> None:
        """The other end takes less than it is sent."""
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        """It has taken it."""
        super().resume_writing()
        self._unwatch()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._unwatch()
        self._in_time()
        super().connection_lost(exc)
        self.app = self._app  # which holds nothing of this connection

    def _watch(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._stuck = self.loop.call_later(STUCK_S, self._look, left)

    def _unwatch(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _look(self, left_before: int) -> None:
        if self.transport.get_write_buffer_size() >= left_before:
            self.transport.abort()
        else:
            self._watch()


def _refusal(reason: str, status: int, code: str, detail: str, hint: str) -> bytes:
    body = to_json(problems.problem(status, code, detail, hint=hint))
    head = (
        f"HTTP/1.1 {status} {reason}\r\n"
        f"content-type: {problems.MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_TOO_LARGE: Final = _refusal(
    "Request Header Fields Too Large",
    431,
    "HEADERS_TOO_LARGE",
    f"the head of the request has more than {MOST_HEAD:,} bytes",
    "Send fewer or shorter headers.",
)
_MALFORMED: Final = _refusal(
    "Bad Request",
    400,
    "MALFORMED_HTTP",
    "what was sent is no HTTP request",
    "Send HTTP/1.1, without TLS, which a balancer undoes. A body has a Content-Length or comes in chunks, not both.",
)
_HOSTS: Final = _refusal(
    "Bad Request",
    400,
    "MALFORMED_HTTP",
    "a request of HTTP/1.1 names its host, and once",
    "Send one `Host` header.",
)
_FULL: Final = _refusal(
    "Service Unavailable",
    503,
    "TOO_MANY_CONNECTIONS",
    "this server has as many connections as it may have open files",
    "Try again in a moment, or another server. Its log says what its operator can do.",
)
_TOO_SLOW: Final = _refusal(
    "Request Timeout",
    408,
    "REQUEST_TOO_SLOW",
    f"the request was not whole after {ARRIVES_S:g} s",
    "Open a connection when the request is ready, and send it in one go.",
)
