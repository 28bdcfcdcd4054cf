"""The forms of requests: what is checked on the way in, and what the OpenAPI document says of it.

They are strict: a field too many, or text where a number belongs, is refused, because a slip in an option's name must
not mean going without it. The forms of answers are in `shown`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from ironflow.model import ids, moment, scope
from ironflow.model import journal as j
from ironflow.model import key as kinds
from ironflow.model import run as runs
from ironflow.model.capacity import LARGEST_LIMIT
from ironflow.server import paging
from ironflow.server.keys import MOST_WORKFLOWS

#: Rows on a page unless the caller says otherwise, and at most.
PAGE, LARGEST_PAGE = 50, 500

Name = Annotated[str, Field(min_length=1, max_length=ids.LONGEST_NAME)]
Tag = Annotated[str, Field(pattern=f"^{ids.TAG_FORM}$")]


def _whole(value: Any) -> Any:
    """JSON knows one kind of number: one without a fraction is whole, however it is written."""
    return int(value) if type(value) is float and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


def _written(value: Any) -> Any:
    """Only a time as people write it: pydantic would read `5` as five seconds of 1970."""
    if not isinstance(value, str) or not re.match(r"\d{4}-\d\d-\d\d[T ]", value, re.ASCII):
        raise ValueError("not a time such as 2026-12-01T08:00:00Z")
    return value


def _shown(at: datetime) -> datetime:
    """Only a time that lists can show afterwards: a zone's offset may carry it beyond the calendar."""
    if not moment.EARLIEST_MS <= moment.ms_of(at) <= moment.LATEST_MS:
        raise ValueError("outside the years 1 to 9999 in UTC")
    return at


#: JSON has no times, so a time is text here, also in strict mode.
Moment = Annotated[
    AwareDatetime,
    Field(strict=False, description="ISO 8601 with a time zone."),
    BeforeValidator(_written),
    AfterValidator(_shown),
]
_SCOPE = Annotated[str, Field(pattern=f"^{scope.FORM}$")]


class Request(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)


# ---- requests


class RunStart(Request):
    """A run to create."""

    workflow: Name = Field(description="The name of a workflow that a worker has registered.")
    input: Any = Field(None, description="Its input: any JSON; what fits, `GET /workflows/{name}/input-schema` says.")
    input_form: Literal["json", "stored"] = Field(
        "json",
        description="`json`: the input is what the schema of the workflow says. `stored`: it is in the stored form "
        "(*Values*, at the top of this document), put into it by a client that has the code.",
    )
    lane_key: Annotated[str, Field(max_length=ids.LONGEST_NAME)] | None = Field(
        None,
        description="Which of the workflow's lanes the input belongs to, where that depends on it (its definition says "
        "so by `keyed_limit`).",
    )
    id: Name | None = Field(
        None,
        description="The run's id; starting an id again gives the run that has it. None of its parts between slashes "
        "is `.` or `..`, and the last of several is none of the words that stand behind an id in this API.",
    )
    idempotency_key: Name | None = Field(
        None,
        description="The same key and input give the same run, for as long as it is kept and whatever else is asked. "
        "The header Idempotency-Key means the same; two that differ are refused.",
    )
    concurrency_key: Name | None = Field(None, description="Refused while a live run holds it.")
    # Its bounds are the engine's to check, whose refusal has a code of its own.
    priority: Whole | None = Field(
        None,
        description="−100 to 100, higher first; the workflow's own if left out.",
        json_schema_extra={"anyOf": [{"type": "integer", "minimum": -100, "maximum": 100}, {"type": "null"}]},
    )
    labels: dict[Name, Annotated[str, Field(max_length=ids.LONGEST_LABEL)]] = Field(
        {}, max_length=ids.MOST_LABELS, description="Shown in lists, and selected by there."
    )
    worker_tags: list[Tag] = Field(
        [], max_length=ids.MOST_TAGS, description="What a worker must carry besides the workflow's own tags."
    )
    concurrency_limits: dict[Name, Annotated[Whole, Field(ge=1, le=LARGEST_LIMIT)]] = Field(
        {},
        max_length=ids.MOST_GROUPS,
        description="At most so many runs of each of these groups execute at once.",
    )
    scheduled_at: Moment | None = Field(None, description="Not before this time: ISO 8601 with a time zone.")
    deadline_at: Moment | None = Field(None, description="It fails if it has not ended by then.")


#: Starts in one request. More gain nothing: the commit that they share is bounded, too.
MOST_STARTS = 500


class RunStarts(Request):
    """Runs to create, each for itself. The keys of idempotency stand in the starts."""

    runs: list[RunStart] = Field(min_length=1, max_length=MOST_STARTS, description="The starts.")


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

    name: Name = Field(description="What people call it.")
    kind: Literal[kinds.KINDS] = Field(  # type: ignore[valid-type]
        kinds.ORG,
        description="`org` for people and programs, `platform` for who runs the cluster, `worker` for workers.",
    )
    role: Literal[kinds.ROLES] | None = Field(  # type: ignore[valid-type]
        None, description="Of an `org` key, and only of one."
    )
    org: _SCOPE | None = Field(None, description="Whose it is; the caller's own if left out.")
    environment: _SCOPE | None = Field(None, description="Of which environment; the caller's own if left out.")
    workflows: list[Name] | None = Field(
        None, min_length=1, max_length=MOST_WORKFLOWS, description="What a `worker` key is bound to; any if left out."
    )
    expires_at: Moment | None = Field(None, description="When it ends by itself: ISO 8601 with a time zone.")


class PageQuery(BaseModel):
    """Which page of a list."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(PAGE, ge=1, le=LARGEST_PAGE, description="Rows on the page, at most.")
    cursor: Annotated[str, Field(max_length=paging.LONGEST)] | None = Field(
        None, description="What the page before answered as `next`."
    )


class RunsQuery(PageQuery):
    """Which runs."""

    state: list[Literal[tuple(runs.TRANSITIONS)]] = Field([], description="Only runs in one of these states.")  # type: ignore[valid-type]
    workflow: Name | None = Field(None, description="Only runs of this workflow.")
    label: str | None = Field(
        None,
        pattern="^[^=]+=",
        max_length=ids.LONGEST_NAME + 1 + ids.LONGEST_LABEL,
        description="Only runs with this label: `key=value`.",
    )
    priority: int | None = Field(None, ge=-100, le=100, description="Only runs of this priority.")
    worker_tag: Tag | None = Field(None, description="Only runs that ask this tag of a worker.")
    reason: Name | None = Field(None, description="The code of why it is paused, or has failed.")
    created_from: Moment | None = Field(None, description="Not created before: ISO 8601 with a time zone.")
    created_to: Moment | None = Field(None, description="Created before: ISO 8601 with a time zone.")


class JournalQuery(PageQuery):
    """Which events."""

    after: int = Field(0, ge=0, lt=1 << 53, description="Only events with a higher seq.")


class EventsQuery(BaseModel):
    """Where a stream begins, and what it brings."""

    model_config = ConfigDict(extra="forbid")

    after: int | None = Field(None, ge=0, lt=1 << 53, description="The last seq that is known already.")
    kind: list[Literal[tuple(j.KINDS)]] = Field([], description="Only these, and what ends the run; all if left out.")  # type: ignore[valid-type]


class AuditQuery(PageQuery):
    """Which entries."""

    run_id: Name | None = Field(None, description="Only entries about this run.")


def ms(at: datetime | None) -> int | None:
    """A time in milliseconds since 1970."""
    if at is None:
        return None
    return moment.ms_of(at)
