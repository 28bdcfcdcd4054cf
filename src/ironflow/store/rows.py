"""From the tuples of a driver to the rows of the model.

The columns of every statement stand in the order of the fields (`sql/columns.sql`), so a row is its class
called with the tuple: no dictionary, no name looked up per value. A test compares the two orders.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ironflow.errors import InvalidTransition
from ironflow.model import ids
from ironflow.model.capacity import Holdings, LaneHolder, LeaseRow, QueueRow, RunHead, SessionRow
from ironflow.model.journal import Event
from ironflow.model.key import KeyRow
from ironflow.model.routing import current
from ironflow.model.run import RunRow
from ironflow.model.scope import Scope
from ironflow.model.suspicion import Mass, Suspects, Suspicion
from ironflow.model.transition import Audit
from ironflow.model.wait import WaitRow
from ironflow.store.base import WorkflowSeen
from ironflow.store.reader import Expired, RunFilter, Standing, Unowned

#: The columns of `runs`, `dispatch_queue`, … in the order in which statements select and insert them.
RUN_COLUMNS = tuple(field.name for field in fields(RunRow))
QUEUE_COLUMNS = tuple(field.name for field in fields(QueueRow))
LEASE_COLUMNS = tuple(field.name for field in fields(LeaseRow))
WAIT_COLUMNS = tuple(field.name for field in fields(WaitRow))
HEAD_COLUMNS = tuple(field.name for field in fields(RunHead))
#: Columns of a head that are read: all but the reservation. In a row, what it is sorted by begins behind them.
HEAD_WIDTH = len(HEAD_COLUMNS) - 1
EVENT_COLUMNS = ("run_id", "seq", "kind", "step_id", "payload", "execution_seq", "at")
AUDIT_COLUMNS = ("audit_id", "org", "environment", "at", "action", "actor", "run_id", "fields")
PAYLOAD_COLUMNS = ("run_id", "seq", "payload")
RUN_LANE_COLUMNS = ("run_id", "lane", "lane_limit")
#: A lane as lists show it.
LANE_COLUMNS = ("lane", "lane_limit", "executing", "reserved", "blocked")
#: Versions of one workflow that are remembered: those that were registered last.
VERSIONS_KEPT = 100
WORKFLOW_COLUMNS = ("name", "version", "worker_tags", "definition", "first_seen_at", "seen_at", "paused_at")

_LONE = re.compile("[\ud800-\udfff]")

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


def head(values: Sequence[Any], reservation: str | None = None) -> RunHead:
    """A segment as a worker sees it; further columns of the statement (its sort key) are left out."""
    made = RunHead(*values[:HEAD_WIDTH])
    made.reservation = reservation
    return made


def of_suspicion(suspicion: Suspicion | None) -> dict[str, int | None]:
    """The parameters of the statements that ask for it; without one, nobody counts as dead by suspicion."""
    return {"until": None, "within": 0} if suspicion is None else suspicion._asdict()


def suspects_of(found: Iterable[Sequence[Any]]) -> Suspects:
    """From sessions, each with the size of its mass and the live sessions behind it; both are null outside of one."""
    due: list[SessionRow] = []
    mass: Mass | None = None
    for *values, company, live in found:
        if company is None:
            due.append(SessionRow(*values))
        elif mass is None:  # the largest comes first
            mass = Mass(company, live)
    return Suspects(due, mass)


#: Who deletes by age, in the audit log.
RETENTION = "retention"
#: Later than everything, and "no limit": larger than any seq, count or time that occurs.
ENDLESS = 1 << 62
#: The statements between which `audits_asked` chooses.
AUDIT_LISTS = ("audits", "audits_of_scope", "audits_of_run")
#: After every id of an audit entry: those are hexadecimal.
_AFTER_ALL = "z"


#: Live runs that one call of `Reader.unowned` reads.
LIVE_PAGE = 5_000


def unowned(found: Sequence[Sequence[Any]], limit: int) -> Unowned:
    """The answer to `Reader.unowned`, from the rows of a page (run_id, last, page).

    Args:
        found: at least one row; its run_id is None where nothing was found.
        limit: how many finds were asked for: after so many, the rest of the page has yet to be read.
    """
    run_ids = [run_id for run_id, _, _ in found if run_id is not None]
    _, last, page = found[0]
    if len(run_ids) >= limit:
        return Unowned(run_ids, run_ids[-1])
    return Unowned(run_ids, last if page >= LIVE_PAGE else "")


def unheard_of(values: Iterable[Any]) -> bool:
    """Whether one of these is a text that no row can hold: with a NUL, or half of a surrogate pair.

    Asked before a read, so that such a text finds nothing on either database instead of failing in the driver.
    """
    return any(
        isinstance(value, str) and ("\0" in value or (not value.isascii() and _LONE.search(value) is not None))
        for value in values
    )


def journals(rows: Iterable[Sequence[Any]], run_ids: Iterable[str]) -> dict[str, list[Event]]:
    """Journals by run, every asked run with an entry; the rows come ordered by run and seq."""
    found: dict[str, list[Event]] = {run_id: [] for run_id in run_ids}
    for values in rows:
        found[values[0]].append(Event(*values[1:]))
    return found


def heard_of(run_ids: Iterable[str]) -> list[str]:
    """Those of these ids that a row can have at all; see `unheard_of`."""
    return [run_id for run_id in run_ids if not unheard_of((run_id,))]


def standings(rows: Iterable[Sequence[Any]]) -> dict[str, Standing]:
    """Where runs stand, by run."""
    return {values[0]: Standing(*values) for values in rows}


def events_at(rows: Iterable[Sequence[Any]]) -> dict[tuple[str, int], Event]:
    """Events of several runs, by run and number."""
    return {(values[0], values[1]): Event(*values[1:]) for values in rows}


def values_of(row: SessionRow | KeyRow | WorkflowSeen) -> dict[str, Any]:
    """A row as named parameters."""
    return asdict(row)


def scoped(scope: Scope, **values: Any) -> dict[str, Any]:
    """The parameters of a statement about the rows of one scope."""
    return {"org": scope.org, "environment": scope.environment, **values}


def current_workflows(seen: Iterable[Sequence[Any]], serving: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """The answer to `Store.workflows`, from the rows of its two statements."""
    return current(named(WORKFLOW_COLUMNS, seen), [text for (text,) in serving])


def bounded(limit: int) -> int:
    """How many rows to read at most, as a number that both databases take; below 1 there are none."""
    return max(0, min(limit, ENDLESS))


def listed(filter: RunFilter, scope: Scope) -> dict[str, Any]:
    """The parameters of `runs`, but for the states, which each database takes in its own form."""
    until = ENDLESS if filter.created_to is None else filter.created_to
    # One upper bound: of two, a database may walk the index by the one that holds nothing back.
    before_at, before_id = min(filter.before or (ENDLESS, ""), (until, ""))
    label, label_value = filter.label or (None, None)
    return scoped(
        scope, before_at=before_at, before_id=before_id, any_state=not filter.states, workflow=filter.workflow,
        reason=filter.reason, label=label, label_value=label_value, limit=bounded(filter.limit),
        priority=filter.priority, worker_tag=filter.worker_tag, created_from=filter.created_from or 0,
    )  # fmt: skip


def newest(pages: Iterable[Iterable[RunRow]], limit: int) -> list[RunRow]:
    """The first page of several lists of runs, each newest first, as one list."""
    every = [row for page in pages for row in page]
    every.sort(key=lambda row: (row.created_at, row.run_id), reverse=True)
    return every[: bounded(limit)]


def audits_asked(limit: int, run_id: str | None, scope: Scope | None, before: str | None) -> tuple[str, dict[str, Any]]:
    """The statement that answers `Store.audits`, and its parameters."""
    org, environment = scope or (None, None)
    everywhere, of_scope, of_run = AUDIT_LISTS
    named = {"limit": bounded(limit), "before": before or _AFTER_ALL}
    if run_id is not None:
        return of_run, {**named, "run_id": run_id, "org": org, "environment": environment}
    if scope is not None:
        return of_scope, {**named, "org": org, "environment": environment}
    return everywhere, named


def revoked(found: Sequence[Any], key_id: str, actor: str) -> Audit:
    """The audit entry of a key that was taken back, from what `revoke_key` returned."""
    org, environment, kind, name = found
    return Audit("key.revoke", actor, None, {"key_id": key_id, "kind": kind, "name": name}, Scope(org, environment))


def deleted(found: Sequence[Any], actor: str) -> Audit:
    """The audit entry of a run that is deleted now, from its locked row.

    Raises:
        InvalidTransition: it has not ended.
    """
    row = RunRow(*found)
    if not row.ended:
        raise InvalidTransition(
            f"run {row.run_id} is {row.state}; only a run that has ended can be deleted", hint="Cancel it first."
        )
    return Audit.of(row, "run.delete", actor, {"workflow": row.workflow, "state": row.state})


def still_there(run_id: str) -> InvalidTransition:
    """The refusal to delete a run below which one goes on, or is in somebody's hands this very moment."""
    return InvalidTransition(
        f"run {run_id} has children that have not ended; only a tree that has ended can be deleted",
        hint="Cancel them first.",
    )


def page_asked(scope: Scope, created_by: int, after: tuple[int, str], page: int) -> dict[str, Any]:
    """The parameters of `page_end`."""
    return scoped(scope, created_by=created_by, after_at=after[0], after_id=after[1], page=page)


def on_page(asked: Mapping[str, Any], end: Sequence[Sequence[Any]], limit: int) -> dict[str, Any]:
    """The parameters of `expired_trees`, from those of `page_end` and what that gave."""
    # What ended by a time was created by then, so one time is the bound of both.
    until_at, until_id = end[0] if end else (asked["created_by"] + 1, "")
    return {**asked, "until_at": until_at, "until_id": until_id, "ended_before": asked["created_by"], "limit": limit}


def expired(found: Sequence[Sequence[Any]], end: Sequence[Sequence[Any]], limit: int) -> Expired:
    """The answer to `Reader.expired_trees`, from what its two statements gave."""
    roots = [(run_id, events or 0) for run_id, _, events in found]
    if len(found) >= limit:  # the rest of the page was not looked at
        return Expired(roots, (found[-1][1], found[-1][0]))
    return Expired(roots, (end[0][0], end[0][1]) if end else None)


def whole_trees(
    roots: Iterable[Sequence[Any]], below: Iterable[Sequence[Any]], ended: Iterable[Sequence[Any]]
) -> tuple[dict[str, str], list[str]]:
    """Which trees may be deleted: those of which every run is locked and has ended.

    Args:
        roots: locked (run_id, workflow).
        below: (root, run_id) of every run below one of these.
        ended: the run ids among these that are locked and ended long enough ago.

    Returns the workflow of each root that goes, and all runs of these trees.
    """
    gone = {run_id for (run_id,) in ended}
    pairs = list(below)
    stays = {root for root, run_id in pairs if run_id not in gone}
    going = {run_id: workflow for run_id, workflow in roots if run_id not in stays}
    return going, [*going, *dict.fromkeys(run_id for root, run_id in pairs if root in going)]


def expired_audit(workflows: Collection[str], count: int, ended_before: int, scope: Scope) -> Audit:
    """The audit entry of trees that one transaction deletes because of their age.

    One for all of them, and by number: an entry for each would make the audit log grow as fast as the runs did.
    """
    fields = {
        "runs": count,
        "trees": len(workflows),
        "workflows": dict(Counter(workflows).most_common()),
        "ended_before": ended_before,
    }
    return Audit("run.expire", RETENTION, None, fields, scope)


#: What deletes runs (`ids`) once they are locked, in this order.
DELETIONS = (
    "open_passes", "delete_journals", "delete_payloads", "delete_waits_of_runs", "delete_queue_of_runs",
    "delete_leases_of_runs", "delete_lanes_of_runs", "delete_runs", "close_passes",
)  # fmt: skip


def audit(values: Sequence[Any]) -> dict[str, Any]:
    """A row of the audit log, with its fields read back from JSON."""
    found = dict(zip(AUDIT_COLUMNS, values, strict=True))
    found["fields"] = json.loads(found["fields"]) if found["fields"] else {}
    return found


def audit_values(entry: Audit, now: int, randomness: int) -> dict[str, Any]:
    """An audit entry as named parameters.

    Args:
        entry: what happened.
        now: the time of its transaction, milliseconds since 1970.
        randomness: 74 random bits for its id.
    """
    return {
        "audit_id": ids.time_ordered(now, randomness),
        "org": entry.scope.org,
        "environment": entry.scope.environment,
        "at": now,
        "action": entry.action,
        "actor": entry.actor,
        "run_id": entry.run_id,
        "fields": json.dumps(entry.fields, separators=(",", ":"), default=str) if entry.fields else None,
    }


def named(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows as dictionaries, for the lists that people read."""
    return [dict(zip(columns, values, strict=True)) for values in rows]


def holdings(
    run: Sequence[Any],
    queue: Sequence[Sequence[Any]],
    lease: Sequence[Sequence[Any]],
    waits: Iterable[Sequence[Any]],
    holders: Iterable[Sequence[Any]],
) -> Holdings:
    """What `Store.holdings` gives, from the rows of its five statements."""
    return Holdings(
        RunRow(*run),
        QueueRow(*queue[0]) if queue else None,
        LeaseRow(*lease[0]) if lease else None,
        [WaitRow(*values) for values in waits],
        [LaneHolder(lane, limit, run_id, bool(executing)) for lane, limit, run_id, executing in holders],
    )


#: The statements of `holdings` after the first, which finds the run.
HOLDINGS = ("queue_row", "lease_row", "waits", "lane_holders")
