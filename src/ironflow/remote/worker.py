"""Puts a worker together that speaks to servers: the one worker there is, over this package's port."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ironflow.config import Settings
from ironflow.engine.registry import Registry
from ironflow.remote.connection import Connection
from ironflow.remote.poller import Poller
from ironflow.remote.port import HttpPort
from ironflow.remote.session import RemoteSession, Supervised
from ironflow.worker.isolation import Reach
from ironflow.worker.results import Results
from ironflow.worker.worker import Worker


async def remote_worker(
    servers: Sequence[str],
    key: str | None,
    registry: Registry,
    settings: Settings,
    *,
    worker_id: str | None = None,
    tags: tuple[str, ...] = (),
    strict: bool = False,
    isolates: bool = True,
    session_id: str | None = None,
    reads_as: str | None = None,
    supervised: Supervised | None = None,
) -> Worker:
    """A worker of these servers, not started yet. Its `stop` closes its connections.

    Args:
        servers: addresses of nodes of one cluster, without a slash at the end.
        key: the worker key; None for a server that asks for none.
        registry: the workflows this process can execute.
        settings: limits of this process; clocks and sizes are the server's.
        worker_id: a stable name, shown to people; None makes one from host and pid.
        tags: what this worker offers (hardware, region, network).
        strict: nondeterministic calls in workflow code raise instead of warning.
        isolates: executes suspects in child processes.
        session_id: of a child process, given by its parent; None makes one.
        supervised: by whom this process was started, if it has a supervisor.
        reads_as: the session to which a child's run is promised: its parent's.
    """
    connection = Connection(servers, key)
    await connection.open()
    port = HttpPort(connection, reads_as)

    def session(worker: Worker) -> RemoteSession:
        return RemoteSession(worker, port, worker_id, tags, session_id, supervised)

    try:
        return Worker(
            port,
            registry,
            settings,
            Results(),
            session=session,
            finder=_finder,
            reach=_reach(servers, key) if isolates else None,
            strict=strict,
        )
    except BaseException:  # what it is told cannot be used: a tag, say
        await port.close()
        raise


def _finder(worker: Worker) -> Poller:
    assert isinstance(worker.session, RemoteSession)
    assert isinstance(worker.port, HttpPort)
    return Poller(worker, worker.port, worker.session)


def _reach(servers: Sequence[str], key: str | None) -> Callable[[Worker], Reach]:
    """For a child: the servers, and under which name it may read what was promised to its parent."""

    def reach(worker: Worker) -> Reach:
        facts = {"servers": list(servers), "key": key, "reads_as": worker.session.row.session_id}
        return Reach("ironflow.remote.child", facts)

    return reach
