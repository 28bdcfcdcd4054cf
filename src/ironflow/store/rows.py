"""From the tuples of a driver to the rows of the model.

The columns of every statement stand in the order of the fields (`sql/columns.sql`), so a row is its class
called with the tuple: no dictionary, no name looked up per value. A test compares the two orders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from typing import Any

from ironflow.model import ids
from ironflow.model.capacity import LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Audit
from ironflow.model.wait import WaitRow

#: The columns of `runs`, `dispatch_queue`, … in the order in which statements select and insert them.
RUN_COLUMNS = tuple(field.name for field in fields(RunRow))
QUEUE_COLUMNS = tuple(field.name for field in fields(QueueRow))
LEASE_COLUMNS = tuple(field.name for field in fields(LeaseRow))
SESSION_COLUMNS = tuple(field.name for field in fields(SessionRow))
WAIT_COLUMNS = tuple(field.name for field in fields(WaitRow))
HEAD_COLUMNS = tuple(field.name for field in fields(RunHead))
EVENT_COLUMNS = ("run_id", "seq", "kind", "step_id", "payload", "execution_seq", "at")
AUDIT_COLUMNS = ("audit_id", "org", "at", "action", "actor", "run_id", "fields")
LANE_COLUMNS = ("lane", "lane_limit", "executing", "reserved", "blocked")
WORKFLOW_COLUMNS = ("name", "version", "worker_tags", "first_seen_at", "seen_at", "paused_at")

#: What a transition may change by name. Everything else of a run is moved by the transition's own fields,
#: or never.
CHANGEABLE = frozenset(RUN_COLUMNS) - {
    "started_at",
    "run_id",
    "org",
    "environment",
    "workflow",
    "root_run_id",
    "created_at",
}


def run(values: Sequence[Any]) -> RunRow:
    """A row of `runs`."""
    return RunRow(*values)


def run_values(row: RunRow) -> list[Any]:
    """A run as the values of an insert, in the order of `RUN_COLUMNS`."""
    return [getattr(row, name) for name in RUN_COLUMNS]


def head(values: Sequence[Any], reservation: str | None = None) -> RunHead:
    """A segment as a worker sees it; further columns of the statement (its sort key) are left out."""
    made = RunHead(*values[:17])
    made.reservation = reservation
    return made


def event(values: Sequence[Any]) -> Event:
    """A row of the journal."""
    return Event(*values)


def journals(rows: Iterable[Sequence[Any]], run_ids: Iterable[str]) -> dict[str, list[Event]]:
    """Journals by run, every asked run with an entry; the rows come ordered by run and seq."""
    found: dict[str, list[Event]] = {run_id: [] for run_id in run_ids}
    for values in rows:
        found[values[0]].append(Event(*values[1:]))
    return found


def wait(values: Sequence[Any]) -> WaitRow:
    """A row of `waits`."""
    return WaitRow(*values)


def session_values(session: SessionRow) -> dict[str, Any]:
    """A session as named parameters."""
    return asdict(session)


def audit(values: Sequence[Any]) -> dict[str, Any]:
    """A row of the audit log, with its fields read back from JSON."""
    found = dict(zip(AUDIT_COLUMNS, values, strict=True))
    found["fields"] = json.loads(found["fields"]) if found["fields"] else {}
    return found


def audit_values(entry: Audit, now: int, randomness: int, org: str = "default") -> dict[str, Any]:
    """An audit entry as named parameters.

    Args:
        entry: what happened.
        now: the time of its transaction, milliseconds since 1970.
        randomness: 74 random bits for its id.
        org: whose it is.
    """
    return {
        "audit_id": ids.time_ordered(now, randomness),
        "org": org,
        "at": now,
        "action": entry.action,
        "actor": entry.actor,
        "run_id": entry.run_id,
        "fields": json.dumps(entry.fields, separators=(",", ":"), default=str) if entry.fields else None,
    }


def named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows as dictionaries, for the lists that people read."""
    return [dict(zip(columns, values, strict=True)) for values in rows]
