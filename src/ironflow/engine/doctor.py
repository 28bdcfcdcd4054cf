"""The doctor: compares what a database says with what must be true of it, run by run, and names what is not.

Every invariant of the engine that rows can show is checked here, on a live database as well as on one at
rest. Rows and journals are read one after the other while workers go on writing, so a first finding is
only a suspicion: the run is read again, and what is reported has held while its row stood still. Nothing
is repaired; that is a decision.

    I1  no event was written by an execution_seq older than one before it
    I2  a completed step never starts again in the same attempt
    I3  one terminal event per epoch, and the journal folds to the row
    I4  the journal is dense
    I5  no lane is over its limit, and what holds a slot is alive
    I6  a run is with one recovery loop: not leased and queued, not leased and waiting
    I7  no run was recovered beyond its ceiling
    I8  what was acknowledged can be read: the run's creation, its payloads, its end
    I9  every live run has a lease, a place in the queue, an open wait, or a pause
    I10 every child has its parent, and lives no longer than its root
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ironflow.model import capacity
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import QueueRow
from ironflow.model.fold import Folded, fold
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.wait import WaitRow
from ironflow.store.base import Store
from ironflow.store.reader import RunFilter

#: Runs whose journals are held in memory at once.
PAGE = 50
#: How often a suspicion is looked at again before it counts.
LOOKS = 3
#: More rows than any queue has: a place in the queue that was not read would look like a lost run.
_ALL = 1 << 31
_BATCH = 1_000

#: Columns that must be equal in the row and in the fold of its journal.
COMPARED = (
    "execution_seq",
    "attempt",
    "epoch",
    "retry_count",
    "lease_recoveries",
    "compensations",
    "warnings",
    "ended_at",
)

#: A waker's hand-off changes the row and journals nothing: the event follows with the next segment.
_HANDED_OFF = runs.SUSPENDED | {runs.RETRYING}


@dataclass(slots=True, frozen=True, order=True)
class Finding:
    """One thing that is not as it must be.

    Attributes:
        rule: the invariant, "I1" to "I10", or "store" for what the database says of itself.
        run_id: the run concerned, if one is.
        message: what was found.
    """

    rule: str
    run_id: str | None
    message: str


@dataclass(slots=True)
class Held:
    """Which runs hold a slot or a place in the queue, at one moment."""

    leased: set[str]
    queue: dict[str, QueueRow]


class Place(NamedTuple):
    """Where one run is: whether it has a lease (an expired one, too), its place in the queue, its open waits."""

    leased: bool
    queue: QueueRow | None
    waits: Sequence[WaitRow]


async def examine(store: Store, *, ceiling: int = 10, health: bool = True) -> list[Finding]:
    """Check everything.

    Args:
        store: an open database; reading is enough.
        ceiling: consecutive recoveries that are allowed (setting `recovery_ceiling`).
        health: also ask the database about itself (damage, settings that take durability away). A test on a
            server without fsync leaves it out.

    Returns:
        the findings, by rule and run; empty when all is well.
    """
    found = [Finding("store", None, message) for message in await store.check()] if health else []
    found += await _lanes(store)
    held = await _held(store)
    unknown = held.leased | set(held.queue)
    async for page in _pages(store):
        journals = await store.journals([row.run_id for row in page])
        for row in page:
            unknown.discard(row.run_id)
            waits = [] if row.ended else await store.waits(row.run_id)
            place = Place(row.run_id in held.leased, held.queue.get(row.run_id), waits)
            suspected = list(_run(row, journals[row.run_id], place, ceiling))
            suspected += await _family(store, row)
            if suspected:
                found += await _confirmed(store, row.run_id, ceiling)
    for run_id in unknown:
        if await store.run(run_id) is None:
            found.append(Finding("I5", run_id, "a slot or a place in the queue is held for a run that does not exist"))
    return sorted(found, key=_order)


def report(findings: Sequence[Finding]) -> str:
    """The findings as lines, for assertions: `assert not findings, report(findings)`."""
    return "\n".join(f"{f.rule} {f.run_id or '-'}: {f.message}" for f in findings)


def _order(finding: Finding) -> tuple[int, str, str]:
    number = finding.rule.removeprefix("I")
    return int(number) if number.isdigit() else 0, finding.run_id or "", finding.message


async def _pages(store: Store) -> AsyncIterator[list[RunRow]]:
    before: tuple[int, str] | None = None
    while True:
        page = await store.runs(RunFilter(before=before, limit=PAGE, scope=None))
        if page:
            yield page
        if len(page) < PAGE:
            return
        before = (page[-1].created_at, page[-1].run_id)


async def _held(store: Store) -> Held:
    leased = {lease.run_id for lease in await store.leases()}
    after = ""
    while True:
        # An expired lease still says who had the run: until it is swept, the run is not lost.
        expired = await store.expired_leases(_BATCH, after)
        leased.update(expired)
        if len(expired) < _BATCH:
            break
        after = max(expired)
    return Held(leased, {row.run_id: row for row in await store.queue(_ALL)})


async def _confirmed(store: Store, run_id: str, ceiling: int) -> list[Finding]:
    """Look again until the row stands still around the look; what is found then is reported."""
    found: list[Finding] = []
    for _ in range(LOOKS):
        held = await store.holdings(run_id)
        if held is None:  # retention took the whole tree
            return []
        row, place = held.row, Place(held.lease is not None, held.queue, held.waits)
        found = [*_run(row, await store.journal(run_id), place, ceiling), *await _family(store, row)]
        if not found or await store.run(run_id) == row:
            break
    return found


# ---- one run -------------------------------------------------------------------------------------------


def _run(row: RunRow, events: Sequence[Event], place: Place, ceiling: int) -> Iterator[Finding]:
    checks = list(_journal(events))
    if events and not any(_unreadable(events)):
        checks += _against_row(row, fold(events))
    checks += _places(row, place)
    checks += _ceilings(row, ceiling)
    for rule, message in checks:
        yield Finding(rule, row.run_id, message)


def _journal(events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    unreadable = list(_unreadable(events))
    yield from unreadable
    if not events:
        yield "I8", "the journal is empty, although the run exists"
        return
    if events[0].kind != j.RUN_CREATED:
        yield "I8", f"the journal begins with {events[0].kind}, not with {j.RUN_CREATED}"
    if unreadable:
        return
    yield from fold(events).breaches


def _unreadable(events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    for event in events:
        try:
            event.data()
        except ValueError as error:
            yield "I8", f"the payload of seq {event.seq} ({event.kind}) cannot be read: {error}"


def _against_row(row: RunRow, view: Folded) -> Iterator[tuple[str, str]]:
    for name in COMPARED:
        stored, told = getattr(row, name), getattr(view, name)
        if stored != told:
            yield "I3", f"{name} is {stored} in the row and {told} by the journal"
    if row.state != view.state and not (row.state == runs.PENDING and view.state in _HANDED_OFF):
        yield "I3", f"the state is {row.state} in the row and {view.state} by the journal"
    if row.ended and not view.ended_in_epoch:
        yield "I8", f"the run has ended as {row.state}, but its epoch has no terminal event"


def _places(row: RunRow, place: Place) -> Iterator[tuple[str, str]]:
    leased, queue, waits = place
    if row.ended:
        if leased:
            yield "I5", f"the run has ended as {row.state} and still holds a lease"
        if queue is not None:
            yield "I5", f"the run has ended as {row.state} and is still queued"
        return
    if leased and queue is not None and queue.status != capacity.RESERVED:
        yield "I6", "the run has a lease and a place in the queue"
    if (leased or queue is not None) and waits:
        holder = "executes" if leased else "is queued"
        yield "I6", f"the run {holder} and has {len(waits)} open waits"
    if row.state in runs.SUSPENDED and not waits:
        yield "I9", f"the run is {row.state} and waits for nothing"
    elif row.state != runs.PAUSED and not leased and queue is None and not waits:
        yield "I9", f"the run is {row.state} with neither lease, place in the queue nor open wait"


def _ceilings(row: RunRow, ceiling: int) -> Iterator[tuple[str, str]]:
    # The loss that went over a ceiling is counted and ends the run; a reopened run has one more for
    # each epoch.
    over = 1 if row.ended else 0
    if row.consecutive_recoveries > ceiling + over:
        yield "I7", f"recovered {row.consecutive_recoveries} times in a row; {ceiling} are allowed"
    most = row.max_recoveries
    if most is not None and row.lease_recoveries > most + row.epoch - 1 + over:
        yield "I7", f"recovered {row.lease_recoveries} times; its workflow allows {most}"


async def _family(store: Store, row: RunRow) -> list[Finding]:
    if row.parent_run_id is None and row.root_run_id == row.run_id:
        return []
    found = []
    if row.parent_run_id is not None and await store.run(row.parent_run_id) is None:
        found.append(Finding("I10", row.run_id, f"its parent {row.parent_run_id} does not exist"))
    root = await store.run(row.root_run_id)
    if root is None:
        found.append(Finding("I10", row.run_id, f"its root {row.root_run_id} does not exist"))
    elif root.ended and not row.ended:
        found.append(Finding("I10", row.run_id, f"it lives, and its root {root.run_id} has ended as {root.state}"))
    return found


# ---- what belongs to no run ----------------------------------------------------------------------------


async def _lanes(store: Store) -> list[Finding]:
    """Lanes over their limit. Looked at twice: a claim between two counts is not a breach."""
    over = {lane["lane"] for lane in await store.lanes() if _use(lane) > (lane["lane_limit"] or _ALL)}
    if not over:
        return []
    return [
        Finding("I5", None, f"lane {lane['lane']} has {_use(lane)} runs; its limit is {lane['lane_limit']}")
        for lane in await store.lanes()
        if lane["lane"] in over and _use(lane) > (lane["lane_limit"] or _ALL)
    ]


def _use(lane: dict[str, object]) -> int:
    return int(str(lane["executing"])) + int(str(lane["reserved"]))
