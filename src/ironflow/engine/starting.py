"""Starting a run: what may be asked of it, its one row, and whom a refused start has met.

A start says what must be true of its run in that row; a key that is taken is answered from the run that holds it.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from typing import Any, TypedDict

from ironflow.codec import unordered
from ironflow.codec.arguments import digest
from ironflow.codec.values import encode_any
from ironflow.engine.declared import Declared
from ironflow.engine.definitions import PRIORITIES, WorkflowSpec, unfit
from ironflow.engine.registry import default_route
from ironflow.errors import (
    ConcurrencyConflict,
    IdempotencyKeyConflict,
    InvalidInput,
    InvalidPriority,
    PayloadError,
    RunNotFound,
)
from ironflow.model import ids, moment
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import LARGEST_LIMIT, QueueRow
from ironflow.model.ids import tags_of
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import EXISTS, GUARD_FRESH, LOST, Transition
from ironflow.spelling import meant
from ironflow.store.base import Store

#: How often a start is tried whose key was held at one moment and free at the next.
_TRIES = 10

#: Of a caller who shares its loop with nobody.
_AT_ONCE: AbstractAsyncContextManager[object] = nullcontext()

_next_id = ids.InOrder(secrets.randbits)


class Start(TypedDict, total=False):
    """How a run is to be started; every option may be left out.

    Every text of these is printable; ids, keys and names of groups have 1 to 200 characters.

    id: the run's id; starting an id again gives the run that has it. None of its parts between slashes is `.` or `..`,
        and the last of several is no word of the API such as `steps`: its own address would not lead to it.
    idempotency_key: the same key and input give the same run.
    concurrency_key: refused while a live run holds it.
    priority: −100…100, higher first; the workflow's own if left out.
    labels: shown, and selected by, in lists; at most 64, with values of up to 1,000 characters.
    worker_tags: tags a worker must carry, added to the workflow's own (1–64 of ASCII letters, digits, - _ . : / =).
    limits: at most so many runs of these groups execute at once.
    at: not before this time (aware).
    deadline: the run fails if it has not ended by then (aware).
    """

    id: str | None
    idempotency_key: str | None
    concurrency_key: str | None
    priority: int | None
    labels: Mapping[str, str]
    worker_tags: Sequence[str]
    limits: Mapping[str, int]
    at: datetime | None
    deadline: datetime | None


def new_run(
    spec: WorkflowSpec | Declared, value: Any, options: Start, now: int, limit: int, scope: Scope = DEFAULT
) -> tuple[RunRow, str, list[tuple[str, int]]]:
    """The row of a new run, the payload of its `run_created`, and the lanes it counts in.

    Args:
        spec: the workflow, or what its workers declared of it: then the input is JSON data, and what could never fit is
            refused.
        value: the input.
        options: see `Start`.
        now: database time, milliseconds since 1970.
        limit: the largest input, in bytes.
        scope: whose run it is.

    Raises:
        InvalidInput: the input does not fit the workflow's annotation, an option does not exist, or an id, key, label,
            group or tag is not what `Start` says of it; the message and `details.errors` name the place.
        InvalidPriority: an explicit priority outside −100…100.
    """
    if options:
        _check(options)
    with _At("input"):
        text = _input(spec, value, limit)
        own = spec.lanes(value)
    lanes = _lanes(own, options, scope)
    run_id = options.get("id") or _next_id(now)
    labels = options.get("labels")
    row = RunRow(
        run_id=run_id,
        workflow=spec.name,
        version=spec.version,
        state=runs.PENDING,
        route=_route(spec, options, scope),
        root_run_id=run_id,
        created_at=now,
        org=scope.org,
        environment=scope.environment,
        priority=_priority(spec, options.get("priority")),
        scheduled_at=_ms(options.get("at"), "at"),
        deadline_at=_deadline(spec, options, now),
        max_recoveries=spec.max_recoveries,
        idempotency_key=options.get("idempotency_key"),
        concurrency_key=options.get("concurrency_key"),
        labels=encode_any(dict(labels)) if labels else None,
        limits=encode_any(dict(lanes)) if lanes else None,
        # Only a name that somebody chose can be given twice.
        input_hash=digest(text) if options.get("idempotency_key") or options.get("id") else None,
        python=_PYTHON,
    )
    return row, f'{{"t":{now},"input":{text}}}', lanes


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def queued(row: RunRow, created: str, lanes: Sequence[tuple[str, int]]) -> Transition:
    """The transition that creates a run in the queue."""
    transition = Transition(row.run_id, GUARD_FRESH)
    transition.row = row
    transition.events = [Event(1, j.RUN_CREATED, None, created)]
    transition.lanes = lanes
    transition.enqueue = QueueRow.of(row, row.scheduled_at or row.created_at, 0)
    return transition


#: Begins a new run at once, without the queue, and gives the store's word for it; None where it cannot.
Enter = Callable[[RunRow, str, list[tuple[str, int]]], Awaitable[str | None]]


async def create(
    store: Store,
    spec: WorkflowSpec | Declared,
    value: Any,
    options: Start,
    limit: int,
    scope: Scope = DEFAULT,
    enter: Enter | None = None,
    turn: AbstractAsyncContextManager[object] = _AT_ONCE,
) -> tuple[RunRow, bool]:
    """Create a run: every start goes this way. Whoever takes runs from the queue is the caller's to tell.

    Args:
        enter: asked first, with what `new_run` made: a worker of this process may have a slot for the run.
        turn: entered for each look at the input, which may take long; what is done inside awaits nothing.
        store, spec, value, options, limit, scope: see `new_run`.

    Returns:
        the run, and whether it is new: else it is the one that has the id or the idempotency key already.

    Raises:
        what `new_run` and `taken_by` raise.
    """
    left = _TRIES
    while True:
        async with turn:
            row, created, lanes = new_run(spec, value, options, store.now(), limit, scope)
        word = None if enter is None else await enter(row, created, lanes)
        if word == LOST:  # the workflow is held: the run is created all the same, and waits in the queue
            enter = None
            continue
        if word is None:
            answered = store.submit(queued(row, created, lanes))
            word = answered if isinstance(answered, str) else await answered
        if word != EXISTS:
            return row, True
        left -= 1
        try:
            return await taken_by(store, row, created), False
        except RunNotFound:  # who held the key has ended since it refused this start
            if not left:
                raise


async def taken_by(store: Store, row: RunRow, created: str) -> RunRow:
    """The run that a refused start met: the same run id, or the holder of its key.

    Args:
        row, created: of the start; see `new_run`.

    Raises:
        IdempotencyKeyConflict: the key, or the run's id, was used with another input.
        InvalidInput: the run's id is that of another workflow's run.
        ConcurrencyConflict: a live run holds the concurrency key.
    """
    if row.idempotency_key is not None:
        holder = await store.find_key("idempotency_key", row.idempotency_key, row.workflow, row.scope)
        if holder is not None:
            if not await _same_input(store, holder, row, created):
                raise IdempotencyKeyConflict(
                    f"idempotency key {row.idempotency_key!r} belongs to run {holder.run_id}, with another input",
                    details={"run_id": holder.run_id, "idempotency_key": row.idempotency_key},
                )
            return holder
    same = await store.run(row.run_id)
    if same is not None:
        if same.scope != row.scope:
            raise InvalidInput(f"run id {row.run_id!r} is taken", hint="Choose another id for this one")
        if same.workflow != row.workflow:
            raise InvalidInput(
                f"run id {row.run_id!r} belongs to a run of {same.workflow}", hint="Choose another id for this one"
            )
        if None not in (same.input_hash, row.input_hash) and not await _same_input(store, same, row, created):
            raise IdempotencyKeyConflict(
                f"run id {row.run_id!r} belongs to a run with another input",
                hint="Choose another id for this input, or start it with the input it had",
                details={"run_id": same.run_id},
            )
        return same
    if row.concurrency_key is not None:
        holder = await store.find_key("concurrency_key", row.concurrency_key, None, row.scope)
        if holder is not None:
            raise ConcurrencyConflict(
                f"run {holder.run_id} is live and holds the concurrency key {row.concurrency_key!r}",
                details={"run_id": holder.run_id, "concurrency_key": row.concurrency_key},
            )
    raise RunNotFound(f"the start of {row.workflow} was refused, and what refused it is gone; start it again")


async def _same_input(store: Store, holder: RunRow, row: RunRow, created: str) -> bool:
    """Whether a start has the input of the run that is there. In which order keys are written makes no other input."""
    if holder.input_hash == row.input_hash:
        return True
    kept = await store.journal(holder.run_id, limit=1)
    return bool(kept) and unordered.same(_written_input(kept[0].payload or ""), _written_input(created))


def _written_input(created: str) -> str:
    """The input in the payload of a `run_created`, as `new_run` writes it."""
    return created.partition(',"input":')[2].removesuffix("}")


def _check(options: Start) -> None:
    """Refuse, before anything is written, what no database could store and no list could show; and an option that does
    not exist: a slip (`idempotency_kee=…`) must not mean silently going without.
    """
    for name in options:
        if name not in Start.__annotations__:
            raise InvalidInput(f"a start has no option {name!r}", hint=meant(name, Start.__annotations__))
    for name in ("id", "idempotency_key", "concurrency_key"):
        text = options.get(name)
        if text is not None:
            with _At(name):
                check = ids.check_run_id if name == "id" else ids.check_text
                check(text, name)
    labels = options.get("labels")
    if labels is not None:
        _check_named("labels", labels, ids.MOST_LABELS)
        for key, value in labels.items():
            with _At(f"labels.{key}"):
                ids.check_text(value, f"labels.{key}", ids.LONGEST_LABEL, empty=True)
    limits = options.get("limits")
    if limits is not None:
        _check_named("limits", limits, ids.MOST_GROUPS)


def _check_named(option: str, given: Any, most: int) -> None:
    """Refuse what is no dictionary of texts, or holds too many."""
    with _At(option):
        if not isinstance(given, Mapping):
            raise InvalidInput(f"{option} must be a dictionary, not {type(given).__name__}", hint="")
        if len(given) > most:
            raise InvalidInput(f"{option} has {len(given):,} entries; {most:,} is the most", hint="")
        for key in given:
            ids.check_text(key, f"a key of {option}")


class _At:
    """A refusal of what is checked inside is about this place of what was asked."""

    __slots__ = ("_place",)

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, InvalidInput):
            error.details.setdefault("errors", [{"at": self._place, "problem": error.message}])


def _input(spec: WorkflowSpec | Declared, value: Any, limit: int) -> str:
    if not spec.has_input:
        if value is not None:
            raise InvalidInput(
                f"workflow {spec.name} takes no input, got {type(value).__name__}", hint="Start it without one."
            )
        return "null"
    try:
        if isinstance(spec, Declared):
            return spec.encode_input(value, limit)
        return spec.input.encode(spec.given(value), path="input", limit=limit)
    except PayloadError as error:
        raise unfit(spec.name, error, spec.input if isinstance(spec, WorkflowSpec) else None) from error


def _route(spec: WorkflowSpec | Declared, options: Start, scope: Scope) -> str:
    asked = options.get("worker_tags")
    if not asked:
        return default_route(spec, (), scope)
    with _At("worker_tags"):
        return default_route(spec, tags_of(asked), scope)


def _priority(spec: WorkflowSpec | Declared, asked: int | None) -> int:
    if asked is None:
        return max(PRIORITIES.start, min(PRIORITIES.stop - 1, spec.priority))
    if asked not in PRIORITIES:
        problem = f"priority {asked} is outside −100…100"
        raise InvalidPriority(problem, details={"errors": [{"at": "priority", "problem": problem}]})
    return asked


def _lanes(own: Iterable[tuple[str, int]], options: Start, scope: Scope) -> list[tuple[str, int]]:
    """The lanes of a run: its workflow's own, and the groups that its start names."""
    lanes = dict(own)
    if not lanes and "limits" not in options:
        return []
    for group, limit in (options.get("limits") or {}).items():
        with _At(f"limits.{group}"):
            if type(limit) is not int or not 1 <= limit <= LARGEST_LIMIT:
                raise InvalidInput(f"limits.{group} must be 1 to {LARGEST_LIMIT:,}, not {limit!r}", hint="")
        lanes[f"group:{group}"] = limit
    return sorted((scope.lane(name), limit) for name, limit in lanes.items())


def _deadline(spec: WorkflowSpec | Declared, options: Start, now: int) -> int | None:
    """The earlier one of the start's own and the workflow's."""
    own = None if spec.timeout_ms is None else min(now + spec.timeout_ms, moment.LATEST_MS)
    asked = _ms(options.get("deadline"), "deadline")
    return own if asked is None else asked if own is None else min(asked, own)


def _ms(at: datetime | None, name: str) -> int | None:
    if at is None:
        return None
    with _At(name):
        if not isinstance(at, datetime):
            raise InvalidInput(f"{name} must be a datetime, not {type(at).__name__}", hint="")
        if at.tzinfo is None:
            raise InvalidInput(f"{name} must say its time zone: pass an aware datetime")
        return moment.check_shown(moment.ms_of(at), name)
