"""Listening: one node, its app and a socket, from the first request to an orderly end.

The end takes less than two seconds whatever the clients do: held polls and streams are ended first, what is under way
is answered, and whoever still has not read its answer then is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn
from fastapi import FastAPI

from ironflow.config import Settings
from ironflow.errors import ConfigError
from ironflow.observe.backlog import of_routes
from ironflow.observe.observation import Observation
from ironflow.server.access import Access
from ironflow.server.app import create_app, refuse
from ironflow.server.bounded_http import BoundedHttp
from ironflow.server.node import Node
from ironflow.store import connect
from ironflow.tasks import begin

log = logging.getLogger("ironflow.server")

#: How long what is under way may take to end, seconds: requests; the passes of loops and the last look; and goodbyes.
GRACE_S, LAST_ACTS_S, GOODBYE_S = 0.5, 1.0, 0.5
#: How long a connection may be idle: longer than a worker or a balancer keeps one, so that it is theirs to close.
KEEP_ALIVE_S: Final = 75
BACKLOG: Final = 2_048
#: Bytes that the system keeps of what a connection's other end is not ready for.
UNSENT: Final = 1 << 17


class _Server(uvicorn.Server):
    """Signals belong to the command, which knows that they mean more than the end of a socket."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigError: the address is taken, or is none of this host's.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        # Connections inherit it. asyncio would set it only on sockets that name their protocol, and without it each
        # answer that is written in two pieces waits 40 ms for the other side's acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # The system would take some megabytes for a reader that takes nothing, which count as the node's memory, too.
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        return listener
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}",
            hint="Choose another --host or --port, or stop what listens there.",
        ) from error


@asynccontextmanager
async def serving(
    settings: Settings, url: str, listener: socket.socket, *, metrics: bool = False
) -> AsyncIterator[Node]:
    """A node that answers on this socket while the block runs, and leaves in order behind it.

    Args:
        settings: of the node.
        url: the database.
        listener: see `bind`; closed at the end.
        metrics: count, and show it on /metrics, and on the address that the settings name; once in a process.
    """
    store = await connect(url)
    observation: Observation | None = None
    try:
        node = Node(store, settings)
        observation = node.observation = Observation(store.now, metrics=metrics)
        _watch(node, observation)
        access = Access(store, settings)
        app = create_app(node, access, observation)
        server = _Server(_config(app))
        await node.start()
        task = begin(server.serve(sockets=[listener]), name="ironflow-http")
        try:
            listens = asyncio.ensure_future(server.listens.wait())
            await asyncio.wait({listens, task}, return_when=asyncio.FIRST_COMPLETED)
            listens.cancel()
            if task.done():
                await task  # raises what kept it from listening
            yield node
        finally:
            await refuse(app)
            server.should_exit = True
            await asyncio.gather(task, return_exceptions=True)
            await asyncio.gather(_within(GOODBYE_S, access.close()), _within(LAST_ACTS_S, node.stop()))
    finally:
        listener.close()
        if observation is not None:
            await observation.close()
        await _within(GOODBYE_S, store.close())


def _config(app: FastAPI) -> uvicorn.Config:
    # What a request met is logged by the problem that it became; a socket's own troubles tell nobody anything.
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    return uvicorn.Config(
        app,
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,  # type: ignore[arg-type]
    )


def _watch(node: Node, observation: Observation) -> None:
    """Watch what a node commits and decides, and the whole queue."""
    node.store.observe(observation.observer)
    observation.look_at_queue(of_routes(node.store.backlog))
    if observation.metrics is not None and node.settings.metrics_address is not None:
        observation.listen(node.settings.metrics_address)


async def _within(seconds: float, work: Coroutine[Any, Any, None]) -> None:
    """Do the last of something; a database that is away does not keep the process."""
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError:
        log.warning("the database did not answer the goodbye of this node; what was left expires by itself")
