"""What one connection may cost before it is known who speaks, and while nobody listens at its other end.

The parser below has no limit on the head of a request, and a socket none on how long an answer waits to be taken.
Promises that a head of more than `MOST_HEAD` bytes is refused with 431, however it is cut into packets, and that a
connection whose other end takes nothing of an answer for `STUCK_S` is cut off, so that what it was sent is let go of.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ironflow.server import problems

#: Bytes of the line and the headers of one request. Browsers and proxies stop at 8 to 32 KiB.
MOST_HEAD: Final = 65_536
#: What a header costs beside its bytes: very many empty ones are no smaller than a few long ones.
_OF_A_HEADER: Final = 64
#: Seconds in which the other end takes something of an answer.
STUCK_S: Final = 30.0


class _HeadTooLarge(Exception):
    """Raised inside the parser, which then stops."""


class BoundedHttp(HttpToolsProtocol):
    """See the module's docstring."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: bytes of headers that are whole
        self._head = 0
        #: bytes since the parser last had something whole: of a header without an end, it keeps all there is
        self._pending = 0
        self._too_large = False
        self._stuck: asyncio.TimerHandle | None = None

    # ---- what comes in

    def data_received(self, data: bytes) -> None:
        """Take in what has arrived."""
        self._pending += len(data)
        super().data_received(data)
        if self._pending > MOST_HEAD and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._head = 0

    def on_url(self, url: bytes) -> None:
        """A part of its address."""
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One of its headers, or of those behind its body."""
        self._count(len(name) + len(value) + _OF_A_HEADER)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Its head is there."""
        self._pending = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of its body."""
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """It is whole."""
        self._pending = 0
        super().on_message_complete()

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > MOST_HEAD:
            self._too_large = True
            raise _HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, or one with too large a head."""
        if not self._too_large:
            super().send_400_response(msg)
            return
        if getattr(self.cycle, "response_complete", True):  # else an answer is under way, and this would be part of it
            self.transport.write(_REFUSAL)
        self.transport.close()

    # ---- what goes out

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
        super().connection_lost(exc)

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


def _refusal() -> bytes:
    problem = problems.problem(
        431,
        "HEADERS_TOO_LARGE",
        f"the head of the request has more than {MOST_HEAD:,} bytes",
        hint="Send fewer or shorter headers.",
    )
    body = to_json(problem)
    head = (
        "HTTP/1.1 431 Request Header Fields Too Large\r\n"
        f"content-type: {problems.MEDIA_TYPE}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


_REFUSAL: Final = _refusal()
