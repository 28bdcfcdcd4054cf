"""Following a run over connections that break: the one stream a reader sees is made of as many as it takes.

Promises each event once and in order: the next connection asks for what comes behind the last event that was given, and
what comes twice all the same is left out. That a stream was closed is not the end of a run; the end is what the server
says to who asks behind the last event of a run that has ended.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

from pydantic_core import from_json

from ironflow.client import forms
from ironflow.client.connection import Connection
from ironflow.errors import IronflowError, ServerUnreachable
from ironflow.model.journal import Event

#: A stream that lived so long, in seconds, was no failed try, even if it brought nothing: the run was quiet, and
#: something between here and the server closes quiet connections.
LIVED_S = 5.0


async def events(connection: Connection, run: str, after: int) -> AsyncGenerator[Event, None]:
    """The events of a run, until it has ended.

    Args:
        connection: to the server.
        run: the path of the run.
        after: the last seq that is known already.

    Raises:
        ServerUnreachable: there was no stream in any of the tries.
        IronflowError: what the server answered, if it refused, or in none of the tries could do better.
    """
    failed = 0
    while True:
        began, last = time.monotonic(), None
        problem: IronflowError = ServerUnreachable(f"{connection.server} ends the stream at once")
        try:
            async with connection.stream(f"{run}/events", after=after) as messages:
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


def _event(data: str) -> Event:
    return forms.event(from_json(data))
