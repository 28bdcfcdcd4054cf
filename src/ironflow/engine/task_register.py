"""The tasks of one run's code: held so that none is collected while it waits, and asked at the end how they went.

Promises that no failure is lost: a task that failed stays until the code has looked at its error, and those that it
never looked at are told of when the run ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from ironflow.engine.loop_base import note, text_of
from ironflow.engine.workflow_task import WorkflowTask

#: A register drops its finished entries each time it has doubled beyond this size.
FIRST_PRUNE = 64


class TaskRegister:
    """Tasks in the order they were made. Iterates over those that have not ended, and failed ones nobody looked at."""

    def __init__(self) -> None:
        self._tasks: list[WorkflowTask] = []
        self._prune_at = FIRST_PRUNE

    def __iter__(self) -> Iterator[WorkflowTask]:
        return iter(self._tasks)

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, task: WorkflowTask) -> None:
        self._tasks.append(task)
        if len(self._tasks) >= self._prune_at:
            self._tasks = [task for task in self._tasks if not task.done() or _unseen(task)]
            self._prune_at = max(FIRST_PRUNE, 2 * len(self._tasks))

    def clear(self) -> None:
        self._tasks = []

    def report(self, into: list[str]) -> BaseException | None:
        """Say of each task that ended with an error nobody has looked at so far that it did.

        Returns:
            the first of these errors that is none for a program to go on after (SystemExit, KeyboardInterrupt and their
            like), if there is one.
        """
        exits: BaseException | None = None
        for task in self._tasks:
            if not task.done() or not _unseen(task):
                continue
            error = task.exception()  # which counts as looking, so asyncio will not complain a second time
            into.append(f"task {task.get_name()} failed and was never awaited: {text_of(error, repr)}")
            if error is not None and exits is None and not isinstance(error, Exception):
                exits = error
                note(exits, f"raised in task {task.get_name()}, which nobody awaited")
        return exits


def _unseen(task: WorkflowTask) -> bool:
    return bool(getattr(task, "_log_traceback", False))
