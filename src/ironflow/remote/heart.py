"""The renewal path of a worker over HTTP: a plain connection of its own, in the thread that renews.

Nothing is shared with the worker's loop, so neither a loop that is blocked nor a pool full of requests costs a lease.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pydantic_core import to_json

from ironflow.client.transport import broken, parsed, stranger
from ironflow.errors import IronflowError, SessionUnknown
from ironflow.remote.connection import PREFIX, Connection
from ironflow.remote.plain import Plain
from ironflow.store.heart import LEASE_STALE, Beat, Held, Verdict

#: How long one server may take to answer, seconds: several must fit into the life of a lease.
ANSWER_S: Final = 4.0


class HttpHeart:
    """See `ironflow.store.heart.Heart`. Made, used and closed in one thread.

    Args:
        connection: the worker's; only its addresses, its proxies, its key and its clock are used.
        renewed: told when something was renewed, with the time from which the renewal counts at the least.
    """

    def __init__(self, connection: Connection, renewed: Callable[[float], None]) -> None:
        self._connection = connection
        self._servers = connection.servers
        self._headers = {**connection.headers, "Content-Type": "application/json", "User-Agent": "ironflow-worker"}
        self._clock = connection.clock
        self._renewed = renewed
        self._at = 0
        self._open: Plain | None = None

    def beat(
        self, session_id: str, session_ttl_ms: int, lease_ttl_ms: int, credits: int, held: Sequence[Held]
    ) -> Beat:
        """Push the clocks of the session and of the leases it names; how far, the server decides.

        Raises:
            ServerUnreachable: no server answered.
            IronflowError: what the server answered.
        """
        body = to_json({"session_id": session_id, "credits": credits, "held": [list(one) for one in held]})
        asked_at = time.monotonic()
        try:
            answer = self._ask(body)
        except SessionUnknown:
            return Beat(False, False, [Verdict(run_id, seq, LEASE_STALE) for run_id, seq, _, _ in held])
        self._clock.saw(answer.get("now"))
        known = bool(answer.get("known", True))
        if known:
            self._renewed(asked_at)
        verdicts = [Verdict(str(one[0]), int(one[1]), str(one[2])) for one in answer.get("verdicts", ())]
        return Beat(known, bool(answer.get("draining")), verdicts)

    def _ask(self, body: bytes) -> dict[str, Any]:
        """Each server once; one whose connection has died of old age a second time."""
        problem: IronflowError | None = None
        for _ in self._servers:
            for fresh in (self._open is None, True):
                try:
                    return self._once(body)
                except IronflowError as error:
                    if error.status < 500:
                        raise
                    problem = error
                if fresh:
                    break
            self._at = (self._at + 1) % len(self._servers)
        assert problem is not None
        raise problem

    def _once(self, body: bytes) -> dict[str, Any]:
        server = self._servers[self._at]
        try:
            if self._open is None:
                self._open = Plain(server, self._connection.proxies.get(server), ANSWER_S)
            status, content = self._open.post(f"{PREFIX}/heartbeat", body, self._headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise broken(server, error) from error
        found = parsed(content)
        if status >= 400:
            raise self._connection.refused(status, found, server)
        if not isinstance(found, dict):
            raise stranger(server)
        self._connection.accepted()
        return found

    def close(self) -> None:
        """Give the connection back."""
        connection, self._open = self._open, None
        if connection is not None:
            connection.close()
