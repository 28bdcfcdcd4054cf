"""Why a run is not moving: every hold, and the earliest time at which it can lift.

Owns the explanation of a run's place between queue, worker and wait. Promises that there always is one: the rows are
read as of one moment, each of them is named, and a run that has none of them is called what it is, lost, instead of
being answered with nothing. It only reads, so asking is always safe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ironflow.engine.ending import DEADLINE
from ironflow.engine.reading import outlined
from ironflow.engine.workflow_task import is_limit
from ironflow.errors import ReplayDivergence, RunNotFound, for_run
from ironflow.model import capacity, recovery
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model import wait as waits
from ironflow.model.capacity import Holdings, LaneHolder, LeaseRow, QueueRow, SessionRow
from ironflow.model.fold import StepView
from ironflow.model.ids import split_route, split_routes
from ironflow.model.journal import name_of
from ironflow.model.routing import has_own, serves_queue, takes
from ironflow.model.run import RunRow
from ironflow.model.wait import WaitRow
from ironflow.store.base import Store

#: Leaves out the sessions whose processes are proven to be gone: `worker.evidence.living`, where that can be asked.
Living = Callable[[list[SessionRow]], list[SessionRow]]

#: Steps, and holders of a lane, that a message names; the others are counted.
NAMED = 5

#: Every code a hold may have, and what it tells. Codes are stable: scripts compare them.
CODES: dict[str, str] = {
    "ENDED": "the run has ended",
    "PAUSED": "an operator, a divergence or a workflow's own option holds the run",
    "WORKFLOW_PAUSED": "its workflow is held: runs stay queued",
    "EXECUTING": "a worker has it; until: when its lease ends, unless it is renewed as long as the worker lives",
    "STEP_EXECUTING": "the body of a step executes",
    "STEP_RETRY": "a try of a step failed; until: when the next one is due",
    "WORKER_DEAD": "its worker's process is gone, which its lock proves on that host; until: when its lease ends",
    "LEASE_EXPIRED": "its worker fell silent; the next sweep of any worker puts it back into the queue",
    "WAITING": "it waits; until: when the wait is due, if time ends it",
    "WAKING": "a due wait has been claimed by a node that is about to queue the run",
    "RESERVED": "it is promised to a worker that has not begun; until: when the promise ends",
    "LANE_FULL": "as many runs as its lane allows execute, or are promised to a worker",
    "SCHEDULED": "it was started with a time; until: that time",
    "RUN_RETRY": "an attempt failed; until: when the next one is due",
    "RECOVERY_GRACE": "its worker was lost; until: when it may be handed out again",
    "NO_WORKER": "no worker is connected, or only such as are leaving",
    "NO_ELIGIBLE_WORKER": "no connected worker has its workflow and all of its tags",
    "WORKERS_BUSY": "every worker that could take it has all of its slots in use",
    "QUEUED": "nothing is in its way: a worker takes it next",
    "UNOWNED": "it has no place anywhere; sweeps repair this, `ironflow doctor` reports it",
    "DEADLINE": "it fails if it has not ended by then; until: that time",
}


@dataclass(slots=True)
class Hold:
    """One reason. `until`: a time in ms, None where it is not time that lifts it; `details`: facts for programs."""

    code: str
    message: str
    until: int | None = None
    details: dict[str, Any] = field(default_factory=dict)


async def holds(store: Store, run_id: str, living: Living = list) -> list[Hold]:
    """Every hold of a run, the most telling first. Never empty: executing and having ended are answers, too.

    Args:
        store: the database.
        run_id: of the run.
        living: without it, every session counts as alive until its clock is over.

    Raises:
        RunNotFound: no such run.
    """
    found = await store.holdings(run_id)
    if found is None:
        raise RunNotFound(f"no run has the id {run_id!r}")
    if found.row.ended:
        return [Hold("ENDED", _ended(found.row))]
    now = store.now()
    scope = found.row.scope
    known = [one for one in await store.sessions() if one.expires_at > now and one.scope == scope]
    workers = _Workers(known, living(known))
    hold = (await outlined(store, run_id)).hold if found.row.state == runs.PAUSED else None
    told = list(_run(found, hold, await store.paused_workflows(scope)))
    if found.lease is not None and found.lease.expires_at > now:
        if workers.lost(found.lease.session_id):
            told += _orphaned(found, found.lease, workers)
        else:
            told += _executing(found.lease, workers, await _open_steps(store, run_id))
    elif found.lease is not None:
        told += _silent(found.lease, workers)
    elif found.queue is not None:
        told += _queued(found, found.queue, workers, now, held=bool(told))
    elif found.waits:
        told += _suspended(found, workers.live, now)
    elif found.row.state != runs.PAUSED:
        text = f"it is {found.row.state}, with neither lease, queue row nor wait; see `ironflow doctor`"
        told.append(Hold("UNOWNED", text))
    told += _deadline(found.row, now)
    return told


async def _open_steps(store: Store, run_id: str) -> list[StepView]:
    return list((await outlined(store, run_id)).open.values())


# ---- the run itself


def _ended(row: RunRow) -> str:
    if row.state in (runs.FAILED, runs.CANCELLED):
        restart = " --restart" if row.compensating_for is not None else ""  # what it did is undone
        return f"the run has ended as {row.state}; `ironflow runs retry {row.run_id}{restart}` opens it again"
    return f"the run has ended as {row.state}"


def paused(hold: Mapping[str, Any] | None, run_id: str) -> Hold:
    """The hold of a paused run, from the payload of the event that paused it."""
    return Hold("PAUSED", f"paused: {paused_because(hold, run_id)}", details=dict(hold or {}))


def paused_because(hold: Mapping[str, Any] | None, run_id: str) -> str:
    """Why a run is paused and what lets it go on, from the payload of the event that paused it."""
    hold = hold or {}
    reason, resume = str(hold.get("reason") or ""), f"`ironflow runs resume {run_id}` lets it go on"
    if reason == ReplayDivergence.code and "recorded" in hold:
        facts = (hold.get(name) for name in ("step_id", "expected", "recorded", "where"))
        told = ReplayDivergence.told(*facts)
        return f"{reason}: {told}. {for_run(ReplayDivergence.advice, run_id).removesuffix('.')}"
    if reason == "STEP_OUTCOME_UNKNOWN":
        asked = f"{reason}: whether step {hold.get('step_id')} took effect, its `reconcile` could not tell"
        return f"{asked}. Find out, and have it answer that: {resume}, and it is asked again"
    if reason == runs.NEEDS_DATABASE:
        where = "a worker that has the database (`ironflow worker FILE --db URL`), and this one speaks to a server"
        return f"{reason}: the transactional step {hold.get('step_id')} needs {where}. Where one takes it, {resume}"
    error = hold.get("error")
    if isinstance(error, dict):
        name = str(error.get("type", "")).rpartition(".")[2]
        return f"{reason}: {name}: {error.get('message')}; after a fix {resume}"
    by = f" by {hold['by']}" if hold.get("by") else ""
    return f"{reason or hold.get('message') or 'an operator asked for it'}{by}; {resume}"


def _run(found: Holdings, hold: Mapping[str, Any] | None, paused_workflows: dict[str, int]) -> Iterator[Hold]:
    row = found.row
    if row.state == runs.PAUSED:
        yield paused(hold, row.run_id)
    if row.workflow in paused_workflows and found.lease is None:
        resume = f"`ironflow workflows resume {row.workflow}`"
        yield Hold("WORKFLOW_PAUSED", f"workflow {row.workflow} is paused, its runs stay queued; {resume} lets them go")


def _deadline(row: RunRow, now: int) -> Iterator[Hold]:
    if row.deadline_at is not None:
        passed = row.deadline_at <= now
        text = "has passed: its worker or the next sweep fails it" if passed else "it fails if it has not ended by then"
        yield Hold("DEADLINE", text, row.deadline_at)


# ---- with a worker


class _Workers(NamedTuple):
    """The sessions whose clocks are not over, and those of them that are not proven to be gone."""

    known: list[SessionRow]
    live: list[SessionRow]

    def lost(self, session_id: str | None) -> bool:
        """Whether the process of this session is proven to be gone."""
        return any(one.session_id == session_id for one in self.known) and all(
            one.session_id != session_id for one in self.live
        )


def _orphaned(found: Holdings, lease: LeaseRow, workers: _Workers) -> Iterator[Hold]:
    """A lease of a process that has died, of which nobody who could act on it has heard yet."""
    taken = "a worker on that host takes the run back at once, any other after its lease"
    worker = _worker(lease.session_id, workers.known)
    yield Hold("WORKER_DEAD", f"its {worker} is gone; {taken}", lease.expires_at)
    yield from _unserved(found.row, workers.live)


def _executing(lease: LeaseRow, workers: _Workers, open_steps: list[StepView]) -> Iterator[Hold]:
    yield Hold("EXECUTING", f"executes on {_worker(lease.session_id, workers.known)}", lease.expires_at)
    for step in open_steps[:NAMED]:
        if step.state == steps.RETRYING:
            error = (step.error or {}).get("message") or "no message"
            yield Hold("STEP_RETRY", f"try {step.try_no} of step {step.name} failed: {error}", step.due_at)
        elif step.state == steps.RUNNING:
            yield Hold("STEP_EXECUTING", f"step {step.name} ({step.step_id}) executes, try {step.try_no}")
    if len(open_steps) > NAMED:
        yield Hold("STEP_EXECUTING", f"and {len(open_steps) - NAMED} more steps are under way")


def _silent(lease: LeaseRow, workers: _Workers) -> Iterator[Hold]:
    """A lease that ran out and that no sweep has met yet."""
    worker = _worker(lease.session_id, workers.known)
    yield Hold("LEASE_EXPIRED", f"its lease on {worker} has run out; the next sweep requeues it", lease.expires_at)
    if not workers.live:
        yield Hold("NO_WORKER", "no worker is connected, so nobody sweeps")


def _worker(session_id: str | None, sessions: Sequence[SessionRow]) -> str:
    for session in sessions:
        if session.session_id == session_id:
            leaving = ", which is leaving" if session.draining else ""
            cut_off = ", whose connection broke" if session.suspect_since is not None else ""
            return f"worker {session.worker_id} (pid {session.pid} on {session.host}){leaving}{cut_off}"
    return f"a worker that is gone (session {session_id})"


# ---- in the queue


def _queued(found: Holdings, queue: QueueRow, workers: _Workers, now: int, *, held: bool) -> Iterator[Hold]:
    if queue.status == capacity.RESERVED:
        yield from _reserved(queue, workers, now)
        return
    for lane in _full_lanes(found.holders, queue.blocked_lane):
        held = True
        yield _lane_full(lane, found.holders)
    if queue.eligible_at > now:
        held = True
        yield _not_before(found.row, queue.eligible_at)
    unserved = list(_unserved(found.row, workers.live))
    yield from unserved
    if not held and not unserved:
        alone = found.row.charged_recoveries >= recovery.SUSPECT_AFTER
        how = "; two workers died with it, so it gets a process of its own" if alone else ""
        yield Hold("QUEUED", f"ready; a worker takes it next{how}")


def _reserved(queue: QueueRow, workers: _Workers, now: int) -> Iterator[Hold]:
    worker = _worker(queue.reserved_by, workers.known)
    until, lost = queue.reserved_until, workers.lost(queue.reserved_by)
    if lost or (until is not None and until <= now):
        told = "is gone; a sweep takes it back then" if lost else "did not begin; the next sweep takes it back"
        yield Hold("RESERVED", f"was promised to {worker}, which {told}", until)
        if not workers.live:
            yield Hold("NO_WORKER", "no worker is connected, so nobody sweeps")
    else:
        yield Hold("RESERVED", f"promised to {worker}, which has not begun yet", until)


def _full_lanes(holders: Sequence[LaneHolder], blocked: str | None) -> list[str]:
    """The lanes that have no place for the run: counted, for the queue says it only of a run that was tried."""
    inside = Counter((holder.lane, holder.lane_limit) for holder in holders)
    full = {lane for (lane, limit), count in inside.items() if count >= limit}
    return sorted(full | {blocked} if blocked is not None else full)


def _lane_full(lane: str, holders: Sequence[LaneHolder]) -> Hold:
    inside = [holder for holder in holders if holder.lane == lane]
    if not inside or len(inside) < inside[0].lane_limit:
        return Hold("LANE_FULL", f"lane {lane} was full and has a place again; the next sweep lets the run through")
    names = [f"{holder.run_id}{'' if holder.executing else ' (promised)'}" for holder in inside[:NAMED]]
    more = f" and {len(inside) - NAMED} more" if len(inside) > NAMED else ""
    return Hold("LANE_FULL", f"lane {lane} is full (limit {inside[0].lane_limit}); held by {', '.join(names)}{more}")


def _not_before(row: RunRow, at: int) -> Hold:
    if runs.RETRYING in (row.state, row.resume_state):
        return Hold("RUN_RETRY", f"attempt {row.attempt - 1} failed; attempt {row.attempt} is due then", at)
    if at == row.scheduled_at:
        return Hold("SCHEDULED", "does not start before then", at)
    return Hold("RECOVERY_GRACE", f"its worker was lost (loss {row.lease_recoveries}); handed out again then", at)


def _unserved(row: RunRow, sessions: Sequence[SessionRow]) -> Iterator[Hold]:
    """Why no worker takes this run now; nothing where one can."""
    if any(has_own(session, row.run_id) and not session.draining for session in sessions):
        return
    route = row.route
    queued = [session for session in sessions if serves_queue(session)]
    staying = [session for session in queued if not session.draining]
    left = len(queued) - len(staying)
    leaving = f"{_count(left, 'worker')} {'is' if left == 1 else 'are'} leaving and {'takes' if left == 1 else 'take'}"
    if not staying:
        nobody = f"{leaving} nothing new; no other is connected" if left else "no worker is connected"
        yield Hold("NO_WORKER", f"{nobody}{_for_others(len(sessions) - len(queued))}")
        return
    able = [session for session in staying if takes(session, row.run_id, route)]
    if not able:
        also = f"; {leaving} nothing new" if left else ""
        yield Hold("NO_ELIGIBLE_WORKER", f"{_missing(route, staying)}{also}")
    elif all(session.credits <= 0 for session in able):
        yield Hold("WORKERS_BUSY", _busy(able))


def _busy(able: Sequence[SessionRow]) -> str:
    slots = sum(session.slots for session in able)
    if slots == 1:
        return "the one slot of the one worker that could take it is in use"
    return f"all {slots} slots of {_count(len(able), 'worker')} that could take it are in use"


def _for_others(alone: int) -> str:
    """Why processes that are there are no help: `ironflow run`, and a script, execute what they were started for."""
    if not alone:
        return ""
    return f" ({'a process executes' if alone == 1 else f'{alone} processes execute'} only other runs)"


def _missing(route: str, sessions: Sequence[SessionRow]) -> str:
    """What a connected worker would need, as far as can be told from what each of them says that it serves."""
    workflow, version, tags, _ = split_route(route)
    served = [list(map(split_route, split_routes(session.routes))) for session in sessions]
    having = [[one for one in own if one.workflow == workflow] for own in served]
    having = [own for own in having if own]
    connected = f"{_count(len(sessions), 'worker')} connected"
    if not having:
        return f"{connected}, none with workflow {workflow}" + (f" (tags {_list(tags)})" if tags else "")
    some = f"{connected}, {len(having)} with workflow {workflow}"
    fitting = [own for own in having if any(one.version == version for one in own)]
    if not fitting:
        versions = _list(frozenset(one.version for own in having for one in own))
        return f"{some}, none that continues version {version} (they have {versions}: declare it compatible)"
    offers = [frozenset[str]().union(*(one.tags for one in own)) for own in fitting]
    lacking = min((tags - offer for offer in offers), key=len) or tags
    return f"{some}, none with tags {_list(tags)} (missing: {_list(lacking)})"


# ---- suspended


def _suspended(found: Holdings, sessions: Sequence[SessionRow], now: int) -> Iterator[Hold]:
    shown = [wait for wait in found.waits if wait.step_id != DEADLINE]  # of which `_deadline` tells
    for wait in sorted(shown, key=lambda one: (one.due_at is None, one.due_at or 0, one.step_id)):
        if wait.step_id != waits.PLACE:
            yield _wait(wait, now)
        elif wait.due_at is not None and wait.due_at > now:  # paused before it was due: it waits for both
            yield _not_before(found.row, wait.due_at)
    if found.row.state != runs.PAUSED and any(wait.due_at is not None and wait.due_at <= now for wait in found.waits):
        for lane in _full_lanes(found.holders, None):
            yield _lane_full(lane, found.holders)
        yield from _unserved(found.row, sessions)


def _wait(wait: WaitRow, now: int) -> Hold:
    name = name_of(wait.step_id)
    if wait.status == waits.WAKING:
        return Hold("WAKING", f"{name} is due and claimed by node {wait.claimed_by}; if that is dead, a sweep frees it")
    due = wait.due_at is not None and wait.due_at <= now
    if wait.kind == waits.BACKOFF:
        return Hold("STEP_RETRY", f"a try of step {name} failed", wait.due_at)
    what = "sleeps" if wait.kind == waits.TIMER else f"waits for {wait.kind}"
    if wait.kind == waits.TIMER and is_limit(wait.step_id):
        what = "is limited to that time"
    return Hold("WAITING", f"{what} ({wait.step_id}){': due, to be woken' if due else ''}", wait.due_at)


def _list(names: frozenset[str]) -> str:
    return ", ".join(sorted(names))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
