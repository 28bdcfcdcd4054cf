"""What is large on its way out: in pieces, and few of one owner's at a time.

A server's `send` returns once its connection has taken what it was given, however much that is, and only the next one
waits until most of it has gone. Promises that no connection is given more than a piece at a time, so that what nobody
reads costs its connection two of them; and that an owner's large values are held for a few readers at a time, each
until its last piece was taken: who reads nothing keeps a place, and not the memory of another value.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterator
from contextlib import aclosing
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ironflow.server.bodies import Json, encoded

Text = TypeVar("Text", str, bytes)

#: Large values that are held at the same time for one owner: each costs a few times its size until it is sent.
AT_ONCE: Final = 8
#: Characters or bytes that are sent together: less would cost more to send than to make.
PIECE: Final = 1 << 16


class Places:
    """Who holds something large. Owners know nothing of each other."""

    def __init__(self) -> None:
        #: gone when nobody holds or waits
        self._of: WeakValueDictionary[Hashable, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, whose: Hashable) -> asyncio.Semaphore:
        """The places of an owner: take one before something large is read, and leave it once that was sent."""
        return self._of.setdefault(whose, asyncio.Semaphore(AT_ONCE))


def pieces(text: Text) -> Iterator[Text]:
    """The same in pieces that can be sent."""
    if len(text) <= PIECE:
        yield text
        return
    for begin in range(0, len(text), PIECE):
        yield text[begin : begin + PIECE]


class Sent(StreamingResponse):
    """An answer in JSON whose pieces are made while it is sent; they are closed with it, whatever ends it."""

    media_type = Json.media_type

    def __init__(self, made: AsyncGenerator[bytes, None]) -> None:
        super().__init__(made, headers={"Cache-Control": "no-store"})
        self._made = made

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._made):
            await super().__call__(scope, receive, send)


class Page(Json):
    """An answer that may be large: it is made when there is a place for it, which it holds until it was sent.

    Args:
        make: gives the content; what it raises is answered in its stead.
        places: see `Places.of`.
    """

    def __init__(self, make: Callable[[], Awaitable[Any]], places: asyncio.Semaphore) -> None:
        super().__init__(None)
        self._make, self._places = make, places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._places:
            content = encoded(await self._make())
            self.headers["content-length"] = str(len(content))
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for piece in pieces(content):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
