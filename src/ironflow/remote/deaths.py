"""What a supervisor proves: that a process it started has ended, and what that was opening when it did.

A server believes it at once, because nobody knows better than the parent of a process whether it is gone. So a killed
worker's runs go on elsewhere without any clock running out.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from ironflow.errors import IronflowError
from ironflow.remote.connection import Connection
from ironflow.worker import evidence
from ironflow.worker.session import lock_folder

log = logging.getLogger("ironflow.worker")


class Deaths:
    """Tells the servers of dead workers.

    Args:
        servers: addresses of nodes of one cluster, without a slash at the end.
        key: the same worker key as the workers have.
    """

    def __init__(self, servers: Sequence[str], key: str | None) -> None:
        self._connection = Connection(servers, key)

    async def open(self) -> None:
        """Make the pool; nothing is sent yet."""
        await self._connection.open()

    async def close(self) -> None:
        """Close every connection."""
        await self._connection.close()

    async def tell(self, session_id: str) -> list[str]:
        """The process of this session has ended. Returns the runs that were recovered; none where nobody heard it."""
        opening = evidence.last_words(lock_folder(), session_id)
        body = {"session_id": session_id, "opening": None if opening is None else list(opening)}
        try:
            answer = await self._connection.ask("POST", "/deaths", body)
        except IronflowError as error:
            log.warning("the death of session %s could not be told; its clock will: %s", session_id, error.message)
            return []
        return [str(run_id) for run_id in answer.get("recovered", ())]
