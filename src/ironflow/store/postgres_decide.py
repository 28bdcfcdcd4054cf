"""The transaction that looks first: lock, read, decide in Python, write, commit.

For `decide`, and for the guarded transitions that the fast statements do not carry (large payloads, columns
by name, lanes, audit, events without a number). The guards are the shared ones, on locked rows; the rows to
be written come from the shared plan, so both databases write the same.

Locks are taken in one order: run rows by id, then queue rows, leases and waits by id, then lanes by name.
What is read about a run (the last number of its journal above all) is read by a statement after the one
that locked it.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ironflow.errors import InvalidTransition, RunNotFound
from ironflow.model.capacity import LeaseRow, QueueRow
from ironflow.model.run import RunRow
from ironflow.model.transition import (
    APPLIED,
    EXISTS,
    FRESH,
    LOST,
    OWNER,
    QUEUED,
    Audit,
    Locked,
    Transition,
)
from ironflow.model.wait import WaitRow
from ironflow.store import rows
from ironflow.store.base import Decide
from ironflow.store.dialect import Statement
from ironflow.store.guards import Fence, Queued, judge
from ironflow.store.plan import Plan, fresh_row, wants_last_seq
from ironflow.store.postgres_lanes import LaneKeeper, Lanes
from ironflow.store.postgres_link import Clock, Connection
from ironflow.store.postgres_shapes import segment_seq

Results = dict[str, "Transition | Exception | None"]


class Decider:
    """Transactions on a connection that the caller owns.

    Args:
        statements: the named statements for PostgreSQL.
        clock: told the time of each transaction.
    """

    __slots__ = ("_clock", "_statements", "lanes")

    def __init__(self, statements: Mapping[str, Statement], clock: Clock) -> None:
        self._statements = statements
        self._clock = clock
        self.lanes = LaneKeeper(statements)

    async def _fetch(self, connection: Connection, name: str, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await connection.fetch(statement.text, *statement.arguments(values))

    async def now(self, connection: Connection) -> int:
        """The time of the database, read after the locks that the caller took."""
        [(at,)] = await self._fetch(connection, "clock", floor=self._clock.floor())
        self._clock.saw(at)
        return int(at)

    # ---- guarded transitions
    async def guarded(self, connection: Connection, transitions: Sequence[Transition]) -> list[str]:
        """Judge and write transitions of different runs in one transaction; one answer each."""
        answers: dict[str, str] = {}
        async with connection.transaction():
            stored = [change for change in transitions if change.guard != FRESH]
            held = await self._lock_runs(connection, [change.run_id for change in stored])
            queued = await self._lock_queue(connection, stored)
            last = await self._last_seqs(connection, stored)
            laned = await self._lock_lanes(connection, transitions, held)
            now = await self.now(connection)
            paused = await self._paused(connection, stored, held)
            for change in stored:
                row = held.get(change.run_id)
                answers[change.run_id] = judge(
                    change, None if row is None else _fence(row), queued.get(change.run_id), paused, now
                )
            going = {
                run_id: lanes for run_id, lanes in laned.items() if answers.get(run_id, APPLIED) == APPLIED
            }
            for run_id in await self.lanes.refuse(connection, going, now) if going else ():
                answers[run_id] = LOST
            await self._create(connection, transitions, now, answers)
            plan = Plan(now)
            for change in transitions:
                if answers[change.run_id] == APPLIED:
                    row = held.get(change.run_id)
                    limited = row is not None and row.limits is not None
                    plan.add(change, last.get(change.run_id, 0), limited=limited)
            await self._write(connection, plan, held)
        return [answers[change.run_id] for change in transitions]

    async def _lock_runs(
        self, connection: Connection, run_ids: Sequence[str], skip_locked: bool = False
    ) -> dict[str, RunRow]:
        if not run_ids:
            return {}
        name = "lock_free_runs" if skip_locked else "lock_runs"
        found = await self._fetch(connection, name, ids=list(run_ids))
        return {values[0]: RunRow(*values) for values in found}

    async def _lock_queue(self, connection: Connection, changes: Sequence[Transition]) -> dict[str, Queued]:
        claims = [change.run_id for change in changes if change.guard == QUEUED]
        if not claims:
            return {}
        found = [QueueRow(*values) for values in await self._fetch(connection, "lock_queue", ids=claims)]
        return {
            row.run_id: Queued(row.run_id, row.status, row.eligible_at, row.reservation_token)
            for row in found
        }

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
            if (change.lanes if change.guard == FRESH else _limited(held.get(change.run_id)))
        ]
        taking = [change for change in limited if change.lease is not None]
        giving = [change.run_id for change in limited if change.lease is None and change.guard != FRESH]
        if not taking and not giving:
            return {}
        wanted = await self.lanes.wanted(connection, taking)
        touched = [*wanted.values(), *(await self.lanes.of(connection, giving)).values()]
        await self.lanes.lock(connection, (lane for lanes in touched for lane, _ in lanes))
        return wanted

    async def _paused(
        self, connection: Connection, changes: Sequence[Transition], held: Mapping[str, RunRow]
    ) -> set[tuple[str, str]]:
        claimed = {
            held[change.run_id].workflow
            for change in changes
            if change.guard != OWNER and change.run_id in held
        }
        if not claimed:
            return set()
        return {
            (org, name)
            for org, name in await self._fetch(connection, "paused_among", workflows=list(claimed))
        }

    async def _create(
        self, connection: Connection, changes: Sequence[Transition], now: int, answers: dict[str, str]
    ) -> None:
        """Insert new runs. What a unique key keeps out does not come back from the insert."""
        fresh = [change for change in changes if change.guard == FRESH and change.run_id not in answers]
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
        earlier: dict[str, Transition],
    ) -> Results:
        """Lock, decide, write. See `Store.decide`.

        `earlier` is filled with what is about to be committed. If the answer to the commit is lost, the
        caller passes it in again: a run whose journal holds it was decided then, and is not decided twice.
        """
        results: Results = {}
        async with connection.transaction():
            ids = sorted(set(run_ids))
            known = [run_id for run_id in ids if run_id in earlier]
            locked = await self._lock(connection, ids, skip_locked, results)
            plan = Plan(locked[0].now if locked else self._clock.now())
            for run_id in known:
                if await self.wrote(connection, earlier[run_id]):
                    results[run_id] = earlier[run_id]
            earlier.clear()
            for one in locked:
                if one.row.run_id not in results:
                    await self._decide_one(connection, one, decide, plan, results)
                    change = results[one.row.run_id]
                    if isinstance(change, Transition):
                        earlier[change.run_id] = change
            plan.audits.extend(audit)
            await self._write(connection, plan, {one.row.run_id: one.row for one in locked})
        return results

    async def _decide_one(
        self, connection: Connection, locked: Locked, decide: Decide, plan: Plan, results: Results
    ) -> None:
        run_id, row = locked.row.run_id, locked.row
        try:
            change = decide(locked)
            results[run_id] = change
            if change is None:
                return
            if change.lease is not None and row.limits is not None:
                wanted = await self.lanes.of(connection, [run_id])
                if await self.lanes.refuse(connection, wanted, locked.now):
                    raise InvalidTransition(f"a lane of run {run_id} is full", hint="leave it in the queue")
            plan.add(change, locked.last_seq, limited=row.limits is not None, was=row.state)
        except Exception as refusal:
            results[run_id] = refusal

    async def _lock(
        self, connection: Connection, run_ids: Sequence[str], skip_locked: bool, results: Results
    ) -> list[Locked]:
        held = await self._lock_runs(connection, run_ids, skip_locked)
        ids = list(held)
        if len(ids) < len(run_ids):
            there = set(ids)
            if skip_locked:
                there |= {
                    values[0] for values in await self._fetch(connection, "existing", ids=list(run_ids))
                }
                results.update(dict.fromkeys(there - held.keys()))
            for run_id in run_ids:
                if run_id not in there:
                    results[run_id] = RunNotFound(f"there is no run {run_id}")
        if not ids:
            return []
        queue = {
            values[0]: QueueRow(*values) for values in await self._fetch(connection, "lock_queue", ids=ids)
        }
        leases = {
            values[0]: LeaseRow(*values) for values in await self._fetch(connection, "lock_leases", ids=ids)
        }
        waits: dict[str, list[WaitRow]] = {run_id: [] for run_id in ids}
        for values in await self._fetch(connection, "lock_waits", ids=ids):
            waits[values[0]].append(WaitRow(*values))
        last = dict(await self._fetch(connection, "last_seqs", ids=ids))
        limited = [run_id for run_id, row in held.items() if row.limits is not None]
        if limited:
            # Whatever is decided may give up or take a place, and lanes are locked before the clock is read.
            lanes = await self.lanes.of(connection, limited)
            await self.lanes.lock(connection, (lane for one in lanes.values() for lane, _ in one))
        now = await self.now(connection)
        return [
            Locked(row, last[run_id], queue.get(run_id), leases.get(run_id), waits[run_id], now)
            for run_id, row in held.items()
        ]

    # ---- writing
    async def _write(self, connection: Connection, plan: Plan, held: Mapping[str, RunRow]) -> None:
        """Write the rows of a plan, one statement per table."""
        await self._update_runs(connection, plan, held)
        for name, gone in (
            ("delete_leases", plan.releases),
            ("delete_queue", plan.dequeues),
            ("delete_waits", plan.clear_waits),
        ):
            if gone:
                await self._fetch(connection, name, ids=gone)
        for name, flat, columns in (
            ("insert_events", plan.events, rows.EVENT_COLUMNS),
            ("insert_payloads", plan.payloads, ("run_id", "seq", "payload")),
            ("insert_leases", plan.leases, rows.LEASE_COLUMNS),
            ("insert_queue", plan.enqueues, rows.QUEUE_COLUMNS),
            ("insert_waits", plan.waits, rows.WAIT_COLUMNS),
            ("insert_run_lanes", plan.lanes, ("run_id", "lane", "lane_limit")),
        ):
            if flat:
                width = len(columns)
                values = {column: flat[n::width] for n, column in enumerate(columns)}
                await self._fetch(connection, name, **values)
        if plan.audits:
            entries = [rows.audit_values(entry, plan.now, secrets.randbits(74)) for entry in plan.audits]
            values = {column: [entry[column] for entry in entries] for column in rows.AUDIT_COLUMNS}
            await self._fetch(connection, "insert_audits", **values)
        if plan.freed:
            freed = await self.lanes.of(connection, plan.freed)
            lanes = {lane for one in freed.values() for lane, _ in one}
            await self.lanes.let_through(connection, lanes, plan.now)

    async def _update_runs(self, connection: Connection, plan: Plan, held: Mapping[str, RunRow]) -> None:
        """All shapes of a change in one statement: the rows are locked and known, so they are computed
        here.
        """
        changed: dict[str, RunRow] = {}

        def row(run_id: str) -> RunRow:
            if run_id not in changed:
                changed[run_id] = copy.copy(held[run_id])
            return changed[run_id]

        for run_id, state, seq, token in _wide(plan.activations, 4):
            one = row(run_id)
            one.state, one.execution_seq, one.lease_token_hash = state, seq, token
            one.started_at = one.started_at or plan.now
        for run_id, state in _wide(plan.leaves, 2):
            one = row(run_id)
            one.state, one.lease_token_hash = state, None
        for run_id, state in _wide(plan.ends, 2):
            one = row(run_id)
            one.state, one.lease_token_hash, one.ended_at = state, None, plan.now
        for run_id, columns in plan.rare:
            one = row(run_id)
            for name, value in columns.items():
                if name != "started_at" or one.started_at is None:
                    setattr(one, name, value)
        if changed:
            every = list(changed.values())
            values = {name: [getattr(one, name) for one in every] for name in rows.RUN_COLUMNS}
            await self._fetch(connection, "update_runs", **values)

    # ---- lost answers
    async def wrote(self, connection: Connection, transition: Transition) -> bool:
        """Whether the database already holds what this transition writes: the same events of the same
        segment.

        Where the transition hands the run to somebody, the token must be there as well: two workers may
        want to write the same events, but each made its own token.
        """
        if transition.lease is not None:
            fences = await self._fetch(connection, "fence", run_id=transition.run_id)
            lease = transition.lease
            if not fences or tuple(fences[0]) != (lease.execution_seq, lease.token_hash):
                return False
        if not transition.events:
            return transition.lease is not None
        seqs = {event.execution_seq or segment_seq(transition) for event in transition.events}
        there: set[tuple[Any, ...]] = set()
        for seq in seqs:
            found = await self._fetch(connection, "written", run_id=transition.run_id, execution_seq=seq)
            for values in found:
                there.add(tuple(values))
                there.add((0, *values[1:]))
        return all(
            (
                event.seq,
                event.kind,
                event.step_id,
                event.payload,
                event.execution_seq or segment_seq(transition),
            )
            in there
            for event in transition.events
        )


def _fence(row: RunRow) -> Fence:
    return Fence(
        row.run_id, row.execution_seq, row.lease_token_hash, row.state, row.facts, row.limits is not None,
        row.org, row.workflow,
    )  # fmt: skip


def _limited(row: RunRow | None) -> bool:
    return row is not None and row.limits is not None


def _wide(flat: Sequence[Any], width: int) -> Any:
    """A flat list as rows."""
    return zip(*[iter(flat)] * width, strict=True)
