"""The way from a worker to its servers: one pool of connections, and what is done when an answer does not come.

Several servers are one: they share a database, so whichever answers will do. A request that finds no server, or one
that cannot answer, goes to the next at once, and only when all have failed is there a pause (1, 2, 4 s). Any other
refusal is final; and so is, until a server has answered for the first time, what stays as it is: a certificate that is
not trusted. Every answer tells the database's time, which is all that this side knows of it. The key appears in
no message; that a server which took it before refuses it now is told once, since no repetition will change that.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from ironflow.client.problems import error_of
from ironflow.client.transport import broken, http_library, parsed, proxy_of
from ironflow.errors import (
    AccessError,
    Forbidden,
    IronflowError,
    PayloadTooLarge,
    ServerError,
    ServerUnreachable,
    Unauthenticated,
)
from ironflow.remote.clock import Clock

if TYPE_CHECKING:
    import aiohttp


#: Seconds before each further round of tries.
PAUSES: Final = (1.0, 2.0, 4.0)
#: A pause that ends because a server has answered something else lasts for so long at the least, seconds.
LEAST_PAUSE_S: Final = 0.1
#: How long a connection may take to come about, and an answer that is not held on purpose, seconds.
CONNECT_S, ANSWER_S = 5.0, 15.0
#: A stream that was silent for so long has lost its server: signs of life come every 5 s.
SILENT_S: Final = 15.0
#: A larger body is not handed over in one piece, bytes.
AT_ONCE: Final = 1 << 18
PREFIX: Final = "/api/v1/worker"


class Connection:
    """See the module's docstring. Opened and closed in one loop.

    Args:
        servers: their addresses, without a slash at the end.
        key: the worker key; None for a server that asks for none.
        pauses: seconds before each further round of tries.
    """

    def __init__(self, servers: Sequence[str], key: str | None, *, pauses: Sequence[float] = PAUSES) -> None:
        self.servers = tuple(servers)
        self.clock = Clock()
        #: the largest body that the server takes, once it has said so
        self.most_bytes: int | None = None
        self.headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        #: told when a key that was good is refused; called in whichever thread asked
        self.on_refused: Callable[[AccessError], None] = _nobody
        self._good = False
        self._judging = threading.Lock()
        self._pauses = tuple(pauses)
        #: the server that answered last
        self._at = 0
        self._hurry = asyncio.Event()
        #: whoever waits for his next try
        self._pausing: set[asyncio.Future[None]] = set()
        #: the proxy through which each server is asked; None: directly
        self.proxies: dict[str, str | None] = {}
        self._session: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """The servers, as people see them."""
        return ", ".join(self.servers)

    async def open(self) -> None:
        """Make the pools; nothing is sent yet."""
        aiohttp = http_library()
        self.proxies = {server: proxy_of(server) for server in self.servers}
        patient = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = aiohttp.ClientSession(headers=self.headers, timeout=patient)
        # The stream has a pool of its own: no burst of requests may keep it from coming about.
        quiet = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENT_S)
        self._streams = aiohttp.ClientSession(headers=self.headers, timeout=quiet)

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._session, self._streams):
            if session is not None:
                await session.close()
        self._session = self._streams = None

    def hurry(self) -> None:
        """This worker leaves: what is under way may be answered, but nothing pauses to be tried once more."""
        self._hurry.set()
        self._no_more_pauses()

    def encoded(self, body: Mapping[str, Any]) -> bytes:
        """A body as it is sent.

        Raises:
            PayloadTooLarge: the server would refuse it.
        """
        data = to_json(body)
        if self.most_bytes is not None and len(data) > self.most_bytes:
            raise PayloadTooLarge("the request", len(data), self.most_bytes)
        return data

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
        tries: int | None = None,
    ) -> dict[str, Any]:
        """Send a request and give its answer; the request may be carried out twice.

        Args:
            method, path: of the worker's API, without its prefix.
            body: what to send as JSON.
            query: parameters.
            answer_s: how long the server may take to answer, seconds.
            tries: rounds of tries; None for as many as there are pauses, and one more.

        Raises:
            ServerUnreachable: no server answered.
            IronflowError: what the server answered, as the class it was raised as there.
            PayloadTooLarge: the body is larger than the server takes; nothing was sent.
        """
        data = None if body is None else self.encoded(body)
        rounds = len(self._pauses) + 1 if tries is None else tries
        return await self.send(
            method, path, lambda again: data, query=query, answer_s=answer_s, goes_on=lambda failed: failed < rounds
        )

    async def send(
        self,
        method: str,
        path: str,
        data: Callable[[bool], bytes | None],
        *,
        goes_on: Callable[[int], bool],
        query: Mapping[str, str] | None = None,
        answer_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """As `ask`, for whoever decides how often: `data(again)` gives the body, `goes_on(failed)` says whether so
        many failed rounds are to be followed by another.
        """
        failed, again = 0, False
        problem: IronflowError = ServerUnreachable("no server is named")
        while True:
            lasting = True
            for _ in self.servers:
                server = self.servers[self._at]
                try:
                    return await self._once(server, method, path, data(again), query, answer_s)
                except IronflowError as error:
                    if error.status < 500:
                        raise
                    problem, again = error, True
                    lasting = lasting and bool(error.details.get("lasting"))
                self._leave(server)
            failed += 1
            # Of a worker that has worked, a certificate may have run out: it has runs to keep until there is a new one.
            if self._hurry.is_set() or not goes_on(failed) or (lasting and not self._good):
                raise problem
            if await self._hurried(self._pauses[min(failed, len(self._pauses)) - 1] if self._pauses else 0):
                raise problem

    def _leave(self, server: str) -> None:
        """This server failed: the next one is asked from now on, unless another request has found that out before."""
        if self.servers[self._at] == server:
            self._at = (self._at + 1) % len(self.servers)

    async def _hurried(self, pause: float) -> bool:
        """Pause until a server has answered somebody, but not for longer than this. True where there is no time left.

        What pauses may keep others waiting who were never refused: a worker that was cut off and is back must not wait
        for what it tried in vain meanwhile.
        """
        answered = asyncio.get_running_loop().create_future()
        self._pausing.add(answered)
        try:
            await asyncio.sleep(min(pause, LEAST_PAUSE_S))
            if not self._hurry.is_set():
                await asyncio.wait_for(answered, max(0, pause - LEAST_PAUSE_S))
        except TimeoutError:
            pass
        finally:
            self._pausing.discard(answered)
        return self._hurry.is_set()

    def _no_more_pauses(self) -> None:
        for pausing in self._pausing:
            if not pausing.done():
                pausing.set_result(None)

    async def _once(
        self, server: str, method: str, path: str, data: bytes | None, query: Mapping[str, str] | None, answer_s: float
    ) -> dict[str, Any]:
        assert self._session is not None
        headers = {} if data is None else {"Content-Type": "application/json"}
        # What is large is written piece by piece, so that the loop has its turns in between.
        content = io.BytesIO(data) if data is not None and len(data) > AT_ONCE else data
        try:
            async with asyncio.timeout(answer_s):
                asked: dict[str, Any] = {"params": query, "data": content, "headers": headers, "allow_redirects": False}
                url, proxy = f"{server}{PREFIX}{path}", self.proxies[server]
                async with self._session.request(method, url, proxy=proxy, **asked) as response:
                    answered, status = await response.read(), response.status
        except TimeoutError as error:
            raise ServerUnreachable(f"{server} did not answer within {answer_s:g} s") from error
        except (http_library().ClientError, OSError) as error:
            raise broken(server, error) from error
        body = parsed(answered)
        if status < 500:
            self._no_more_pauses()
        if status >= 400:
            raise self.refused(status, body, server)
        if not isinstance(body, dict):
            raise ServerError(f"{server} answers, but not as an Ironflow server does")
        self.accepted()
        self.clock.saw(body.get("now"))
        return body

    async def stream(self, path: str, query: Mapping[str, str]) -> AsyncIterator[dict[str, Any]]:
        """Read a stream of JSON lines until it ends. One try: whoever reads it knows when to come back.

        Raises:
            ServerUnreachable: it could not be opened, or it broke.
            IronflowError: the server refused it.
        """
        assert self._streams is not None
        server = self.servers[self._at]
        try:
            url, proxy = f"{server}{PREFIX}{path}", self.proxies[server]
            async with self._streams.get(url, params=query, allow_redirects=False, proxy=proxy) as response:
                if response.status >= 400:
                    raise self.refused(response.status, parsed(await response.read()), server)
                async for line in response.content:
                    if line.strip():
                        yield from_json(line)
        except (http_library().ClientError, OSError, ValueError) as error:  # a timeout is an OSError
            self._leave(server)
            raise broken(server, error) from error

    # ---- whether the key counts

    def accepted(self) -> None:
        """A server has done what it was asked for. May be called in any thread, as the next one."""
        self._good = True

    def refused(self, status: int, body: Any, server: str) -> IronflowError:
        """The error that a refusal stands for. One of a key that was good is told on: it was taken back."""
        error = error_of(status, body, server)
        if isinstance(error, Unauthenticated | Forbidden):
            # Of several servers one may be wrong: a node that was started on another database has other keys.
            told = f"{server} refuses the worker key: {error.message}"
            error = type(error)(told, hint=error.hint or "", details=error.details)
            with self._judging:
                lost, self._good = self._good, False
            if lost:
                self.on_refused(error)
        return error


def _nobody(error: AccessError) -> None:
    """What is told to no one."""
