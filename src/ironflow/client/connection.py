"""The way to a server: one pool of connections, and what is done when an answer does not come.

Owns retries, limits and the turning of refusals into errors. Promises that a request is sent again only where a second
copy of it does no harm, that a body the server would refuse is refused here, before it is sent, and that the key
appears in no message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pydantic_core import to_json

from ironflow.client import forms
from ironflow.client.problems import error_of
from ironflow.client.sse import Message, Reader
from ironflow.client.transport import broken, http_library, parsed, proxy_of, stranger
from ironflow.errors import (
    IronflowError,
    PayloadTooLarge,
    ServerError,
    ServerUnreachable,
    StoreUnreachable,
    Unauthenticated,
)

if TYPE_CHECKING:
    import aiohttp

log = logging.getLogger("ironflow.client")

#: Seconds before each further try of a request that found no server, or one that could not answer.
PAUSES: Final = (1.0, 2.0, 4.0)
#: How long a connection may take to come about, and how long a server may say nothing, seconds. A stream that is quiet
#: for longer than this has lost its server: keep-alives come far more often.
CONNECT_S: Final = 10
SILENT_S: Final = 60
#: An answer that takes longer than this is said to be waited for; and a server that says only then that its database is
#: away has waited for it itself, so that a reader need not wait as long again, seconds.
LONG_S: Final = 5.0
#: Rows that one request of a list asks for.
PAGE: Final = 200
_PREFIX: Final = "/api/v1"


Read = TypeVar("Read")


class Answer(NamedTuple):
    """What a server answered, if it did not refuse."""

    status: int
    body: Any


class Connection:
    """See the module's docstring. Opened and closed in one loop.

    Args:
        server: its address, as `address.server_url` gives it.
        key: the key; None for a server that asks for none.
        most_bytes: the largest body a request may have.
        pauses: seconds before each further try.
    """

    def __init__(
        self,
        server: str,
        key: str | None,
        *,
        most_bytes: int,
        pauses: Sequence[float],
    ) -> None:
        self.server = server
        self._key = key
        self.most_bytes = most_bytes
        self.pauses = pauses
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the pool; nothing is sent yet."""
        aiohttp = http_library()
        headers = {"Accept": "application/json", "User-Agent": "ironflow-client"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, proxy=proxy_of(self.server))

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | bytes | None = None,
        again: bool,
    ) -> Answer:
        """Send a request and give its answer.

        Args:
            method, path: of the API, without its prefix.
            query: parameters; those that are None are left out, lists are repeated.
            body: what to send as JSON; or that JSON itself.
            again: whether the request may be carried out twice, so that it is sent again when its answer was lost.
                One that certainly did not arrive is sent again in any case.

        Raises:
            IronflowError: what the server answered, as the class it was raised as there.
            ServerUnreachable: no server answered, after all tries.
            PayloadTooLarge: the body is larger than a server takes; nothing was sent.
        """
        data = self._encoded(body)
        failed = 0
        while True:
            began = time.monotonic()
            try:
                with self._saying_that_it_takes_long():
                    answer = await self._ask_once(method, path, query, data)
            except ServerUnreachable as error:
                more = (again or error.details["unsent"]) and not error.details["lasting"]
                if failed == len(self.pauses) or not more:
                    raise
                problem = error.message
            else:
                if answer.status < 400:
                    return answer
                refused = self._refusal(answer.status, answer.body)
                waited = isinstance(refused, StoreUnreachable) and time.monotonic() - began >= LONG_S
                # What changes something is worth all the patience there is; whoever reads is better told.
                if failed == len(self.pauses) or not again or answer.status < 500 or (waited and method == "GET"):
                    raise refused
                problem = refused.message
            failed += 1
            await self.rest(failed, problem)

    def read(self, form: Callable[[Any], Read], body: Any) -> Read:
        """What `form` makes of an answer.

        Raises:
            ServerError: it is JSON of another form: something else than Ironflow answers at this address.
        """
        try:
            return form(body)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise stranger(self.server) from error

    async def each(
        self, path: str, form: Callable[[Any], Read], query: Mapping[str, Any] | None = None, *, most: int | None = None
    ) -> AsyncIterator[Read]:
        """Every row of a list, page by page, as `form` reads it; `most`: not more than so many."""
        cursor, left = None, most
        while left != 0:
            size = PAGE if left is None else min(PAGE, left)
            asked = {**(query or {}), "limit": size, "cursor": cursor}
            answer = (await self.ask("GET", path, query=asked, again=True)).body
            rows, cursor = self.read(_page, answer)
            for one in rows:
                yield self.read(form, one)
            if cursor is None:
                return
            left = None if left is None else left - len(rows)

    @asynccontextmanager
    async def stream(
        self, path: str, *, after: int, kinds: Sequence[str] = ()
    ) -> AsyncIterator[AsyncIterator[Message] | None]:
        """Open a stream of events, one that resumes after an id; None where nothing will ever come behind that.

        `kinds`: only events of these, and what ends the run; all if empty.

        One try: who follows it knows where to go on.

        Raises:
            IronflowError: what the server answered; its `status` is that of the answer.
            ServerUnreachable: no server answered; also while it is read, when it breaks.
        """
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        with _telling_breaks(self.server):
            response = await self._opened().get(
                f"{self.server}{_PREFIX}{path}", params=_parameters({"kind": kinds}), headers=headers
            )
        try:
            if response.status >= 400:
                with _telling_breaks(self.server):
                    refusal = parsed(await response.read())
                raise self._refusal(response.status, refusal)
            if response.status == 200 and response.content_type != "text/event-stream":
                raise stranger(self.server)
            yield None if response.status == 204 else self._messages(response)
        finally:
            response.close()

    async def _messages(self, response: aiohttp.ClientResponse) -> AsyncIterator[Message]:
        reader = Reader()
        with _telling_breaks(self.server):
            async for chunk in response.content.iter_any():
                for message in reader.feed(chunk):
                    yield message

    async def _ask_once(self, method: str, path: str, query: Mapping[str, Any] | None, data: bytes | None) -> Answer:
        headers = {} if data is None else {"Content-Type": "application/json"}
        with _telling_breaks(self.server):
            async with self._opened().request(
                method,
                f"{self.server}{_PREFIX}{path}",
                params=_parameters(query),
                data=data,
                headers=headers,
                allow_redirects=False,
            ) as response:
                body = parsed(await response.read())
                if 300 <= response.status < 400:
                    # Not followed: a start that is sent on becomes a look at the list.
                    place = response.headers.get("Location", "nowhere")
                    raise ServerError(f"{self.server} sends requests on to {place}", hint="Use that address.")
                if response.status < 400 and isinstance(body, str):
                    raise stranger(self.server)
                return Answer(response.status, body)

    async def rest(self, failed: int, problem: str) -> None:
        """Pause before the next try, and say why; `failed`: how many tries have failed by now, from 1."""
        pause = self.pauses[failed - 1]
        log.warning("%s; trying again in %g s", problem, pause)
        await asyncio.sleep(pause)

    @contextmanager
    def _saying_that_it_takes_long(self) -> Iterator[None]:
        timer = asyncio.get_running_loop().call_later(
            LONG_S, log.warning, "%s has not answered for %g s; still waiting", self.server, LONG_S
        )
        try:
            yield
        finally:
            timer.cancel()

    def _refusal(self, status: int, body: Any) -> IronflowError:
        error = error_of(status, body, self.server)
        if isinstance(error, Unauthenticated):
            sent = "the one that was sent is unknown, revoked or expired" if self._key else "none was sent"
            where = "The key is what IRONFLOW_API_KEY says, the key file holds, or the program passes."
            return Unauthenticated(f"{self.server} wants a valid API key, and {sent}", hint=where)
        return error

    def _encoded(self, body: Mapping[str, Any] | bytes | None) -> bytes | None:
        if body is None:
            return None
        data = body if isinstance(body, bytes) else to_json(body)
        if len(data) > self.most_bytes:
            raise PayloadTooLarge("the request", len(data), self.most_bytes)
        return data

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open: use it with `async with` or `with`")
        return self._session


@contextmanager
def _telling_breaks(server: str) -> Iterator[None]:
    """Turn what a broken or missing connection raises into an error of ours."""
    try:
        yield
    except (http_library().ClientError, OSError) as error:  # a timeout is an OSError
        raise broken(server, error) from error


def _page(body: Any) -> tuple[list[Any], str | None]:
    """The rows of a page, and where the next one begins."""
    cursor = body["next"]
    if not isinstance(cursor, str | None):
        raise TypeError("no page of a list")
    return forms.items(body["items"]), cursor


def _parameters(query: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, value in (query or {}).items():
        if isinstance(value, list | tuple):
            found += [(name, str(one)) for one in value]
        elif value is not None:
            found.append((name, str(value)))
    return found
