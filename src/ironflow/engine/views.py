"""What programs read of runs, workers and workflows: rows and journals as plain JSON data.

Owns the names and forms of that data. Promises that the command line's `--json`, the HTTP API and the client show one
thing in one form, because all of them call these functions. Field names follow the columns; a time is there twice,
`x_at_ms` for arithmetic and `x_at` for reading. Hashes of tokens and keys are left out: they help nobody, and what is
never printed is never pasted into a ticket.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Protocol

from ironflow.engine.why import paused
from ironflow.model import moment
from ironflow.model import run as runs
from ironflow.model.capacity import SessionRow
from ironflow.model.fold import StepView
from ironflow.model.ids import Route, split_route, split_routes, split_tags
from ironflow.model.journal import Event
from ironflow.model.routing import takes
from ironflow.model.run import RunRow

#: Columns that are never shown.
SECRET = frozenset({"lease_token_hash", "token_hash", "reservation_token", "key_hash"})
#: Columns that hold JSON as text, and are shown as what it says.
JSON_TEXT = frozenset({"labels", "limits", "serves", "workflows", "definition"})
_TIMES = frozenset({"reserved_until", "suspect_since", "until", "at"})


def is_time(name: str) -> bool:
    """Whether a column of this name holds a time in milliseconds since 1970."""
    return name.endswith("_at") or name in _TIMES


def iso(ms: int | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond. Any number has one: see `model.moment`."""
    return None if ms is None else moment.iso(ms)


def plain(row: Any) -> dict[str, Any]:
    """A row (of the model, or a dictionary of a list) as JSON data."""
    # Not asdict: it copies what is inside, and a result of a step may be large.
    if not is_dataclass(row):
        return {shown: show(row[name]) if show else row[name] for name, shown, show in _forms_of(row)}
    kind: Any = type(row)
    return {shown: show(getattr(row, name)) if show else getattr(row, name) for name, shown, show in _forms(kind)}


#: A column, the name it is shown under, and what makes of its value what is shown; None leaves it as it is.
_Form = tuple[str, str, Callable[[Any], Any] | None]


@lru_cache(maxsize=64)
def _forms(row: Any) -> tuple[_Form, ...]:
    return _forms_of([one.name for one in fields(row)])


def _forms_of(names: Iterable[str]) -> tuple[_Form, ...]:
    found: list[_Form] = []
    for name in names:
        if name in SECRET:
            continue
        if is_time(name):
            found += [(name, f"{name}_ms", None), (name, name, iso)]
        else:
            found.append((name, name, _TAKEN_APART.get(name)))
    return tuple(found)


def _read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def route(text: str) -> dict[str, Any]:
    """A routing class, taken apart: inside, its parts are joined by characters that nobody can read."""
    found: Route = split_route(text)
    return {
        "workflow": found.workflow,
        "version": found.version,
        "tags": sorted(found.tags),
        "org": found.scope.org,
        "environment": found.scope.environment,
    }


def _routes(text: str) -> list[dict[str, Any]]:
    return [route(one) for one in split_routes(text)]


#: Columns that are kept in a form which only the engine reads, and what makes of each what is shown.
_TAKEN_APART: dict[str, Callable[[Any], Any]] = {"route": route, "routes": _routes}
_TAKEN_APART |= dict.fromkeys(JSON_TEXT, _read)


def step(view: StepView) -> dict[str, Any]:
    """A step with its tries."""
    return {**plain(view), "tries": [plain(one) for one in view.tries]}


def event(found: Event) -> dict[str, Any]:
    """A journal event; values of the user stay in their stored form. What cannot be read is shown as that."""
    return {
        "seq": found.seq,
        "kind": found.kind,
        "step_id": found.step_id,
        "execution_seq": found.execution_seq,
        "at_ms": found.at,
        "at": iso(found.at),
        "payload": found.told(),
    }


class Told(Protocol):
    """What a journal tells of its run: a `Folded`, or what was made of one."""

    input: Any
    output: Any
    error: dict[str, Any] | None
    undo_errors: dict[str, dict[str, Any]]
    hold: dict[str, Any] | None
    steps: dict[str, StepView]


def run(row: RunRow, view: Told) -> dict[str, Any]:
    """A run whole: its row, what its journal says of its values, and its steps."""
    values = {"input": view.input, "output": view.output, "error": view.error}
    values |= {"undo_errors": view.undo_errors, "hold": None}
    if view.hold is not None:
        values["hold"] = plain(paused(view.hold, row.run_id))
    return {**plain(row), **values, "steps": [step(one) for one in view.steps.values()]}


def created(row: RunRow, *, new: bool) -> dict[str, Any]:
    """The answer to a start: the run, and whether it is a new one or the one that the id or key already had."""
    return {**plain(row), "created": new}


def worker_routing(row: RunRow, sessions: Iterable[SessionRow], now: int) -> dict[str, Any] | None:
    """Which of the workers seen lately could take a queued run; None for one that is in no queue."""
    if row.state not in runs.QUEUED:
        return None
    live = [one for one in sessions if one.scope == row.scope and one.expires_at > now and not one.draining]
    able = [one for one in live if takes(one, row.run_id, row.route)]
    return {
        "required_tags": sorted(split_route(row.route).tags),
        "workers_seen": len(live),
        "workers_eligible": len(able),
        "slots_free": slots(able)["free"],
    }


def steered(run_id: str, state: str | None, *, changed: bool) -> dict[str, Any]:
    """The answer to cancel, pause, resume and retry."""
    return {"run_id": run_id, "changed": changed, "state": state}


def workflow(row: Mapping[str, Any]) -> dict[str, Any]:
    """A workflow as a worker has registered it."""
    return plain({**row, "worker_tags": split_tags(row["worker_tags"])})


def switched(name: str, paused_at: int | None, *, changed: bool) -> dict[str, Any]:
    """The answer to pausing and resuming a workflow."""
    return {"workflow": name, "changed": changed, **plain({"paused_at": paused_at})}


def slots(sessions: Sequence[SessionRow]) -> dict[str, int]:
    """How many places the live workers have, and how many of them are free."""
    return {"total": sum(one.slots for one in sessions), "free": sum(one.credits for one in sessions)}


def stats(counts: Mapping[str, int], sessions: Sequence[SessionRow], leases: int, due: int | None) -> dict[str, Any]:
    """Runs by state, places, leases, queued segments and the next due time."""
    waiting = counts.get(runs.PENDING, 0) + counts.get(runs.RETRYING, 0)
    found = {state: counts.get(state, 0) for state in runs.TRANSITIONS}
    facts = {"runs": found, "workers": len(sessions), "slots": slots(sessions), "leases": leases, "queued": waiting}
    return {**facts, **plain({"next_due_at": due})}
