"""The child process that executes one suspect run of a worker over HTTP; see `ironflow.worker.isolation`."""

from __future__ import annotations

from typing import Any

from ironflow.config import Settings
from ironflow.engine.registry import Registry
from ironflow.remote.worker import remote_worker
from ironflow.worker import child
from ironflow.worker.worker import Worker


def main(request: dict[str, Any]) -> int:
    """Execute one run; see `ironflow.worker.child.main`. The request names servers and key in place of a database."""
    return child.execute(request, _opened)


async def _opened(request: dict[str, Any], registry: Registry, settings: Settings) -> Worker:
    return await remote_worker(
        request["servers"],
        request["key"],
        registry,
        settings,
        worker_id=request["worker_id"],
        strict=request["strict"],
        isolates=False,
        session_id=request["session_id"],
        reads_as=request["reads_as"],
    )
