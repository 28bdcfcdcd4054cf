"""Batching: what all runs of a worker commit in one moment travels as one request.

Few requests are under way at a time, and what is committed meanwhile gathers for the next one: the busier a worker is,
the more its requests carry. An item that is too large for one request is refused here; a request that the server finds
too large is sent again in halves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from pydantic_core import to_json

from ironflow.client.problems import made
from ironflow.errors import IronflowError, PayloadTooLarge, ServerError
from ironflow.model.wire import Item
from ironflow.remote.connection import PAUSES, Connection
from ironflow.tasks import begin

#: Requests under way at once: some are answered while the next one gathers. With one the worker waits for each answer,
#: with many each carries little; measured with a thousand short runs, three were best.
FLIGHTS: Final = 3
#: Most items of one request.
MOST_ITEMS: Final = 500
#: Bytes of a request that are no items.
_FRAME: Final = 1_024
_AGAIN: Final = b',"again":true}'


class Waiting(NamedTuple):
    """An item that is to be sent, and who waits for its answer."""

    data: bytes
    answer: asyncio.Future[str]


class Batches:
    """See the module's docstring.

    Args:
        connection: to the servers.
        monotonic: seconds that never run backwards.
    """

    def __init__(self, connection: Connection, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.session_id = ""
        #: until then (monotonic, seconds) a lease of this worker may be alive, and its writes are worth repeating
        self.alive_until = 0.0
        self._connection = connection
        self._monotonic = monotonic
        self._loop = asyncio.get_running_loop()
        self._waiting: list[Waiting] = []
        self._scheduled = False
        self._flights: set[asyncio.Task[None]] = set()

    def add(self, item: Item) -> asyncio.Future[str]:
        """Send an item with the others of this moment. The future is its answer.

        It raises ServerUnreachable where no server answered, and whatever error the server answered.
        """
        return self.add_encoded(to_json(item))

    def add_encoded(self, data: bytes) -> asyncio.Future[str]:
        """The same, of an item that is JSON already."""
        answer: asyncio.Future[str] = self._loop.create_future()
        if len(data) > self.most_bytes:
            answer.set_exception(PayloadTooLarge("one commit of the run", len(data), self.most_bytes))
            return answer
        self._waiting.append(Waiting(data, answer))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return answer

    @property
    def most_bytes(self) -> int:
        """The largest item."""
        most = self._connection.most_bytes
        return (1 << 62) if most is None else most - _FRAME

    async def close(self) -> None:
        """End what is under way."""
        for flight in self._flights:
            flight.cancel()
        await asyncio.gather(*self._flights, return_exceptions=True)

    def _flush(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._flights) < FLIGHTS:
            self._start(self._next())

    def _next(self) -> list[Waiting]:
        """As many as fit into one request."""
        size = count = 0
        for one in self._waiting[:MOST_ITEMS]:
            size += len(one.data) + 1
            if count and size > self.most_bytes:
                break
            count += 1
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _start(self, batch: list[Waiting]) -> None:
        flight = begin(self._send(batch))
        self._flights.add(flight)
        flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._flush()

    async def _send(self, batch: list[Waiting]) -> None:
        try:
            answered = await self._connection.send(
                "POST", "/transitions", lambda again: self._body(batch, again), goes_on=self._goes_on
            )
            answers: Sequence[Any] = answered.get("answers", ())
            if len(answers) != len(batch):
                raise ServerError(f"the server answered {len(answers)} of {len(batch)} items")
        except PayloadTooLarge as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                await self._send(batch[:middle])
                await self._send(batch[middle:])
            else:
                _fail(batch, error)
            return
        except asyncio.CancelledError:
            for one in batch:
                one.answer.cancel()
            raise
        except Exception as error:
            _fail(batch, error)
            return
        for one, answer in zip(batch, answers, strict=True):
            _answer(one.answer, answer)

    def _goes_on(self, failed: int) -> bool:
        return failed <= len(PAUSES) or self._monotonic() < self.alive_until

    def _body(self, batch: Sequence[Waiting], again: bool) -> bytes:
        items = b",".join([one.data[:-1] + _AGAIN if again else one.data for one in batch])
        return b'{"session_id":%b,"items":[%b]}' % (to_json(self.session_id), items)


def _answer(future: asyncio.Future[str], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, str):
        future.set_result(answer)
        return
    future.set_exception(_error(answer))


def _error(answer: Any) -> IronflowError:
    told = answer.get("error") if isinstance(answer, dict) else None
    if not isinstance(told, dict):
        return ServerError(f"the server's answer to an item is {answer!r:.80}")
    return made(str(told.get("code", "")), str(told.get("message", "")), None, told.get("details") or {})


def _fail(batch: Sequence[Waiting], error: Exception) -> None:
    for one in batch:
        if not one.answer.done():
            one.answer.set_exception(error)
