"""`/runs`: create, list, look at, steer and delete runs."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Annotated, Any, get_args
from urllib.parse import quote

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.routing import APIRoute
from starlette.responses import Response

from ironflow.engine import commands, starting, views
from ironflow.engine.reading import outlined
from ironflow.engine.starting import Start
from ironflow.engine.why import paused
from ironflow.errors import (
    ConcurrencyConflict,
    IdempotencyKeyConflict,
    InvalidCursor,
    InvalidInput,
    InvalidPriority,
    InvalidRequest,
    InvalidTransition,
    RunNotFound,
    WorkflowUnknown,
)
from ironflow.model.ids import LONGEST_NAME
from ironflow.model.run import QUEUED, RunRow
from ironflow.server import paging, schemas, shown, whole
from ironflow.server.access import Caller, only
from ironflow.server.api.answers import (
    BODY,
    PREFIX,
    Admin,
    Developer,
    NodeHere,
    PlacesHere,
    Viewer,
    errors,
    hold_of,
    page,
    run_of,
)
from ironflow.server.bodies import Json, accepts, body
from ironflow.server.catalogue import Catalogue
from ironflow.server.node import Node
from ironflow.server.schemas import Cancel, Nothing, Retry, RunsQuery, RunStart
from ironflow.store.reader import RunFilter
from ironflow.worker.evidence import living

router = APIRouter(prefix=PREFIX, tags=["runs"])


async def create(
    request: Request,
    node: NodeHere,
    caller: Developer,
    given: Annotated[RunStart, Depends(body(RunStart))],
    idempotency_key: Annotated[
        str | None,
        Header(min_length=1, max_length=LONGEST_NAME, description="In UTF-8; the same as the field of this name."),
    ] = None,
    traceparent: Annotated[str | None, Header(description="W3C: the trace of the run is linked to it")] = None,
) -> Response:
    """Create a run. It is durable when this answers, and executes when a worker takes it."""
    row, new = await begun(request, node, caller, given, idempotency_key, traceparent)
    if not new:
        return Json(views.created(row, new=False))
    return Json(views.created(row, new=True), 201, {"Location": f"{PREFIX}/runs/{quote(row.run_id, safe='')}"})


async def begun(
    request: Request, node: Node, caller: Caller, given: RunStart, key: str | None, traceparent: str | None
) -> tuple[RunRow, bool]:
    """The run that a start asks for, and whether it is new; who waits for runs has been told of it."""
    options = _options(given, key)
    catalogue: Catalogue = request.app.state.catalogue
    turn = node.turns.of(caller.scope.org)
    stored = given.input_form == "stored"
    declared = await catalogue.declared(caller.scope, given.workflow, stored=stored, turn=turn)
    spec = declared if given.lane_key is None else declared.in_lane(given.lane_key)
    limit = node.settings.max_payload_bytes
    try:
        row, new = await starting.create(node.store, spec, given.input, options, limit, caller.scope, turn=turn)
    except InvalidInput as error:
        raise _in_fields(error, given.workflow) from error
    if new:
        node.started(row, traceparent)
        node.touched((row.run_id,))
    return row, new


def _utf8(header: str | None, name: str) -> str | None:
    """The text of a header, in which a key means the same as in a body. It comes as if each byte were a character."""
    if header is None or header.isascii():
        return header
    try:
        return header.encode("latin-1").decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"the header {name} is not in UTF-8", hint="") from None


class _Create(APIRoute):
    """The one route that is asked thousands of times a second by those who are no workers.

    The document says of it what the signature says; a request takes the short way to the same function, since resolving
    its dependencies would cost more than creating the run.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        # Who may create is said once, in the signature.
        caller, given = get_args(Developer)[1].dependency, body(RunStart)

        async def handle(request: Request) -> Response:
            key = _utf8(only(request, "Idempotency-Key"), "Idempotency-Key")
            if key is not None and not 1 <= len(key) <= LONGEST_NAME:
                raise InvalidRequest(f"the header Idempotency-Key must have 1 to {LONGEST_NAME} characters", hint="")
            asked = await caller(request), await given(request)
            return await create(request, request.app.state.node, *asked, key, request.headers.get("traceparent"))

        return handle


router.add_api_route(
    "/runs",
    create,
    methods=["POST"],
    operation_id="createRun",
    status_code=201,
    responses={
        **errors(*BODY, InvalidInput, InvalidPriority, WorkflowUnknown, IdempotencyKeyConflict, ConcurrencyConflict),
        200: {"model": shown.RunCreated, "description": "The run that has this id or idempotency key already."},
        201: {
            "model": shown.RunCreated,
            "description": "A new run, in the queue.",
            "headers": {"Location": {"description": "The path of the run.", "schema": {"type": "string"}}},
        },
    },
    openapi_extra=accepts(RunStart),
    route_class_override=_Create,
)


#: Options of a start that have another name here.
_FIELDS = {"limits": "concurrency_limits", "at": "scheduled_at", "deadline": "deadline_at"}


def _in_fields(error: InvalidInput, workflow: str) -> InvalidInput:
    """The refusal of a start, with the names that its fields have in the body."""
    message, hint, found = error.message, error.hint, []
    for one in error.details.get("errors", ()):
        option, dot, rest = one["at"].partition(".")
        field = _FIELDS.get(option, option)
        problem = re.sub(rf"\b{option}\b", field, one["problem"], count=1)
        message = message.replace(one["problem"], problem)
        found.append({"at": f"{field}{dot}{rest}", "problem": problem})
        if option.partition("[")[0] == "input":
            whole = f"`GET {PREFIX}/workflows/{quote(workflow, safe='')}/input-schema`"
            hint = f"{hint} ({whole})" if hint else f"{whole} tells what it takes."
    return InvalidInput(
        message, hint=hint or "", details={**error.details, "errors": found} if found else error.details
    )


def _options(given: RunStart, header: str | None) -> Start:
    if header is not None and given.idempotency_key not in (None, header):
        raise InvalidRequest("the header Idempotency-Key and the field idempotency_key differ; give one of them")
    return Start(
        id=given.id,
        idempotency_key=header or given.idempotency_key,
        concurrency_key=given.concurrency_key,
        priority=given.priority,
        labels=given.labels,
        worker_tags=given.worker_tags,
        limits=given.concurrency_limits,
        at=given.scheduled_at,
        deadline=given.deadline_at,
    )


@router.get(
    "/runs",
    operation_id="listRuns",
    responses={**errors(InvalidCursor), 200: {"model": shown.page_of(shown.Run)}},
)
async def list_(node: NodeHere, caller: Viewer, query: Annotated[RunsQuery, Query()]) -> Response:
    """List runs, newest first."""
    asked = {"runs": [*caller.scope], **query.model_dump(exclude={"limit", "cursor"}, mode="json")}
    before = paging.position(asked, query.cursor, (int, str))
    key, _, value = (query.label or "").partition("=")
    chosen = RunFilter(
        states=query.state,
        workflow=query.workflow,
        reason=query.reason,
        label=(key, value) if query.label is not None else None,
        before=(before[0], before[1]) if before is not None else None,
        limit=query.limit + 1,
        scope=caller.scope,
        priority=query.priority,
        worker_tag=query.worker_tag,
        created_from=schemas.ms(query.created_from),
        created_to=schemas.ms(query.created_to),
    )
    rows = await node.store.runs(chosen)
    return Json(page(rows, query.limit, asked, lambda row: (row.created_at, row.run_id), views.plain))


@router.post(
    "/runs/{run_id:path}/cancel",
    operation_id="cancelRun",
    responses={**errors(*BODY, RunNotFound, InvalidTransition), 200: {"model": shown.Steered}},
    openapi_extra=accepts(Cancel, required=False),
)
async def cancel(
    node: NodeHere, caller: Developer, run_id: str, given: Annotated[Cancel, Depends(body(Cancel, optional=True))]
) -> Response:
    """End a run. What it registered to undo is undone first, unless forced. Cancelling twice is accepted."""
    await run_of(node, caller, run_id)
    return await _steered(node, run_id, commands.cancel(node.store, run_id, caller.actor, force=given.force))


@router.post(
    "/runs/{run_id:path}/pause",
    operation_id="pauseRun",
    responses={**errors(*BODY, RunNotFound, InvalidTransition), 200: {"model": shown.Steered}},
    openapi_extra=accepts(Nothing, required=False),
)
async def pause(
    node: NodeHere, caller: Developer, run_id: str, _: Annotated[Nothing, Depends(body(Nothing, optional=True))]
) -> Response:
    """Hold a run where it is: no further step begins.

    A body that executes right now goes on to its end in its worker, and its result counts only if that worker's process
    still lives at the resume and takes the run again. Anywhere else the step counts as cut off, as after a crash: it
    executes again; if it is `at_most_once`, it does not, and the workflow gets `StepInterrupted`, unless the step says
    by `reconcile` what became of it.
    """
    await run_of(node, caller, run_id)
    return await _steered(node, run_id, commands.pause(node.store, run_id, caller.actor))


@router.post(
    "/runs/{run_id:path}/resume",
    operation_id="resumeRun",
    responses={**errors(*BODY, RunNotFound, InvalidTransition), 200: {"model": shown.Steered}},
    openapi_extra=accepts(Nothing, required=False),
)
async def resume(
    node: NodeHere, caller: Developer, run_id: str, _: Annotated[Nothing, Depends(body(Nothing, optional=True))]
) -> Response:
    """Let a paused run go on: it goes through the queue, and any fitting worker takes it."""
    await run_of(node, caller, run_id)
    return await _steered(node, run_id, commands.resume(node.store, run_id, caller.actor))


@router.post(
    "/runs/{run_id:path}/retry",
    operation_id="retryRun",
    responses={**errors(*BODY, RunNotFound, InvalidTransition), 200: {"model": shown.Steered}},
    openapi_extra=accepts(Retry, required=False),
)
async def retry(
    node: NodeHere, caller: Developer, run_id: str, given: Annotated[Retry, Depends(body(Retry, optional=True))]
) -> Response:
    """Reopen a failed or cancelled run: finished steps keep their results, or with `restart` execute again."""
    await run_of(node, caller, run_id)
    return await _steered(node, run_id, commands.retry(node.store, run_id, caller.actor, restart=given.restart))


async def _steered(node: Node, run_id: str, command: Awaitable[bool]) -> Response:
    changed = await command
    node.changed(run_id)
    row = await node.store.run(run_id)
    return Json(views.steered(run_id, row.state if row is not None else None, changed=changed))


@router.get(
    "/runs/{run_id:path}",
    operation_id="getRun",
    responses={**errors(RunNotFound), 200: {"model": shown.RunWhole}},
)
async def get(node: NodeHere, places: PlacesHere, caller: Viewer, run_id: str) -> Response:
    """A run: its row, its values, its steps, and while it is queued which workers could take it."""
    row = await run_of(node, caller, run_id)
    view = await outlined(node.store, run_id)
    sessions = living(await node.store.sessions()) if row.state in QUEUED else ()
    hold = None if view.hold is None else hold_of(paused(view.hold, run_id))
    routing = views.worker_routing(row, sessions, node.store.now())
    told = {**views.run(row, view), "hold": hold, "worker_routing": routing}
    return whole.answer(node.store, run_id, told, view, places.of(caller.scope))


@router.delete(
    "/runs/{run_id:path}",
    operation_id="deleteRun",
    status_code=204,
    response_class=Response,
    responses={**errors(RunNotFound, InvalidTransition), 204: {"description": "It is deleted, with its journal."}},
)
async def delete(node: NodeHere, caller: Admin, run_id: str) -> Response:
    """Delete a run that has ended, with its journal. The audit log keeps that it was deleted, and by whom."""
    await run_of(node, caller, run_id)
    if not await node.store.delete_run(run_id, caller.actor, caller.scope):
        raise RunNotFound(f"no run has the id {run_id!r}")
    return Response(status_code=204)
