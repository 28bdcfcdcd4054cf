"""A real server on a loopback port, a worker beside it on the same database, and keys of each kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.client.flows import ALL
from tests.recovery.kit import quick
from tests.server.kit import new_key

from ironflow import Engine
from ironflow.client import Client
from ironflow.model.scope import Scope
from ironflow.server.serving import bind, serving


class Rig:
    """What the tests of a client need.

    Attributes:
        url: of the server.
        engine: on its database, with a worker that has the workflows.
    """

    def __init__(self, url: str, engine: Engine, keys: dict[str, str]) -> None:
        self.url = url
        self.engine = engine
        self.keys = keys

    def client(self, key: str = "admin", *, url: str | None = None, tries: int = 4) -> Client:
        """A client with the key of this name, that does not wait between its tries."""
        return Client(url or self.url, self.keys[key], pauses=(0.0,) * (tries - 1))


@asynccontextmanager
async def rigged(database: str) -> AsyncIterator[Rig]:
    """Everything, on this database."""
    listener = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    settings = quick()
    async with serving(settings, database, listener) as node:
        keys = {role: await new_key(node.store, "org", role=role) for role in ("admin", "viewer")}
        keys["other"] = await new_key(node.store, "org", Scope("other"), role="admin")
        keys["platform"] = await new_key(node.store, "platform")
        keys["worker"] = await new_key(node.store)
        async with Engine(database, workflows=ALL, settings=settings) as engine:
            await node.look_around()  # so that it tells this worker of starts; by itself it looks once a second
            yield Rig(url, engine, keys)


@pytest.fixture
async def rig(sqlite_url: str) -> AsyncIterator[Rig]:
    async with rigged(sqlite_url) as found:
        yield found


@pytest.fixture
async def both(store_url: str) -> AsyncIterator[Rig]:
    """The same on SQLite and on PostgreSQL."""
    async with rigged(store_url) as found:
        yield found


@pytest.fixture
async def client(both: Rig) -> AsyncIterator[Client]:
    async with both.client() as found:
        yield found
