"""What must still be true when a transition is applied: the guards, decided in one place for every store.

A store reads the fence columns of the locked run rows and asks :func:`judge`. The database's own
constraints stay a tripwire behind it (`(run_id, seq)`, one queue row per run, unique keys); they are not
how a refusal is found. The same goes for lanes: a store counts who holds a place in one, and asks :func:`admit`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from ironflow.model import capacity, transition
from ironflow.model.run import OWNED, SUSPENDED, may_become
from ironflow.model.transition import APPLIED, LOST, NEWS, STALE, Transition


class Fence(NamedTuple):
    """The columns of `runs` that guards compare, in the order in which stores select them."""

    run_id: str
    execution_seq: int
    token_hash: str | None
    state: str
    facts: int
    #: whether the run has lanes: they are counted only for runs that have them
    limited: bool
    org: str
    environment: str
    workflow: str
    warnings: int


#: The select list of a fence.
FENCE_COLUMNS = (
    "run_id, execution_seq, lease_token_hash, state, facts, limits is not null as limited, org, environment, workflow, "
    "warnings"
)


class Queued(NamedTuple):
    """The columns of `dispatch_queue` that a claim compares, in the order in which stores select them."""

    run_id: str
    status: str
    eligible_at: int
    reservation_token: str | None


QUEUED_COLUMNS = "run_id, status, eligible_at, reservation_token"


def judge(
    change: Transition,
    fence: Fence | None,
    queued: Queued | None,
    paused: Collection[tuple[str, str, str]],
    now: int,
) -> str:
    """The answer to a transition by its guard alone: `applied` means that nothing stands in its way.

    Args:
        change: what is asked for; its guard is not GUARD_FRESH (that one the insert itself decides).
        fence: the locked run row, or None when there is no such run.
        queued: its queue row; looked at for GUARD_QUEUED only.
        paused: (org, environment, workflow) of every paused workflow.
        now: database time, milliseconds since 1970.
    """
    guard = change.guard
    if guard == transition.GUARD_OWNER:
        return _owner(change, fence)
    if fence is None:
        return LOST
    if guard == transition.GUARD_LOCKED:
        return APPLIED
    if fence.execution_seq != change.execution_seq or (change.facts is not None and fence.facts != change.facts):
        return LOST
    if (fence.org, fence.environment, fence.workflow) in paused:
        return LOST
    if change.state is not None and not _legal(change, fence):
        return LOST
    if guard == transition.GUARD_SUSPENDED:
        return APPLIED if fence.state in SUSPENDED else LOST
    if queued is None or queued.reservation_token != change.reservation:
        return LOST
    return APPLIED if _may_go(queued, now) else LOST


def starts_held(change: Transition, paused: Collection[tuple[str, str, str]]) -> bool:
    """Whether a new run would execute at once although its workflow is held. It may be created, and wait."""
    row = change.row
    return row is not None and row.execution_seq > 0 and (row.org, row.environment, row.workflow) in paused


def _owner(change: Transition, fence: Fence | None) -> str:
    if (
        fence is None
        or fence.execution_seq != change.execution_seq
        or fence.token_hash is None
        or fence.token_hash != change.token_hash
        or fence.state not in OWNED
        or (change.state is not None and not _legal(change, fence))
    ):
        return STALE
    # Only a writer that is the owner learns that there is news: to any other the run is none of its business.
    return NEWS if change.facts is not None and fence.facts != change.facts else APPLIED


def _legal(change: Transition, fence: Fence) -> bool:
    """Whether the row may go where the change brings it. The statements that are no general path say the same in SQL,
    as far as a change that they carry can come to it.
    """
    warnings = change.changes.get("warnings", fence.warnings) if change.changes else fence.warnings
    return may_become(fence.state, change.state, warnings)


def _may_go(queued: Queued, now: int) -> bool:
    if queued.status == capacity.DELAYED:
        # Not promoted yet, but due: the sweep that promotes is a convenience, the time is the rule.
        return queued.eligible_at <= now
    # A reserved row is handed to whoever knows its token, and that was compared.
    return queued.status in (capacity.READY, capacity.RESERVED)


# ---- lanes
#: The lanes of a run and its limit in each, by name.
Lanes = Sequence[tuple[str, int]]


#: How often one reservation looks again because lanes, or others, left it less than it looked for.
LOOKS = 5


def page(look: int, wanted: int) -> int:
    """How many segments a reservation looks at for the `wanted` that it still lacks.

    Each look puts aside what full lanes hold back, so that nobody meets it again; a bounded number of looks keeps the
    transaction short whatever the backlog. From the second one on they are wide: a few slots must not work their way
    through the backlog of one lane in steps of their own number while others wait behind it.
    """
    return wanted if look == 0 else max(wanted, 100)


def admit(wanted: Mapping[str, Lanes], held: Mapping[str, set[str]], most: int | None = None) -> dict[str, str]:
    """Of runs about to hold a place in each of their lanes, those that may not, each with a lane that is full.

    A place that a run has already (it was reserved for it) does not count against it.

    Args:
        wanted: the lanes of each run, in the order in which they are served: earlier ones count for later ones.
        held: the runs with a place, by lane; those that are let in are added to it.
        most: stop when so many were let in; nothing is said of the rest. None: go through all.
    """
    refused: dict[str, str] = {}
    left = len(wanted) if most is None else most
    for run_id, lanes in wanted.items():
        full = next((lane for lane, limit in lanes if len(held[lane] - {run_id}) >= limit), None)
        if full is not None:
            refused[run_id] = full
            continue
        for lane, _ in lanes:
            held[lane].add(run_id)
        left -= 1
        if not left:
            break
    return refused


def fitting(waiting: Iterable[tuple[str, int]], using: int) -> list[str]:
    """Of runs that one lane holds back, the first that fit into it now.

    Nobody overtakes: where the first does not fit, none does, or a run with a small limit would wait for ever.

    Args:
        waiting: run and limit, in the order in which they are served.
        using: how many places are taken.
    """
    found: list[str] = []
    for run_id, limit in waiting:
        if using + len(found) >= limit:
            break
        found.append(run_id)
    return found
