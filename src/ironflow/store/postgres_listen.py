"""Waking other processes through PostgreSQL: LISTEN on a connection of its own, NOTIFY in the background.

Best effort by design: what is lost here is found by polling. A notification takes a lock that all of the
database's notifying commits share, so it is sent only when somebody asked for it, at most one at a time,
never in the transaction of a run; topics that gather meanwhile go out together.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from ironflow.store.postgres_link import Address, Connection, Link
from ironflow.tasks import Standing, begin

log = logging.getLogger("ironflow.store")

#: PostgreSQL refuses a payload of 8000 bytes.
_PAYLOAD_BYTES = 7_500
#: Seconds between tries to listen again.
_RETRY_S = (0.05, 0.2, 1.0, 5.0)
#: Who listens holds an advisory lock of this class and his name's number: the server drops it with his connection.
PRESENCE = 0x49464E44
_PRESENT = "select pg_try_advisory_lock_shared($1, hashtext($2))"
#: And one of this class while he watches the clocks and is on time; when he last said so, his connection tells.
WATCH = 0x49465754
_ON_TIME = "select pg_try_advisory_lock_shared($1, 0)"
_STILL_ON_TIME = "select $1::int"
_NOT_ON_TIME = "select pg_advisory_unlock_shared($1, 0)"
#: Whatever may have happened while nobody listened.
_EVERYTHING = ("queue", "waits")

Send = Callable[[str, list[str]], Awaitable[None]]


class Wire:
    """One process's ear and voice on a channel.

    Args:
        address: of the database. LISTEN belongs to a session, so it needs a direct connection: behind a
            pooler nothing is heard and polling does the work.
        channel: of this database and schema.
        send: sends payloads on a connection of the caller's.
    """

    def __init__(self, address: Address, channel: str, send: Send) -> None:
        self._channel = channel
        self._send = send
        self._shows_presence = address.prepare
        self._name = ""
        self._on_time = False
        #: Our own notifications come back to us; they are known by this.
        self._me = secrets.token_hex(4)
        self._topics: dict[str, None] = {}
        self._sending: asyncio.Task[None] | None = None
        self._listening = Standing(self._stay, "ironflow-listen", log)
        self._wake: Callable[[str], None] | None = None
        self._broken = asyncio.Event()
        self._link = Link(address, self._subscribe)

    async def listen(self, wake: Callable[[str], None], name: str = "") -> None:
        """Call `wake(topic)` in this loop from now on, and again after the connection broke and came back.

        `name`: under which others see that this process is there.

        Not being able to listen is no error: it is tried again, and polling finds what was not heard.
        """
        self._wake, self._name = wake, self._name or name
        try:
            await self._link.get()
        except Exception as error:
            log.debug("cannot listen yet: %s", error)
            self._broken.set()
        if not self._listening.wanted:
            self._listening.start()

    async def _subscribe(self, connection: Connection) -> None:
        await connection.add_listener(self._channel, self._heard)
        connection.add_termination_listener(self._lost)
        if self._name and self._shows_presence:
            await connection.execute(_PRESENT, PRESENCE, self._name)

    def _heard(self, _connection: Any, _pid: int, _channel: str, payload: object) -> None:
        sender, *topics = str(payload).split("\n")
        if sender == self._me:
            return
        for topic in topics:
            self._tell(topic)

    def _tell(self, topic: str) -> None:
        try:
            if self._wake is not None:
                self._wake(topic)
        except Exception:
            log.exception("a wake-up on %r failed", topic)

    def _lost(self, _connection: Any) -> None:
        self._on_time = False  # the lock went with the connection
        self._broken.set()

    async def watch(self, on_time: bool) -> None:
        """Show whether this process watches the clocks and is on time. Who shows nothing is not relied on."""
        connection = self._link.connected
        if connection is None or not self._shows_presence or not (on_time or self._on_time):
            return
        said = _NOT_ON_TIME if not on_time else _STILL_ON_TIME if self._on_time else _ON_TIME
        try:
            await connection.execute(said, WATCH)
            self._on_time = on_time
        except Exception as error:
            log.debug("whether this node is on time could not be shown: %s", error)

    async def _stay(self) -> None:
        tries = 0
        while not self._link.closed:
            await self._broken.wait()
            self._link.drop()
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1
            self._broken.clear()  # before the try: the new connection may break before this task goes on
            try:
                await self._link.get()
            except BaseException as error:
                self._broken.set()  # also when this task is cancelled: the next one has to know
                if not isinstance(error, Exception):
                    raise
                log.debug("cannot listen yet: %s", error)
                continue
            tries = 0
            for topic in _EVERYTHING:
                self._tell(topic)

    def notify(self, topic: str) -> None:
        """Tell the others, soon."""
        self._topics[topic] = None
        if self._sending is None:
            self._sending = begin(self._flush(), name="ironflow-notify")

    async def _flush(self) -> None:
        try:
            while self._topics:
                topics, self._topics = self._topics, {}
                await self._send(self._channel, self._payloads(topics))
        except Exception as error:
            log.debug("a notification was lost: %s", error)
        finally:
            self._sending = None

    def _payloads(self, topics: dict[str, None]) -> list[str]:
        payloads = [self._me]
        for topic in topics:
            if len(payloads[-1].encode()) + len(topic.encode()) + 1 > _PAYLOAD_BYTES:
                payloads.append(self._me)
            payloads[-1] += "\n" + topic
        return payloads

    async def close(self) -> None:
        """Send what waits, then fall silent."""
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=0.5)
        await self._listening.stop()
        await self._link.close()
