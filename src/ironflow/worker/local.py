"""The worker on a database: its port is the store itself.

`submit` and `now` are the store's own methods, bound once: an embedded worker calls them for every step, and a layer
that only passes on would be paid for each time.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from ironflow.engine import reading
from ironflow.engine.registry import Registry
from ironflow.loops.capacity_scanner import CapacityScanner
from ironflow.model import claim, ids, operator
from ironflow.model.journal import Event
from ironflow.model.transition import Transition
from ironflow.store.base import OpenTransaction, Store
from ironflow.store.heart import Heart
from ironflow.worker.dispatcher import Dispatcher
from ironflow.worker.isolation import by_database
from ironflow.worker.port import Holding, Owner
from ironflow.worker.results import Results
from ironflow.worker.store_session import StoreSession
from ironflow.worker.worker import Worker

if TYPE_CHECKING:
    from ironflow.config import Settings


class LocalPort:
    """See the module's docstring, and `worker.port.Port` for what each method promises."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.name = store.name
        self.transactions = True
        self.exclusive_transactions = store.exclusive_transactions
        self.now: Callable[[], int] = store.now
        self.submit: Callable[[Transition], str | Awaitable[str]] = store.submit

    @property
    def concurrent_writers(self) -> int:
        """See `Port`."""
        return self._store.concurrent_writers

    @concurrent_writers.setter
    def concurrent_writers(self, count: int) -> None:
        self._store.concurrent_writers = count

    async def begin(self, body: Callable[[Any], Any], *, deadline_ms: int) -> tuple[Any, OpenTransaction]:
        """See `Store.begin`."""
        return await self._store.begin(body, deadline_ms=deadline_ms)

    async def journals(self, run_ids: Sequence[str]) -> dict[str, list[Event]]:
        """See `Port`."""
        return await self._store.journals(run_ids)

    async def unreserve(self, reservations: Sequence[tuple[str, str]]) -> None:
        """See `Port`."""
        await self._store.unreserve(reservations)

    async def keep(self, run_id: str, reservation: str, ttl_ms: int) -> bool:
        """See `Port`."""
        done = await self._store.decide([run_id], lambda locked: claim.keep(locked, reservation, ttl_ms))
        return isinstance(done[run_id], Transition)

    async def release(self, held: Sequence[Holding], session_id: str) -> None:
        """See `Port`."""
        fences = {run_id: (seq, token_hash) for run_id, seq, token_hash in held}
        await self._store.decide(
            list(fences), lambda locked: operator.release(locked, session_id, fences[locked.row.run_id])
        )

    async def give_back(self, run_id: str, session_id: str) -> None:
        """See `Port`."""
        await self._store.decide([run_id], lambda locked: operator.give_back(locked, session_id))
        await self._store.close_session(session_id)

    async def owner(self, run_id: str, since: int | None = None) -> Owner | None:
        """See `Port`."""
        row = await self._store.run(run_id)
        if row is None:
            return None
        kinds = () if since is None else await reading.kinds_since(self._store, run_id, since)
        return Owner(row.execution_seq, row.state, frozenset(kinds))

    def heart(self) -> Heart:
        """See `Store.heart`."""
        return self._store.heart()

    def hurry(self) -> None:
        """See `Port`. The store has time limits of its own."""

    def new_token(self) -> str:
        """A hash: the token itself is not kept, since this very process writes."""
        return ids.token_hash(secrets.token_hex(16))

    async def close(self) -> None:
        """See `Port`."""
        await self._store.close()


def embedded(
    store: Store,
    registry: Registry,
    settings: Settings,
    results: Results,
    *,
    worker_id: str | None = None,
    tags: tuple[str, ...] = (),
    strict: bool = False,
    url: str | None = None,
    session_id: str | None = None,
    own_only: bool = False,
) -> Worker:
    """A worker on a database.

    Args:
        store: the database.
        registry: the workflows this process can execute.
        settings: intervals, limits, times to live.
        results: who waits for the end of which run in this process.
        worker_id: a stable name, shown to people; None makes one from host and pid.
        tags: what this worker offers (hardware, region, network).
        strict: nondeterministic calls in workflow code raise instead of warning.
        url: the database's address, for child processes; None executes suspects here as well.
        session_id: of a child process, given by its parent; None makes one.
        own_only: serve no queue, and take only the runs put into `own`.
    """
    scanner = CapacityScanner(store, settings, time.monotonic)
    return Worker(
        LocalPort(store),
        registry,
        settings,
        results,
        session=lambda worker: StoreSession(worker, store, scanner, worker_id, tags, session_id),
        finder=lambda worker: Dispatcher(worker, store, scanner),
        reach=None if url is None else lambda worker: by_database(url),
        strict=strict,
        own_only=own_only,
    )
