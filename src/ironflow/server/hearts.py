"""Renewals of HTTP workers: threads with connections of their own, so that no busy loop costs anybody a lease.

Each heartbeat is one short call of the store's renewal path. A few threads serve all workers of a node.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from queue import SimpleQueue
from typing import Any, Final

from ironflow.errors import ServerStopping
from ironflow.store.base import Store
from ironflow.store.heart import Heart

log = logging.getLogger("ironflow.server")

#: Threads on PostgreSQL; on SQLite there is one writer anyway.
THREADS: Final = 2
#: How long a renewal under way may take when the node leaves, seconds.
LAST_BEAT_S: Final = 0.3

#: What `Heart.beat` is given, and the future that hears its answer.
_Job = tuple[tuple[Any, ...], "asyncio.Future[Any]"]


class Hearts:
    """See the module's docstring. Belongs to one event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = False
        self._under_way: dict[str, set[asyncio.Future[Any]]] = {}
        count = 1 if store.dialect == "sqlite" else THREADS
        self._threads = [
            threading.Thread(target=self._work, name=f"ironflow-heart-{n}", daemon=True) for n in range(count)
        ]
        self._working, self._ended = count, asyncio.Event()
        for thread in self._threads:
            thread.start()

    async def beat(self, session_id: str, *arguments: Any) -> Any:
        """See `Heart.beat`."""
        if self._closed:
            raise ServerStopping()
        answer: asyncio.Future[Any] = self._loop.create_future()
        under_way = self._under_way.setdefault(session_id, set())
        under_way.add(answer)
        self._jobs.put(((session_id, *arguments), answer))
        try:
            return await answer
        finally:
            under_way.discard(answer)
            if not under_way and self._under_way.get(session_id) is under_way:
                del self._under_way[session_id]

    async def settled(self, session_id: str) -> None:
        """Wait until no renewal of this session is under way: one that was sent before its connection broke must not
        take away the suspicion that follows from the break.
        """
        if under_way := self._under_way.get(session_id):
            await asyncio.wait(set(under_way))

    async def close(self) -> None:
        """Answer what was asked, and end the threads."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        # Not by joining them in yet another thread, which the end of the process would wait for.
        try:
            async with asyncio.timeout(LAST_BEAT_S):
                await self._ended.wait()
        except TimeoutError:
            log.debug("a renewal was under way and is left to itself: the database does not answer")

    def _work(self) -> None:
        heart: Heart | None = None
        while (job := self._jobs.get()) is not None:
            arguments, answer = job
            result: Any
            try:
                heart = heart or self._store.heart()
                result = heart.beat(*arguments)
            except Exception as error:
                result = error
            try:
                self._loop.call_soon_threadsafe(_answer, answer, result)
            except RuntimeError:  # the loop has closed
                break
        if heart is not None:
            heart.close()
        try:
            self._loop.call_soon_threadsafe(self._one_ended)
        except RuntimeError:
            return

    def _one_ended(self) -> None:
        self._working -= 1
        if not self._working:
            self._ended.set()


def _answer(answer: asyncio.Future[Any], result: Any) -> None:
    if answer.done():
        return
    if isinstance(result, Exception):
        answer.set_exception(result)
    else:
        answer.set_result(result)
