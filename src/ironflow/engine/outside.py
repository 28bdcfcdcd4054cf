"""What executing a run needs of the world outside it: a clock, a place to commit, a transaction for a user's writes.

A store is one; so is the connection to a server that has the store. A segment and its bodies know no more of either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ironflow.model.transition import Transition
from ironflow.store.base import OpenTransaction


class Outside(Protocol):
    """See the module's docstring. Each is as `ironflow.store.base.Store` says of it."""

    @property
    def transactions(self) -> bool:
        """Whether `begin` is to be had: there is a database here."""
        ...

    @property
    def exclusive_transactions(self) -> bool:
        """Whether an open transaction keeps every other writer waiting."""
        ...

    def now(self) -> int:
        """Database time, ms since 1970, never backwards."""
        ...

    def submit(self, transition: Transition) -> str | Awaitable[str]:
        """Commit a change: its answer, or an awaitable of it.

        Raises:
            StoreUnreachable, ServerUnreachable: whether it was committed is unknown.
        """
        ...

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
        """Call `body(connection)` in a transaction of the database, and leave that open."""
        ...
