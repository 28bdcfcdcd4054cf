"""What a supervisor proves: that a process it started has ended, and what that was opening when it did.

A server believes it at once, because nobody knows better than the parent of a process whether it is gone. So a killed
worker's runs go on elsewhere without any clock running out. They wait for this report, so it does not wait itself: a
server that does not answer in a moment (it may have died with the worker, or stand still) is not left, but the next one
is told beside it. Told twice, the second one finds nothing to do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final

from ironflow.errors import IronflowError, ServerUnreachable
from ironflow.remote.connection import Connection
from ironflow.tasks import begin
from ironflow.worker import evidence
from ironflow.worker.session import lock_folder

log = logging.getLogger("ironflow.worker")

#: How long a server may think before the next one is told, too, seconds.
MOMENT_S: Final = 0.1
#: Seconds before each further round of tries: short ones at first, because runs wait; in the end a clock tells as well.
PAUSES: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)


class Deaths:
    """Tells the servers of dead workers.

    Args:
        servers: addresses of nodes of one cluster, without a slash at the end.
        key: the same worker key as the workers have.
    """

    def __init__(self, servers: Sequence[str], key: str | None) -> None:
        #: the server that answered last stands first
        self._connections = [Connection([server], key) for server in servers]

    async def open(self) -> None:
        """Make the pools; nothing is sent yet."""
        for connection in self._connections:
            await connection.open()

    async def close(self) -> None:
        """Close every connection."""
        for connection in self._connections:
            await connection.close()

    async def tell(self, session_id: str) -> list[str]:
        """The process of this session has ended. Returns the runs that were recovered; none where nobody heard it."""
        opening = evidence.last_words(lock_folder(), session_id)
        body = {"session_id": session_id, "opening": None if opening is None else list(opening)}
        for pause in (*PAUSES, None):
            try:
                answer = await self._round(body)
            except IronflowError as error:
                if error.status < 500 or pause is None:
                    log.warning("the death of session %s could not be told; its clock will: %s",
                                session_id, error.message)  # fmt: skip
                    return []
                await asyncio.sleep(pause)
            else:
                return [str(run_id) for run_id in answer.get("recovered", ())]
        return []

    async def _round(self, body: dict[str, Any]) -> dict[str, Any]:
        """Tell the servers, each a moment after the one before it, until one has answered.

        Raises:
            IronflowError: one refused, or none could answer.
        """
        asked: dict[asyncio.Task[dict[str, Any]], Connection] = {}
        left = list(self._connections)
        problem: IronflowError = ServerUnreachable("no server is named")
        try:
            while left or asked:
                if left:
                    connection = left.pop(0)
                    asked[begin(connection.ask("POST", "/deaths", body, tries=1))] = connection
                done, _ = await asyncio.wait(
                    asked, timeout=MOMENT_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    connection = asked.pop(task)
                    try:
                        answer = task.result()
                    except IronflowError as error:
                        problem = error
                        if error.status < 500:
                            raise
                        continue
                    self._connections.sort(key=lambda one: one is not connection)
                    return answer
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise problem
