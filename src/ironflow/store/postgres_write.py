"""A plan as PostgreSQL statements, inside a transaction that somebody else began: one statement per table.

The rows are locked and known, so whatever a plan does to a run is computed here and written by a single
update, whichever of its columns it moves.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ironflow.model.run import RunRow
from ironflow.store import rows
from ironflow.store.dialect import Statement
from ironflow.store.plan import Plan
from ironflow.store.postgres_lanes import LaneKeeper
from ironflow.store.postgres_link import Connection


class PlanWriter:
    """Writes plans."""

    __slots__ = ("_lanes", "_statements")

    def __init__(self, statements: Mapping[str, Statement], lanes: LaneKeeper) -> None:
        self._statements = statements
        self._lanes = lanes

    async def _fetch(self, connection: Connection, name: str, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await connection.fetch(statement.text, *statement.arguments(values))

    async def write(self, connection: Connection, plan: Plan, held: Mapping[str, RunRow]) -> None:
        """Write the rows of a plan.

        Args:
            connection: inside the transaction that locked the runs.
            plan: what to write.
            held: the locked rows of its runs, as they were read.
        """
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
            freed = await self._lanes.of(connection, plan.freed)
            lanes = {lane for one in freed.values() for lane, _ in one}
            await self._lanes.let_through(connection, lanes, plan.now)

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


def _wide(flat: Sequence[Any], width: int) -> Iterable[tuple[Any, ...]]:
    """A flat list as rows."""
    return zip(*[iter(flat)] * width, strict=True)
