"""A relay in front of PostgreSQL that can lose the answer to a commit, or the commit itself.

A client that sends the marker in any statement has its next COMMIT lost. So exactly one commit of one connection is
hit, whatever else goes through.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator
from urllib.parse import parse_qs, quote, urlsplit

from ironflow.testing.relay import Relay

#: The next COMMIT takes place, and its answer does not arrive.
LOSE_THE_ANSWER = "lose the answer"
#: The next COMMIT does not arrive.
LOSE_THE_COMMIT = "lose the commit"
#: The name of the server's socket in its folder; the servers of the tests listen nowhere else.
_SOCKET = ".s.PGSQL.5432"


@contextlib.asynccontextmanager
async def relayed(url: str) -> AsyncIterator[tuple[str, Relay]]:
    """The address of the same database through a relay, and the relay."""
    [folder] = parse_qs(urlsplit(url).query)["host"]
    with tempfile.TemporaryDirectory(prefix="relay-") as place:
        async with Relay(f"{folder}/{_SOCKET}", at=f"{place}/{_SOCKET}") as relay:
            yield f"{url.partition('?')[0]}?host={quote(place)}", relay


@contextlib.asynccontextmanager
async def losing(loss: str, url: str) -> AsyncIterator[tuple[str, Relay]]:
    """The same, of a relay that loses this."""
    async with relayed(url) as (address, relay):
        lose = relay.lose_answer if loss == LOSE_THE_ANSWER else relay.lose_request
        lose(loss.encode() + rb".*COMMIT;")
        yield address, relay
