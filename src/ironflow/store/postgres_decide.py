"""The transaction that looks first: lock, read, decide in Python, write, commit.

For `decide`, and for the guarded transitions that the fast statements do not carry (large payloads, columns
by name, lanes, audit, events without a number). The guards are the shared ones, on locked rows; the rows to
be written come from the shared plan, so both databases write the same.

Locks are taken in one order: run rows by id, then queue rows, leases and waits by id, then lanes by name; the time is
read after the last of them. What is read about a run (the last number of its journal above all) is read by a statement
after the ones that locked it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from ironflow.errors import InvalidTransition, RunNotFound
from ironflow.model.capacity import LeaseRow, QueueRow
from ironflow.model.run import RunRow
from ironflow.model.transition import (
    APPLIED,
    EXISTS,
    GUARD_FRESH,
    GUARD_OWNER,
    GUARD_QUEUED,
    LOST,
    Audit,
    Decide,
    Decisions,
    Locked,
    Transition,
)
from ironflow.model.wait import WaitRow
from ironflow.store import rows
from ironflow.store.dialect import Statement
from ironflow.store.guards import Fence, Lanes, Queued, judge, starts_held
from ironflow.store.plan import RowPlan, fresh_row, wants_last_seq
from ironflow.store.postgres_lanes import LaneKeeper
from ironflow.store.postgres_link import Clock, Connection, atomically
from ironflow.store.postgres_named import Named
from ironflow.store.postgres_shapes import segment_seq
from ironflow.store.postgres_write import PlanWriter

_RUN, _QUEUE, _LEASE, _WAIT = (
    itemgetter(*columns) for columns in (rows.RUN_COLUMNS, rows.QUEUE_COLUMNS, rows.LEASE_COLUMNS, rows.WAIT_COLUMNS)
)


class Decider(Named):
    """Transactions on a connection that the caller owns.

    Args:
        statements: the named statements for PostgreSQL.
        clock: told the time of each transaction.
    """

    __slots__ = ("_clock", "_writer", "lanes")

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        super().__init__(statements)
        self._clock = clock
        self.lanes = LaneKeeper(statements)
        self._writer = PlanWriter(statements, self.lanes)

    async def now(self, connection: Connection) -> int:
        """The time of the database, read after the locks that the caller took."""
        [(at,)] = await self._fetch(connection, "clock", floor=self._clock.floor())
        self._clock.saw(at)
        return int(at)

    async def compare(self, connection: Connection) -> None:
        """Ask the database for its own time, and go by it."""
        shown = self._clock.now()
        [(told,)] = await self._fetch(connection, "clock", floor=self._clock.bare())
        self._clock.compare(shown, told)

    # ---- guarded transitions
    async def guarded(
        self, connection: Connection, transitions: Sequence[Transition], last_seqs: dict[str, int]
    ) -> list[str]:
        """Judge and write transitions of different runs in one transaction; one answer each.

        `last_seqs` comes in with the numbers after which an earlier try, whose answer was lost, put its
        events: what it wrote is found under the lock and not written twice. It goes out with those of this
        try.
        """
        async with atomically(connection):
            return await self.judge_and_write(connection, transitions, last_seqs)

    async def judge_and_write(
        self, connection: Connection, transitions: Sequence[Transition], last_seqs: dict[str, int]
    ) -> list[str]:
        """As :meth:`guarded`, inside a transaction that the caller began and will commit."""
        answers: dict[str, str] = {}
        stored = [change for change in transitions if change.guard != GUARD_FRESH]
        held = await self.lock(connection, [change.run_id for change in stored])
        for change in stored:
            last_seq = last_seqs.get(change.run_id)
            if last_seq is not None and await self.wrote(connection, change, last_seq):
                answers[change.run_id] = APPLIED
        # Not a second time: a run that is answered already is left out of everything below.
        going = [change for change in transitions if change.run_id not in answers]
        now, last = await self._judge(connection, going, held, answers)
        last_seqs.update(last)
        plan = RowPlan(now)
        for change in going:
            if answers[change.run_id] == APPLIED:
                plan.add(change, last.get(change.run_id, 0), limited=_limited(held.get(change.run_id)))
        await self._writer.write(connection, plan, held)
        return [answers[change.run_id] for change in transitions]

    async def _judge(
        self,
        connection: Connection,
        changes: Sequence[Transition],
        held: Mapping[str, RunRow],
        answers: dict[str, str],
    ) -> tuple[int, dict[str, int]]:
        """Answer each by its guard, lanes and keys. Returns the time, and the last numbers asked for."""
        stored = [change for change in changes if change.guard != GUARD_FRESH]
        queued = await self._lock_queue(connection, stored)
        last = await self._last_seqs(connection, stored)
        laned = await self._lock_lanes(connection, changes, held)
        now = await self.now(connection)
        paused = await self._paused(connection, changes, held)
        for change in changes:
            if change.guard == GUARD_FRESH and starts_held(change, paused):
                answers[change.run_id] = LOST
        for change in stored:
            row = held.get(change.run_id)
            fence = None if row is None else _fence(row)
            answers[change.run_id] = judge(change, fence, queued.get(change.run_id), paused, now)
        wanted = {run_id: laned[run_id] for run_id in laned if answers.get(run_id, APPLIED) == APPLIED}
        for run_id in await self.lanes.refuse(connection, wanted, now) if wanted else ():
            answers[run_id] = LOST
        await self._create(connection, changes, now, answers)
        return now, last

    async def lock(self, connection: Connection, run_ids: Sequence[str]) -> dict[str, RunRow]:
        """Lock runs in order of id until the transaction ends; those that are there, as they are now."""
        if not run_ids:
            return {}
        return {values[0]: RunRow(*values) for values in await self._fetch(connection, "lock_runs", ids=list(run_ids))}

    async def _lock_queue(self, connection: Connection, changes: Sequence[Transition]) -> dict[str, Queued]:
        claims = [change.run_id for change in changes if change.guard == GUARD_QUEUED]
        if not claims:
            return {}
        found = [QueueRow(*values) for values in await self._fetch(connection, "lock_queue", ids=claims)]
        return {row.run_id: Queued(row.run_id, row.status, row.eligible_at, row.reservation_token) for row in found}

    async def _last_seqs(self, connection: Connection, changes: Sequence[Transition]) -> dict[str, int]:
        asking = [change.run_id for change in changes if wants_last_seq(change)]
        if not asking:
            return {}
        return {run_id: seq for run_id, seq in await self._fetch(connection, "last_seqs", ids=asking)}  # noqa: C416

    async def _lock_lanes(
        self, connection: Connection, changes: Sequence[Transition], held: Mapping[str, RunRow]
    ) -> dict[str, Lanes]:
        """Lock every lane in which a place is taken or given up. Returns the lanes of those that take one."""
        limited = [
            change
            for change in changes
            if (change.lanes if change.guard == GUARD_FRESH else _limited(held.get(change.run_id)))
        ]
        taking = [change for change in limited if change.lease is not None]
        giving = [change.run_id for change in limited if change.lease is None and change.guard != GUARD_FRESH]
        if not taking and not giving:
            return {}
        wanted = await self.lanes.wanted(connection, taking)
        touched = [*wanted.values(), *(await self.lanes.of(connection, giving)).values()]
        await self.lanes.lock(connection, (lane for lanes in touched for lane, _ in lanes))
        return wanted

    async def _paused(
        self, connection: Connection, changes: Sequence[Transition], held: Mapping[str, RunRow]
    ) -> set[tuple[str, str, str]]:
        claimed = {
            held[change.run_id].workflow for change in changes if change.guard != GUARD_OWNER and change.run_id in held
        }
        claimed |= {change.row.workflow for change in changes if change.row is not None}
        if not claimed:
            return set()
        return {tuple(found) for found in await self._fetch(connection, "paused_among", workflows=list(claimed))}

    async def _create(
        self, connection: Connection, changes: Sequence[Transition], now: int, answers: dict[str, str]
    ) -> None:
        """Insert new runs. What a unique key keeps out does not come back from the insert."""
        fresh = [change for change in changes if change.guard == GUARD_FRESH and change.run_id not in answers]
        if not fresh:
            return
        columns = list(zip(*[fresh_row(change, now) for change in fresh], strict=True))
        values = {name: list(column) for name, column in zip(rows.RUN_COLUMNS, columns, strict=True)}
        made = {run_id for (run_id,) in await self._fetch(connection, "insert_runs", **values)}
        for change in fresh:
            answers[change.run_id] = APPLIED if change.run_id in made else EXISTS

    # ---- decisions
    async def decide(
        self,
        connection: Connection,
        run_ids: Sequence[str],
        decide: Decide,
        skip_locked: bool,
        audit: Sequence[Audit],
        earlier: dict[str, tuple[Transition, int]],
    ) -> Decisions:
        """Lock, decide, write. See `Store.decide`.

        `earlier` is filled with what is about to be committed. If the answer to the commit is lost, the
        caller passes it in again: a run whose journal holds it was decided then, and is not decided twice.
        """
        results: Decisions = {}
        async with atomically(connection):
            ids = sorted(set(run_ids))
            locked = await self._look(connection, ids, skip_locked, results)
            plan = RowPlan(locked[0].now if locked else self._clock.now())
            for run_id, (change, last_seq) in earlier.items():
                if await self.wrote(connection, change, last_seq):
                    results[run_id] = change
            for one in locked:
                if one.row.run_id not in results:
                    await self._decide_one(connection, one, decide, plan, results)
                    decided = results[one.row.run_id]
                    if isinstance(decided, Transition):
                        earlier[decided.run_id] = (decided, one.last_seq)
            plan.audits.extend(audit)
            await self._writer.write(connection, plan, {one.row.run_id: one.row for one in locked})
        return results

    async def _decide_one(
        self, connection: Connection, locked: Locked, decide: Decide, plan: RowPlan, results: Decisions
    ) -> None:
        run_id, row = locked.row.run_id, locked.row
        try:
            change = decide(locked)
        except Exception as refusal:
            results[run_id] = refusal
            return
        results[run_id] = change
        if change is None:
            return
        if change.lease is not None and row.limits is not None:
            wanted = await self.lanes.of(connection, [run_id])
            if await self.lanes.refuse(connection, wanted, locked.now):
                results[run_id] = InvalidTransition(f"a lane of run {run_id} is full", hint="Leave it in the queue.")
                return
        # An error from here on is unexpected and ends the transaction: half a transition is never written.
        plan.add(change, locked.last_seq, limited=row.limits is not None, was=row.state)

    async def _look(
        self, connection: Connection, run_ids: Sequence[str], skip_locked: bool, results: Decisions
    ) -> list[Locked]:
        """Lock and read these runs; `results` learns of those that are not there, or in somebody else's hands."""
        asked = [run_id for run_id in run_ids if not rows.unheard_of((run_id,))]
        floor = self._clock.floor()
        found = await self._fetch(connection, "look", floor=floor, ids=asked, skip_locked=skip_locked)
        seen = [_locked(*values) for values in found]
        if len(seen) < len(run_ids):
            there = held = {locked.row.run_id for locked in seen}
            if skip_locked:
                there = held | {run_id for (run_id,) in await self._fetch(connection, "existing", ids=asked)}
            results.update(dict.fromkeys(there - held))
            for run_id in run_ids:
                if run_id not in there:
                    results[run_id] = RunNotFound(f"there is no run {run_id}")
        if seen:
            self._clock.saw(seen[0].now)
        limited = [locked.row.run_id for locked in seen if locked.row.limits is not None]
        if limited:
            # Whatever is decided may give up or take a place. Their locks are the last ones, so time is read again.
            lanes = await self.lanes.of(connection, limited)
            await self.lanes.lock(connection, (lane for one in lanes.values() for lane, _ in one))
            now = await self.now(connection)
            for locked in seen:
                locked.now = now
        return seen

    # ---- lost answers
    async def wrote(self, connection: Connection, transition: Transition, last_seq: int | None) -> bool:
        """Whether the database already holds what this transition writes: the same events of one segment.

        Where the transition hands the run to somebody, the token must be there as well: two workers may want
        to write the same events, but each made its own token. Events that the store numbers are looked for
        after `last_seq`, where the try that may have written them put them; None: no try got so far.
        """
        lease = transition.lease
        if lease is not None:
            fences = await self._fetch(connection, "fence", run_id=transition.run_id)
            if not fences or tuple(fences[0]) != (lease.execution_seq, lease.token_hash):
                return False
        if not transition.events:
            return lease is not None
        if last_seq is None and wants_last_seq(transition):
            return False
        fence = segment_seq(transition)
        expected: list[tuple[Any, ...]] = []
        following = last_seq or 0
        for event in transition.events:
            following = event.seq or following + 1
            expected.append((following, event.kind, event.step_id, event.payload, event.execution_seq or fence))
        first, last = expected[0][0], expected[-1][0]
        found = await self._fetch(connection, "written", run_id=transition.run_id, first=first, last=last)
        return [tuple(values) for values in found] == expected


def _locked(at: int, run: str, last_seq: int, queue: str | None, lease: str | None, waits: str | None) -> Locked:
    """A row of `look`. Columns are taken by name: a newer release may have added some that this one does not know."""
    return Locked(
        RunRow(*_RUN(json.loads(run))),
        last_seq,
        None if queue is None else QueueRow(*_QUEUE(json.loads(queue))),
        None if lease is None else LeaseRow(*_LEASE(json.loads(lease))),
        [] if waits is None else [WaitRow(*_WAIT(one)) for one in json.loads(waits)],
        at,
    )


def _fence(row: RunRow) -> Fence:
    return Fence(
        row.run_id, row.execution_seq, row.lease_token_hash, row.state, row.facts, row.limits is not None,
        row.org, row.environment, row.workflow, row.warnings,
    )  # fmt: skip


def _limited(row: RunRow | None) -> bool:
    return row is not None and row.limits is not None
