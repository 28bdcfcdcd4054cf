"""The forms of requests and answers: what is checked on the way in, and what the OpenAPI document says of both.

Requests are strict: a field too many, or text where a number belongs, is refused, because a slip in an option's name
must not mean going without it. The forms of answers are made from the rows of the model by the rule of `engine.views`,
so that the document cannot say otherwise than the server does; that it does not is tested.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from ironflow.engine import views
from ironflow.engine.why import Hold
from ironflow.model import ids, scope
from ironflow.model import journal as j
from ironflow.model import key as kinds
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
from ironflow.model.fold import StepView, Try
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.server import paging
from ironflow.server.keys import MOST_WORKFLOWS

#: Rows on a page unless the caller says otherwise, and at most.
PAGE, LARGEST_PAGE = 50, 500

Name = Annotated[str, Field(min_length=1, max_length=ids.LONGEST_NAME)]
Tag = Annotated[str, Field(pattern=f"^{ids.TAG_FORM}$")]


def _written(value: Any) -> Any:
    """Only a time as people write it: pydantic would read `5` as five seconds of 1970."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d[T ]", value, re.ASCII):
        raise ValueError("not a time such as 2026-12-01T08:00:00Z")
    return value


#: JSON has no times, so a time is text here, also in strict mode.
Moment = Annotated[
    AwareDatetime, Field(strict=False, description="ISO 8601 with a time zone."), BeforeValidator(_written)
]
_SCOPE = Annotated[str, Field(pattern=f"^{scope.FORM}$")]


class Request(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


# ---- requests


class RunStart(Request):
    """A run to create."""

    workflow: Name
    input: Any = None
    input_form: Literal["json", "stored"] = Field(
        "json", description="`stored`: the input is encoded as journals hold it, by a client that has the code."
    )
    lane_key: Annotated[str, Field(max_length=ids.LONGEST_NAME)] | None = Field(
        None, description="Which of the workflow's lanes the input belongs to, where that depends on it."
    )
    id: Name | None = Field(None, description="The run's id; starting an id again gives the run that has it.")
    idempotency_key: Name | None = Field(
        None,
        description="The same key and input give the same run, for as long as it is kept and whatever else is asked. "
        "The header Idempotency-Key means the same; two that differ are refused.",
    )
    concurrency_key: Name | None = Field(None, description="Refused while a live run holds it.")
    # Its bounds are the engine's to check, whose refusal has a code of its own.
    priority: int | None = Field(
        None,
        description="−100 to 100, higher first; the workflow's own if left out.",
        json_schema_extra={"anyOf": [{"type": "integer", "minimum": -100, "maximum": 100}, {"type": "null"}]},
    )
    labels: dict[Name, Annotated[str, Field(max_length=ids.LONGEST_LABEL)]] = Field({}, max_length=ids.MOST_LABELS)
    worker_tags: list[Tag] = Field(
        [], max_length=ids.MOST_TAGS, description="What a worker must carry besides the workflow's own tags."
    )
    concurrency_limits: dict[Name, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(
        {}, max_length=32, description="At most so many runs of each of these groups execute at once."
    )
    scheduled_at: Moment | None = Field(None, description="Not before this time: ISO 8601 with a time zone.")
    deadline_at: Moment | None = Field(None, description="It fails if it has not ended by then.")


class Cancel(Request):
    """How to cancel."""

    force: bool = Field(False, description="Skip the compensations.")


class Retry(Request):
    """How to open a run again."""

    restart: bool = Field(False, description="Execute every step again.")


class Nothing(Request):
    """No options."""


class KeyCreate(Request):
    """A key to make. `org` and `environment` are a platform key's to choose; others make keys for their own."""

    name: Name
    kind: Literal[kinds.ORG, kinds.PLATFORM, kinds.WORKER] = kinds.ORG  # type: ignore[valid-type]
    role: Literal[kinds.ROLES] | None = Field(  # type: ignore[valid-type]
        None, description="Of an `org` key, and only of one."
    )
    org: _SCOPE | None = None
    environment: _SCOPE | None = None
    workflows: list[Name] | None = Field(
        None, min_length=1, max_length=MOST_WORKFLOWS, description="What a `worker` key is bound to; any if left out."
    )
    expires_at: Moment | None = None


class PageQuery(BaseModel):
    """Which page of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(PAGE, ge=1, le=LARGEST_PAGE)
    cursor: Annotated[str, Field(max_length=paging.LONGEST)] | None = Field(
        None, description="What the page before answered as `next`."
    )


class RunsQuery(PageQuery):
    """Which runs."""

    state: list[Literal[tuple(runs.TRANSITIONS)]] = Field([], description="Only runs in one of these states.")  # type: ignore[valid-type]
    workflow: Name | None = None
    label: str | None = Field(None, pattern="^[^=]+=", max_length=1_201, description="`key=value`")
    priority: int | None = Field(None, ge=-100, le=100)
    worker_tag: Tag | None = Field(None, description="Only runs that ask this tag of a worker.")
    reason: Name | None = Field(None, description="The code of why it is paused, or has failed.")
    created_from: Moment | None = Field(None, description="Not created before: ISO 8601 with a time zone.")
    created_to: Moment | None = Field(None, description="Created before: ISO 8601 with a time zone.")


class JournalQuery(PageQuery):
    """Which events."""

    after: int = Field(0, ge=0, lt=1 << 53, description="Only events with a higher seq.")


class EventsQuery(BaseModel):
    """Where a stream begins."""

    model_config = ConfigDict(extra="forbid")

    after: int | None = Field(None, ge=0, lt=1 << 53, description="The last seq that is known already.")


class AuditQuery(PageQuery):
    """Which entries."""

    run_id: Name | None = None


def ms(at: datetime | None) -> int | None:
    """A time in milliseconds since 1970."""
    if at is None:
        return None
    # Not timestamp(): the years at the ends of the calendar have none.
    since = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000 + since.microseconds // 1_000


# ---- answers


def _shape(name: str, row: type[Any], doc: str, **more: Any) -> type[BaseModel]:
    """The form that `views.plain` gives a row."""
    assert is_dataclass(row)
    hints, found = get_type_hints(row), {}
    for one in fields(row):
        if one.name in views.SECRET:
            continue
        hint = hints[one.name]
        if views.is_time(one.name):
            found[f"{one.name}_ms"], found[one.name] = (hint, ...), (str | None if hint == int | None else str, ...)
        else:
            found[one.name] = (Any if one.name in views.JSON_TEXT else hint, ...)
    found |= {key: (hint, ...) for key, hint in more.items()}
    made: type[BaseModel] = create_model(name, __config__=ConfigDict(extra="forbid"), __doc__=doc, **found)  # type: ignore[call-overload]
    return made


def page_of(item: Any) -> type[BaseModel]:
    """The form of a page of these."""
    made: type[BaseModel] = create_model(
        f"{item.__name__}Page",
        __doc__="A page of a list; `next` is null on the last one.",
        items=(list[item], ...),
        next=(str | None, ...),
    )
    return made


_Error = dict[str, Any] | None

TryOut = _shape("Try", Try, "One try of a step's body.")
StepOut = _shape("Step", StepView, "A step: its state, and every try it took.")
StepOut = create_model("Step", __base__=StepOut, tries=(list[TryOut], ...))  # type: ignore[valid-type]
RunOut = _shape("Run", RunRow, "A run as lists show it.")
CreatedOut = create_model(
    "RunCreated", __base__=RunOut, created=(bool, Field(description="False if the run existed already."))
)


class WorkerRouting(BaseModel):
    """Which workers could take a queued run: those seen lately, and why not more of them."""

    required_tags: list[str]
    workers_seen: int
    workers_eligible: int
    slots_free: int = Field(description="Free places of the eligible ones.")


RunWhole = create_model(
    "RunWhole",
    __base__=RunOut,
    __doc__="A run with what its journal says: values, steps, and where it could execute while it is queued.",
    input=(Any, ...),
    output=(Any, ...),
    error=(_Error, ...),
    undo_errors=(dict[str, Any], ...),
    hold=(_Error, ...),
    steps=(list[StepOut], ...),
    worker_routing=(WorkerRouting | None, ...),
)
HoldOut = _shape("Hold", Hold, "One reason why a run does not move.")
LeaseOut = _shape("Lease", LeaseRow, "The right to execute a run.")
SessionOut = _shape("Session", SessionRow, "A live worker process.")
QueueOut = _shape("QueueRow", QueueRow, "A segment that may be handed out.")
KeyOut = _shape("Key", KeyRow, "An API key, without its secret.")
KeyCreated = create_model(
    "KeyCreated", __base__=KeyOut, key=(str, Field(description="The key itself. It is shown only here."))
)


class EventOut(BaseModel):
    """An event of a journal."""

    seq: int
    kind: Literal[tuple(j.KINDS)]  # type: ignore[valid-type]
    step_id: str | None
    execution_seq: int
    at_ms: int
    at: str
    payload: dict[str, Any]


class Steered(BaseModel):
    """What became of a command."""

    run_id: str
    changed: bool = Field(description="False if the run was already as the command would have it.")
    state: str | None = Field(description="The run's state now; null if it was deleted meanwhile.")


class WorkflowOut(BaseModel):
    """A workflow as a worker has registered it."""

    name: str
    version: str
    worker_tags: list[str]
    definition: dict[str, Any] | None
    first_seen_at_ms: int
    first_seen_at: str
    seen_at_ms: int
    seen_at: str
    paused_at_ms: int | None
    paused_at: str | None


class Switched(BaseModel):
    """What became of pausing or resuming a workflow."""

    workflow: str
    changed: bool
    paused_at_ms: int | None
    paused_at: str | None


class Lane(BaseModel):
    """A lane in use."""

    lane: str
    lane_limit: int
    executing: int
    reserved: int
    blocked: int


class Credit(BaseModel):
    """The free places of a worker."""

    session_id: str
    worker_id: str
    org: str
    environment: str
    slots: int
    credits: int


class Slots(BaseModel):
    """Places of all workers."""

    total: int
    free: int


class Stats(BaseModel):
    """Everything counted."""

    runs: dict[str, int]
    workers: int
    slots: Slots
    leases: int
    queued: int
    next_due_at_ms: int | None
    next_due_at: str | None


class AuditOut(BaseModel):
    """Who did what, and what recovery did by itself."""

    audit_id: str
    org: str
    environment: str
    at_ms: int
    at: str
    action: str
    actor: str
    run_id: str | None
    fields: dict[str, Any]


class Problem(BaseModel):
    """RFC 9457 problem details. `code` is stable; `hint` says what to do."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    hint: str | None
    details: dict[str, Any]
