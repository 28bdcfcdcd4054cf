"""What the engine writes for a run, commit by commit, so that a bare driver can write the same.

The rows are not invented: one run goes through the engine, its row and its journal are read back, and the floor
writes copies of them under new run ids. When the engine writes more or less than it used to, the floor follows.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ironflow
from bench.stores import Place
from bench.workflows import ALL
from ironflow import Workflow
from ironflow.model import ids
from ironflow.model import journal as j
from ironflow.model.capacity import LeaseRow, QueueRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.wait import WaitRow

Record = tuple[Any, ...]

#: Filled with values as long as the engine's own.
_TOKEN, _SESSION = "0" * 32, "12345-0123456789ab-01234567"


@dataclass(slots=True)
class Writes:
    """The rows of one transaction: inserts per table (in the model's column order), then updates and deletes."""

    inserts: dict[str, list[Record]] = field(default_factory=dict)
    #: run_id -> state, and whether the run ends with it
    states: list[tuple[str, str, bool]] = field(default_factory=list)
    #: table -> run ids
    deletes: dict[str, list[str]] = field(default_factory=dict)

    def insert(self, table: str, *records: Record) -> None:
        """Add rows of a table."""
        self.inserts.setdefault(table, []).extend(records)

    def delete(self, table: str, run_id: str) -> None:
        """Remove a run's row of a table."""
        self.deletes.setdefault(table, []).append(run_id)


class Script:
    """One kind of run as a sequence of commits.

    `groups[0]` is written with the run's row; each further group is one commit of a segment; the last one ends it.
    """

    def __init__(self, row: RunRow, events: Sequence[Event]) -> None:
        self.row = row
        self.groups = commits_of(events)

    @classmethod
    async def recorded(cls, place: Place, workflow: Workflow[Any, Any], value: Any) -> Script:
        """Run a workflow once through the engine, on a database of its own, and keep what it wrote."""
        url = await place.fresh()
        async with ironflow.open(url, workflows=ALL) as engine:
            run = await engine.start(workflow, value)
            await run.result(timeout=30)
            row = await engine.store.run(run.id)
            events = await engine.store.journal(run.id)
        place.drop(url)
        assert row is not None
        return cls(row, events)

    # ---- the commits of many runs at once

    def create(self, run_ids: Sequence[str]) -> Writes:
        """A start that nobody executes yet: the row, its first event, its place in the queue."""
        writes = Writes()
        for run_id in run_ids:
            writes.insert("runs", self._run(run_id, "pending"))
            writes.insert("journal_events", self._event(run_id, self.groups[0][0]))
            writes.insert("dispatch_queue", self._queue(run_id))
        return writes

    def begin(self, run_ids: Sequence[str]) -> Writes:
        """A direct start: the row, the lease, everything up to the first step's start."""
        writes = Writes()
        for run_id in run_ids:
            writes.insert("runs", self._run(run_id, "running"))
            writes.insert("concurrency_leases", self._lease(run_id))
        self._append(writes, run_ids, 0)
        return writes

    def begin_asleep(self, run_ids: Sequence[str], due: Sequence[int]) -> Writes:
        """A direct start that goes to sleep at once: no lease, but a wait."""
        writes = Writes()
        for run_id, at in zip(run_ids, due, strict=True):
            writes.insert("runs", self._run(run_id, "sleeping"))
            wait = WaitRow(run_id, "main/1:sleep", "sleep", "sleeping", at)
            writes.insert("waits", dataclasses.astuple(wait))
        self._append(writes, run_ids, 0)
        return writes

    def append(self, run_ids: Sequence[str], number: int) -> Writes:
        """One commit in the middle of a segment: a step's end and the next one's start."""
        writes = Writes()
        self._append(writes, run_ids, number)
        return writes

    def wake(self, run_ids: Sequence[str], number: int) -> Writes:
        """A sleeping run is taken: the wait goes, the lease comes, the first step's start is journaled."""
        writes = Writes()
        self._append(writes, run_ids, number)
        for run_id in run_ids:
            writes.states.append((run_id, "running", False))
            writes.insert("concurrency_leases", self._lease(run_id))
            writes.delete("waits", run_id)
        return writes

    def finish(self, run_ids: Sequence[str]) -> Writes:
        """The last commit: the last step's end, the run's end, the lease given back."""
        writes = Writes()
        self._append(writes, run_ids, len(self.groups) - 1)
        for run_id in run_ids:
            writes.states.append((run_id, self.row.state, True))
            writes.delete("concurrency_leases", run_id)
        return writes

    def whole(self, run_ids: Sequence[str]) -> list[Writes]:
        """Every commit of these runs, executed side by side from a direct start to the end."""
        middle = [self.append(run_ids, number) for number in range(1, len(self.groups) - 1)]
        return [self.begin(run_ids), *middle, self.finish(run_ids)]

    def recover(self, run_ids: Sequence[str]) -> Writes:
        """The owner is dead: its lease goes, the journal says so, the run is back in the queue."""
        writes = Writes()
        for run_id in run_ids:
            seq = len(self.groups[0]) + 1
            recovered = Event(seq, j.RUN_RECOVERED, None, '{"t":0,"charged":true}', 2, self.row.created_at)
            writes.insert("journal_events", self._event(run_id, recovered))
            writes.insert("dispatch_queue", self._queue(run_id))
            writes.delete("concurrency_leases", run_id)
            writes.states.append((run_id, "pending", False))
        return writes

    def take_again(self, run_ids: Sequence[str]) -> Writes:
        """Another worker takes the recovered run: the interrupted step starts once more."""
        writes = Writes()
        last = self.groups[0][-1]
        for run_id in run_ids:
            seq = len(self.groups[0]) + 1
            for kind in (j.RUN_RESUMED, j.STEP_INTERRUPTED, j.STEP_STARTED):
                seq += 1
                event = Event(seq, kind, last.step_id, last.payload, 3, self.row.created_at)
                writes.insert("journal_events", self._event(run_id, event))
            writes.insert("concurrency_leases", self._lease(run_id))
            writes.delete("dispatch_queue", run_id)
            writes.states.append((run_id, "running", False))
        return writes

    # ---- rows

    def _queue(self, run_id: str) -> Record:
        row = self.row
        return dataclasses.astuple(QueueRow(run_id, row.route, 0, row.created_at, row.created_at, 0))

    def _append(self, writes: Writes, run_ids: Sequence[str], number: int) -> None:
        for run_id in run_ids:
            writes.insert("journal_events", *(self._event(run_id, event) for event in self.groups[number]))

    def _event(self, run_id: str, event: Event) -> Record:
        return (
            run_id, event.seq, event.kind, event.step_id, event.payload, event.execution_seq, event.at,
        )  # fmt: skip

    def _run(self, run_id: str, state: str) -> Record:
        copy = dataclasses.replace(
            self.row, run_id=run_id, root_run_id=run_id, state=state, ended_at=None, lease_token_hash=_TOKEN
        )
        return tuple(getattr(copy, name.name) for name in dataclasses.fields(RunRow))

    def _lease(self, run_id: str) -> Record:
        at = self.row.created_at
        return dataclasses.astuple(LeaseRow(run_id, 1, _TOKEN, _SESSION, at, at + 20_000))


def commits_of(events: Sequence[Event]) -> list[list[Event]]:
    """Cut a journal where the engine commits: after the last start of a batch of steps, and at a suspension."""
    groups: list[list[Event]] = [[]]
    for event, following in zip(events, [*events[1:], None], strict=True):
        groups[-1].append(event)
        if following is None:
            break
        starts_end = event.kind == j.STEP_STARTED and following.kind != j.STEP_STARTED
        if starts_end or event.kind == j.RUN_SUSPENDED:
            groups.append([])
    return groups


def new_ids(count: int) -> list[str]:
    """Run ids of the engine's form: time-ordered, so that new rows stand beside each other as the engine's do."""
    now = time.time_ns() // 1_000_000
    return sorted(ids.time_ordered(now, random.getrandbits(74)) for _ in range(count))
