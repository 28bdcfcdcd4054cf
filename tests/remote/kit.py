"""What the tests of workers over HTTP share: a real server on a loopback port, workers of it, and a client beside them.

The server and its database are real. The client speaks to the database itself, so that nothing that is tested here is
also what a test looks through.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tests.recovery.kit import quick

from ironflow.config import Settings
from ironflow.engine.registry import Registry
from ironflow.model import key as kinds
from ironflow.remote.worker import remote_worker
from ironflow.runtime import Engine
from ironflow.server import keys
from ironflow.server.node import Node
from ironflow.server.serving import bind, serving
from ironflow.store import connect
from ironflow.store.base import Store
from ironflow.worker.worker import Worker


async def worker_key(store: Store) -> str:
    """A new key for workers."""
    row, secret = keys.issue(kinds.WORKER, "worker", now=store.now(), by="test")
    await store.add_key(row, keys.audit_of(row))
    return secret


class Served:
    """A server that is up, and what a worker needs to reach it."""

    def __init__(self, node: Node, url: str, key: str) -> None:
        self.node = node
        self.url = url
        self.key = key


@asynccontextmanager
async def served(database: str, settings: Settings | None = None, *, port: int = 0) -> AsyncIterator[Served]:
    """A node that answers on a loopback port."""
    settings = settings or quick(suspect_after_ms=None)
    store = await connect(database)
    try:
        key = await worker_key(store)
    finally:
        await store.close()
    listener = bind("127.0.0.1", port)
    host, number = listener.getsockname()[:2]
    async with serving(settings, database, listener) as node:
        yield Served(node, f"http://{host}:{number}", key)


@asynccontextmanager
async def working(
    servers: str | Sequence[str], key: str, workflows: Iterable[Any], *, drain_ms: int = 0, **options: Any
) -> AsyncIterator[Worker]:
    """A worker of these servers, in this process."""
    settings = options.pop("settings", None) or Settings(concurrency=options.pop("slots", 20), drain_timeout_ms=0)
    urls = [servers] if isinstance(servers, str) else list(servers)
    worker = await remote_worker(urls, key, Registry(wf.spec for wf in workflows), settings, **options)
    try:
        await worker.start()
        yield worker
    finally:
        await worker.stop(drain_ms=drain_ms)


def client(database: str, workflows: Iterable[Any]) -> Engine:
    """Starts runs and reads them, on the database; executes nothing."""
    return Engine(database, workflows=workflows, settings=quick(), worker=False)
