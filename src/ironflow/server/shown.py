"""The forms of answers, as the OpenAPI document has them. What each field means is said in `meanings`.

They are made from the rows of the model by the rule of `engine.views`, so that the document cannot say otherwise than
the server does; that it does not is tested. Nothing is checked by them: the server does not read its own answers.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any, Literal, cast, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model

from ironflow.engine import views
from ironflow.engine.why import Hold as HoldRow
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, SessionRow
from ironflow.model.capacity import QueueRow as QueuedRow
from ironflow.model.fold import StepView
from ironflow.model.fold import Try as TryRow
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.server.meanings import VALUES, meaning_of


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Loose(BaseModel):
    """What is stored in a form of its own, which may have more fields, or fewer."""

    model_config = ConfigDict(extra="allow")


def _form(name: str, doc: str, base: type[BaseModel] = _Answer, /, **hints: Any) -> type[BaseModel]:
    """A form with these fields; a time in milliseconds is there twice, as `views` shows it."""
    found: dict[str, Any] = {}
    for field, hint in hints.items():
        meaning = meaning_of(name, field)
        if (values := VALUES.get((name, field))) is not None:
            hint = cast(Any, Literal)[values] | (None if type(None) in get_args(hint) else cast(Any, Literal)[values])
        if views.is_time(field):
            same = f"The same as `{field}`, in milliseconds since 1970."
            found[f"{field}_ms"] = (hint, _field(base, same))
            hint = datetime if hint is int else datetime | None
        found[field] = (hint, _field(base, meaning))
    made: type[BaseModel] = create_model(name, __base__=base, __doc__=doc, **found)
    return made


def _field(base: type[BaseModel], meaning: str) -> Any:
    if base is _Loose:  # may be missing; a factory and no default, which the document would show as a value
        return Field(default_factory=lambda: None, description=meaning)
    return Field(description=meaning)


def _row(name: str, row: type[Any], doc: str, **other: Any) -> type[BaseModel]:
    """The form that `views.plain` gives a row; `other`: the hints of columns that hold JSON or other forms."""
    assert is_dataclass(row)
    known = get_type_hints(row)
    hints = {one.name: other.pop(one.name, known[one.name]) for one in fields(row) if one.name not in views.SECRET}
    return _form(name, doc, **hints, **other)


def page_of(item: Any) -> type[BaseModel]:
    """The form of a page of these."""
    made: type[BaseModel] = create_model(
        f"{item.__name__}Page",
        __doc__="A page of a list.",
        items=(list[item], Field(description="The rows of this page.")),
        next=(str | None, Field(description="Pass it on as `cursor` for the page behind this one; null on the last.")),
    )
    return made


# ---- refusals

Problem = _form(
    "Problem", "A refusal: problem details (RFC 9457).",
    type=str, title=str, status=int, code=str, detail=str, hint=str | None, details=dict[str, Any],
)  # fmt: skip

# ---- runs

Route = _form(
    "Route", "What a worker must have to take a run.", workflow=str, version=str, tags=list[str], org=str,
    environment=str,
)  # fmt: skip
Failure = _form(
    "Failure", "An error as journals hold it. It may have more fields than these.", _Loose,
    type=str, message=str, code=str, step_id=str, traceback=str, notes=list[str], cause=dict[str, Any],
    context=dict[str, Any], errors=list[dict[str, Any]],
)  # fmt: skip
Try = _row("Try", TryRow, "One try of a step's body.", error=Failure | None)
Step = _row("Step", StepView, "A step: its state, and every try it took.", tries=list[Try], error=Failure | None)  # type: ignore[valid-type]
Hold = _row("Hold", HoldRow, "One reason why a run does not move.")
Run = _row(
    "Run", RunRow, "A run as lists show it.", route=Route, labels=dict[str, str] | None, limits=dict[str, int] | None
)  # fmt: skip
RunCreated = _form("RunCreated", "A run, and whether it is a new one.", Run, created=bool)
StartOutcome = _form(
    "StartOutcome", "What became of one start of many.", status=int, run=RunCreated | None, problem=Problem | None
)
RunsCreated = _form("RunsCreated", "What became of many starts.", items=list[StartOutcome])  # type: ignore[valid-type]
WorkerRouting = _form(
    "WorkerRouting", "Which workers could take a queued run: those seen lately, and why not more of them.",
    required_tags=list[str], workers_seen=int, workers_eligible=int, slots_free=int,
)  # fmt: skip
RunWhole = _form(
    "RunWhole",
    "A run with what its journal says: values, steps, and where it could execute while it is queued.",
    Run,
    input=Any,
    output=Any,
    error=Failure | None,
    undo_errors=dict[str, Failure],  # type: ignore[valid-type]
    hold=Hold | None,
    steps=list[Step],  # type: ignore[valid-type]
    worker_routing=WorkerRouting | None,
)
Event = _form(
    "Event", "An event of a journal.",
    seq=int, kind=str, step_id=str | None, execution_seq=int, at=int, payload=dict[str, Any],
)  # fmt: skip
Steered = _form("Steered", "What became of a command.", run_id=str, changed=bool, state=str | None)

# ---- workflows

LaneLimit = _form("LaneLimit", "A lane and its limit.", name=str, limit=int)
Definition = _form(
    "Definition", "What the code of a workflow says of itself. Older workers say less of it.", _Loose,
    priority=int, timeout_ms=int | None, max_recoveries=int | None, lanes=list[LaneLimit] | None,  # type: ignore[valid-type]
    keyed_limit=int | None, input_schema=dict[str, Any] | None, input_default=Any, doc=str | None,
    compatible=list[str],
)  # fmt: skip
Workflow = _form(
    "Workflow", "A workflow as a worker has registered it.",
    name=str, version=str, worker_tags=list[str], definition=Definition | None, first_seen_at=int, seen_at=int,
    paused_at=int | None,
)  # fmt: skip
Switched = _form(
    "Switched", "What became of pausing or resuming a workflow.", workflow=str, changed=bool, paused_at=int | None
)

# ---- capacity

ServedWorkflow = _form("ServedWorkflow", "A workflow as a worker has it.", versions=list[str], tags=list[str])
Serving = _form("Serving", "What a worker serves.", tags=list[str], workflows=dict[str, ServedWorkflow])  # type: ignore[valid-type]
Lease = _row("Lease", LeaseRow, "The right to execute a run.")
Session = _row("Session", SessionRow, "A live worker process.", routes=list[Route], serves=Serving | None)  # type: ignore[valid-type]
QueueRow = _row("QueueRow", QueuedRow, "A segment that may be handed out.", route=Route)
Lane = _form("Lane", "A lane in use.", lane=str, lane_limit=int, executing=int, reserved=int, blocked=int)
Credit = _form(
    "Credit", "The free slots of a worker.",
    session_id=str, worker_id=str, org=str, environment=str, slots=int, credits=int,
)  # fmt: skip
Slots = _form("Slots", "Slots of all workers.", total=int, free=int)
Stats = _form(
    "Stats", "Everything counted.",
    runs=dict[cast(Any, Literal)[tuple(runs.TRANSITIONS)], int], workers=int, slots=Slots, leases=int, queued=int,  # type: ignore[misc]
    next_due_at=int | None,
)  # fmt: skip

# ---- audit, keys

Audit = _form(
    "Audit", "Who did what, and what recovery did by itself.",
    audit_id=str, org=str, environment=str, at=int, action=str, actor=str, run_id=str | None, fields=dict[str, Any],
)  # fmt: skip
Key = _row("Key", KeyRow, "An API key, without its secret.", workflows=list[str] | None)
KeyCreated = _form("KeyCreated", "A key, and this once its secret.", Key, key=str)
