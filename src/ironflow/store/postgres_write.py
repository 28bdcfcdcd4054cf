"""A plan as PostgreSQL statements, inside a transaction that somebody else began: one statement per table, or one for
all of them where a run goes back to the queue, which is what the next owner of a lost run waits for.

The rows are locked and known, so whatever a plan does to a run is computed here and written by a single
update, whichever of its columns it moves.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ironflow.model.run import RunRow
from ironflow.model.transition import Audit
from ironflow.store import rows
from ironflow.store.dialect import Statement
from ironflow.store.plan import RowPlan
from ironflow.store.postgres_lanes import LaneKeeper
from ironflow.store.postgres_link import Connection
from ironflow.store.postgres_named import Named

#: The columns of a run that a transition may move (see `rows.CHANGEABLE`), as `update_runs` takes them.
_MOVABLE = tuple(name for name in rows.RUN_COLUMNS if name in rows.CHANGEABLE or name in ("run_id", "started_at"))
#: What `requeue` does, and the columns that each part of it takes.
_REQUEUE = {
    "update_runs": tuple(f"runs_{name}" for name in _MOVABLE),
    "delete_leases": ("leases_ids",),
    "insert_events": tuple(f"events_{name}" for name in rows.EVENT_COLUMNS),
    "insert_queue": tuple(f"queue_{name}" for name in rows.QUEUE_COLUMNS),
    "insert_audits": tuple(f"audits_{name}" for name in rows.AUDIT_COLUMNS),
}
_NOTHING: dict[str, list[Any]] = {name: [] for names in _REQUEUE.values() for name in names}


class PlanWriter(Named):
    """Writes plans.

    Args:
        statements: the named statements for PostgreSQL.
        lanes: told of places that are given up.
    """

    __slots__ = ("_lanes",)

    def __init__(self, statements: Mapping[str, Statement], lanes: LaneKeeper) -> None:
        super().__init__(statements)
        self._lanes = lanes

    async def write(self, connection: Connection, plan: RowPlan, held: Mapping[str, RunRow]) -> None:
        """Write the rows of a plan.

        Args:
            connection: inside the transaction that locked the runs.
            plan: what to write.
            held: the locked rows of its runs, as they were read.
        """
        parts = self._parts(plan, held)
        if len(parts) > 1 and parts.keys() <= _REQUEUE.keys():
            every = {**_NOTHING, **{name: value for values in parts.values() for name, value in values.items()}}
            await self._fetch(connection, "requeue", **every)
        else:
            for name, values in parts.items():
                await self._fetch(connection, name, **values)
        if plan.freed:
            freed = await self._lanes.of(connection, plan.freed)
            lanes = {lane for one in freed.values() for lane, _ in one}
            await self._lanes.let_through(connection, lanes, plan.now)

    def _parts(self, plan: RowPlan, held: Mapping[str, RunRow]) -> dict[str, dict[str, list[Any]]]:
        """The statements that have something to do, in the order in which they may run, with their parameters."""
        parts: dict[str, dict[str, list[Any]]] = {}
        changed = _changed(plan, held)
        if changed:
            parts["update_runs"] = {f"runs_{name}": [getattr(one, name) for one in changed] for name in _MOVABLE}
        if plan.releases:
            parts["delete_leases"] = {"leases_ids": plan.releases}
        for name, gone in (("delete_queue", plan.dequeues), ("delete_waits", plan.clear_waits)):
            if gone:
                parts[name] = {"ids": gone}
        for name, prefix, flat, columns in (
            ("insert_events", "events_", plan.events, rows.EVENT_COLUMNS),
            ("insert_payloads", "", plan.payloads, rows.PAYLOAD_COLUMNS),
            ("insert_leases", "", plan.leases, rows.LEASE_COLUMNS),
            ("insert_queue", "queue_", plan.enqueues, rows.QUEUE_COLUMNS),
            ("insert_waits", "", plan.waits, rows.WAIT_COLUMNS),
            ("insert_run_lanes", "", plan.lanes, rows.RUN_LANE_COLUMNS),
        ):
            if flat:
                width = len(columns)
                parts[name] = {prefix + column: flat[n::width] for n, column in enumerate(columns)}
        if plan.audits:
            parts["insert_audits"] = audits(plan.audits, plan.now)
        return parts


def audits(entries: Sequence[Audit], now: int) -> dict[str, list[Any]]:
    """The parameters of `insert_audits`."""
    every = [rows.audit_values(entry, now, secrets.randbits(74)) for entry in entries]
    return {f"audits_{column}": [one[column] for one in every] for column in rows.AUDIT_COLUMNS}


def _changed(plan: RowPlan, held: Mapping[str, RunRow]) -> list[RunRow]:
    """The run rows as the plan leaves them: they are locked and known, so every shape of a change is computed here."""
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
    return list(changed.values())


def _wide(flat: Sequence[Any], width: int) -> Iterable[tuple[Any, ...]]:
    """A flat list as rows."""
    return zip(*[iter(flat)] * width, strict=True)
