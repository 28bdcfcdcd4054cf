"""Following a run over connections that break: the one stream a reader sees is made of as many as it takes.

Promises each event once and in order: the next connection asks for what comes behind the last event that was given, and
what comes twice all the same is left out. That a stream was closed is not the end of a run; the end is what the server
says to who asks behind the last event of a run that has ended.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final

from pydantic_core import from_json

from ironflow.client import forms
from ironflow.client.connection import Connection
from ironflow.errors import IronflowError, ServerUnreachable
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.journal import Event

#: A stream that lived so long, in seconds, was no failed try, even if it brought nothing: the run was quiet, and
#: something between here and the server closes quiet connections.
LIVED_S = 5.0
#: The state in which an event leaves its run.
_ENDS: Final = {j.RUN_SUCCEEDED: runs.COMPLETED, j.RUN_FAILED: runs.FAILED, j.RUN_CANCELLED: runs.CANCELLED}


async def events(
    connection: Connection, run: str, after: int, kinds: Sequence[str] = ()
) -> AsyncGenerator[Event, None]:
    """The events of a run, until it has ended.

    Args:
        connection: to the server.
        run: the path of the run.
        after: the last seq that is known already.
        kinds: of the events that are wanted; what ends the run comes with them. All if empty.

    Raises:
        ServerUnreachable: there was no stream in any of the tries.
        IronflowError: what the server answered, if it refused, or in none of the tries could do better.
    """
    failed = 0
    while True:
        began, last = time.monotonic(), None
        problem: IronflowError = ServerUnreachable(f"{connection.server} ends the stream at once")
        try:
            async with connection.stream(f"{run}/events", after=after, kinds=kinds) as messages:
                if messages is None:
                    return
                async for message in messages:
                    event = connection.read(_event, message.data)
                    if event.seq > after:
                        after, last = event.seq, event
                        yield event
        except IronflowError as error:
            if error.status < 500 or error.details.get("lasting"):
                raise
            problem = error
        failed = 0 if last is not None or time.monotonic() - began > LIVED_S else failed + 1
        if failed > len(connection.pauses):
            raise problem
        if failed:
            await connection.rest(failed, problem.message)


async def end(connection: Connection, run: str, paused: Callable[[], Awaitable[bool]]) -> tuple[str, str | None]:
    """Wait until a run has ended or is paused, by following what its journal says of that, and of nothing else.

    Args:
        connection: to the server.
        run: the path of the run.
        paused: whether it is paused now: a pause in its journal may be over.

    Returns:
        its state, in which warnings are not told apart, and the payload of the event that ended it as JSON text.

    Raises:
        IronflowError: see `events`.
    """
    state, payload = "", None
    async with aclosing(events(connection, run, 0, (j.RUN_PAUSED,))) as found:
        async for event in found:
            if event.kind in _ENDS:
                state, payload = _ENDS[event.kind], event.payload
            elif event.kind == j.RUN_PAUSED and await paused():
                return runs.PAUSED, None
    return state, payload


def _event(data: str) -> Event:
    return forms.event(from_json(data))
