"""Why a run is not moving: every hold, and the earliest time at which it can lift."""

from __future__ import annotations

from dataclasses import dataclass

from ironflow.errors import RunNotFound
from ironflow.model import capacity
from ironflow.model import run as runs
from ironflow.model.capacity import QueueRow, SessionRow
from ironflow.model.ids import split_route
from ironflow.model.run import RunRow
from ironflow.store.base import Store


@dataclass(slots=True)
class Hold:
    """One reason. `until` is a time in ms, None where it is not time that lifts it."""

    code: str
    message: str
    until: int | None = None


async def holds(store: Store, run_id: str) -> list[Hold]:
    """Every hold of a run; empty when it executes or has ended well.

    Raises:
        RunNotFound: no such run.
    """
    row = await store.run(run_id)
    if row is None:
        raise RunNotFound(f"no run has the id {run_id!r}")
    if row.ended:
        return [Hold("ENDED", f"the run has ended as {row.state}")]
    found: list[Hold] = []
    if row.state == runs.PAUSED:
        found.append(
            Hold("PAUSED", f"paused: {row.reason or 'by an operator'}; `ironflow runs resume {run_id}`")
        )
    paused = await store.paused_workflows()
    if row.workflow in paused:
        found.append(Hold("WORKFLOW_PAUSED", f"workflow {row.workflow} is paused; its runs stay queued"))
    queue = {q.run_id: q for q in await store.queue()}.get(run_id)
    sessions = await store.sessions()
    if queue is not None:
        found += _queued(row, queue, sessions, store.now())
    for wait in await store.waits(run_id):
        found.append(Hold("WAITING", f"{wait.kind} of {wait.step_id} ({wait.status})", wait.due_at))
    for lease in await store.leases():
        if lease.run_id == run_id:
            found.append(
                Hold(
                    "EXECUTING",
                    f"executes on session {lease.session_id} (lease renewed until)",
                    lease.expires_at,
                )
            )
    return found


def _queued(row: RunRow, queue: QueueRow, sessions: list[SessionRow], now: int) -> list[Hold]:
    found: list[Hold] = []
    if queue.status == capacity.RESERVED:
        found.append(Hold("RESERVED", f"promised to session {queue.reserved_by}", queue.reserved_until))
    if queue.status == capacity.BLOCKED:
        found.append(Hold("LANE_FULL", f"lane {queue.blocked_lane} is full"))
    if queue.eligible_at > now:
        what = (
            "back-off before the next attempt"
            if row.state == runs.RETRYING
            else "scheduled, or in recovery grace"
        )
        found.append(Hold("NOT_ELIGIBLE_YET", what, queue.eligible_at))
    workflow, tags = split_route(queue.route)
    able = [s for s in sessions if queue.route in s.routes.split("\n")]
    if not sessions:
        found.append(Hold("NO_WORKER", "no worker is connected"))
    elif not able:
        needs = f"workflow {workflow}" + (f" and tags {', '.join(sorted(tags))}" if tags else "")
        found.append(Hold("NO_ELIGIBLE_WORKER", f"{len(sessions)} workers are connected, none has {needs}"))
    elif all(s.credits <= 0 for s in able):
        found.append(Hold("WORKERS_BUSY", f"all {len(able)} eligible workers are full"))
    elif not found:
        found.append(Hold("QUEUED", "ready; a worker takes it next"))
    return found
