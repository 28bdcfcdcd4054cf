"""Parked instances: runs that left the worker to wait, kept in memory for the case that they wake here again.

A parked execution stands exactly where the journal stood when its segment left. It may only go on if nothing was
journaled since: the fence and the count of outside facts say so. Everything else replays from the journal.
"""

from __future__ import annotations

from collections import OrderedDict

from ironflow.engine.execution import Execution
from ironflow.model.capacity import RunHead


class Parked:
    """The least recently parked of `limit` executions is dropped first; dropping closes it explicitly."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._executions: OrderedDict[str, Execution] = OrderedDict()

    def __len__(self) -> int:
        return len(self._executions)

    def keep(self, run_id: str, execution: Execution) -> None:
        """Park an execution, or close it if its instance cannot be parked (a synchronous handler holds a thread)."""
        if not execution.instance.parkable or self._limit <= 0:
            execution.close()
            return
        self._executions[run_id] = execution
        while len(self._executions) > self._limit:
            _, dropped = self._executions.popitem(last=False)
            dropped.close()

    def has(self, head: RunHead) -> bool:
        """Whether this run can go on from memory, as its row stands now."""
        kept = self._executions.get(head.run_id)
        return kept is not None and (kept.head.execution_seq, kept.head.facts) == (
            head.execution_seq,
            head.facts,
        )

    def take(self, head: RunHead) -> Execution | None:
        """The parked execution of this run if it is current; one that is not is closed."""
        current = self.has(head)
        execution = self._executions.pop(head.run_id, None)
        if execution is None or current:
            return execution
        execution.close()
        return None

    def close(self) -> None:
        """Close all of them, oldest first."""
        while self._executions:
            self._executions.popitem(last=False)[1].close()
