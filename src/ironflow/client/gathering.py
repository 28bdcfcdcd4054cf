"""Starts that are made in the same moment travel in one request.

A request costs client and server more than the start that is in it. Whoever starts one run at a time sends `POST /runs`
as ever; what a program starts side by side within one pass of its loop goes together. Promises that each caller gets
the answer of its own start, that a start is sent again as often as if it had gone alone, and that nothing waits for
company: the request leaves at the end of the pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ironflow.client.connection import Connection
from ironflow.client.problems import error_of
from ironflow.tasks import begin

#: Starts in one request; a server takes no more than 500.
MOST = 100
_HEAD, _TAIL = b'{"runs":[', b"]}"

Waiting = tuple[bytes, "asyncio.Future[Any]"]


class Gathering:
    """See the module's docstring. `close` ends what is under way: its callers are cancelled."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[Waiting] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self, body: bytes) -> Any:
        """Send a start that may be sent again, and give what `POST /runs` answers to it.

        Raises:
            what `Connection.ask` raises.
        """
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._leave)
        self._waiting.append((body, answer))
        return await answer

    async def close(self) -> None:
        """End what is under way, and what was about to leave."""
        waiting, self._waiting = self._waiting, []
        _cancel(waiting)
        asking = [*self._asking]
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    def _leave(self) -> None:
        waiting, self._waiting = self._waiting, []
        for group in _grouped(waiting, self._connection.most_bytes):
            task = begin(self._ask(group))
            self._asking.add(task)
            task.add_done_callback(partial(self._asked, group))

    def _asked(self, group: Sequence[Waiting], task: asyncio.Task[None]) -> None:
        self._asking.discard(task)
        _cancel(group)  # those of a task that was cancelled, perhaps before its first line

    async def _ask(self, group: Sequence[Waiting]) -> None:
        try:
            if len(group) == 1:
                body, answer = group[0]
                _tell(answer, (await self._connection.ask("POST", "/runs", body=body, again=True)).body)
            else:
                await self._ask_together(group)
        except Exception as error:
            for _, answer in group:
                _fail(answer, error)

    async def _ask_together(self, group: Sequence[Waiting]) -> None:
        body = _HEAD + b",".join(start for start, _ in group) + _TAIL
        answered = await self._connection.ask("POST", "/runs/batch", body=body, again=True)
        found = self._connection.read(lambda body: _items(body, len(group)), answered.body)
        again = []
        for one, (start, answer) in zip(found, group, strict=True):
            if one["problem"] is None:
                _tell(answer, one["run"])
            elif one["status"] >= 500:  # the server could not; a start by itself is tried more than once
                again.append((start, answer))
            else:
                _fail(answer, error_of(one["status"], one["problem"], self._connection.server))
        await asyncio.gather(*(self._ask([one]) for one in again))


def _items(body: Any, wanted: int) -> list[dict[str, Any]]:
    """What became of each of the starts."""
    found = [{"status": one["status"], "problem": one["problem"], "run": one["run"]} for one in body["items"]]
    if len(found) != wanted:
        raise ValueError("not as many answers as starts")
    return found


def _grouped(waiting: Sequence[Waiting], most_bytes: int) -> Iterator[list[Waiting]]:
    """Groups in order, each within the limits of a request; what is too large even alone goes alone, to be refused."""
    group: list[Waiting] = []
    size = len(_HEAD) + len(_TAIL)
    for one in waiting:
        more = len(one[0]) + 1
        if group and (len(group) == MOST or size + more > most_bytes):
            yield group
            group, size = [], len(_HEAD) + len(_TAIL)
        group.append(one)
        size += more
    if group:
        yield group


def _cancel(group: Sequence[Waiting]) -> None:
    """Leave nobody waiting. What has its answer keeps it."""
    for _, answer in group:
        answer.cancel()


def _tell(answer: asyncio.Future[Any], found: Any) -> None:
    if not answer.done():
        answer.set_result(found)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
