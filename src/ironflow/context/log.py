"""Log lines of workflow code: once, although the code runs once per segment.

A replayed line was logged when it was new; it stays silent. A new line is held until the commit that makes
its activation true, since after a crash before that commit the same code will run, and log, again.
"""

from __future__ import annotations

import logging
from threading import get_ident
from typing import TYPE_CHECKING

from ironflow.engine.workflow_loop import active_loops

if TYPE_CHECKING:
    from ironflow.engine.instance import Instance


class _HeldLogger(logging.Logger):
    """Makes records like any logger, caller's line included, and hands them to the instance instead of
    handlers.
    """

    def __init__(self, target: logging.Logger, instance: Instance) -> None:
        super().__init__(target.name)
        self._target = target
        self._instance = instance

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - logging's own spelling
        return not self._instance.loop.replaying and self._target.isEnabledFor(level)

    def handle(self, record: logging.LogRecord) -> None:
        if active_loops.get(get_ident()) is not self._instance.loop:  # not workflow code: nothing to wait for
            self._target.handle(record)
            return
        record.msg = record.getMessage()  # now, while the arguments are what they are
        record.args = None
        self._instance.held_log.append((self._target, record))


def run_logger(instance: Instance) -> logging.LoggerAdapter[logging.Logger]:
    """The adapter behind `ctx.log`; its records carry `run_id`, `workflow` and `attempt`."""
    info = instance.info
    target = logging.getLogger(f"ironflow.workflow.{info.workflow_name}")
    extra = {"run_id": info.run_id, "workflow": info.workflow_name, "attempt": info.attempt}
    return logging.LoggerAdapter(_HeldLogger(target, instance), extra)


class ReplayFilter(logging.Filter):
    """For authors' own loggers and handlers: drops records that workflow code makes while it is replayed."""

    def filter(self, record: logging.LogRecord) -> bool:
        loop = active_loops.get(get_ident())
        return loop is None or not loop.replaying
