"""`/workflows`: what workers of this organisation serve, what it takes as input, and whether it is held."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from ironflow.engine import views
from ironflow.engine.declared import Declared, unknown
from ironflow.errors import InvalidCursor, WorkflowUnknown
from ironflow.server import paging, shown
from ironflow.server.access import Caller
from ironflow.server.api.answers import (
    BODY,
    PREFIX,
    CatalogueHere,
    Developer,
    NodeHere,
    PlacesHere,
    Viewer,
    errors,
    page,
)
from ironflow.server.bodies import Json, accepts, body
from ironflow.server.catalogue import Catalogue
from ironflow.server.large import Page
from ironflow.server.node import Node
from ironflow.server.schemas import Nothing, PageQuery

router = APIRouter(prefix=PREFIX, tags=["workflows"])

#: The schema of an input of which the workflow's code says nothing: anything goes.
_ANYTHING: dict[str, Any] = {}


async def workflow_row(catalogue: Catalogue, caller: Caller, name: str) -> dict[str, Any]:
    """A workflow as workers of the caller's scope have registered it.

    Raises:
        WorkflowUnknown: none has; those that there are are named.
    """
    rows = await catalogue.rows(caller.scope)
    if name not in rows:
        raise unknown(name, rows)
    return rows[name]


@router.get(
    "/workflows",
    operation_id="listWorkflows",
    responses={**errors(InvalidCursor), 200: {"model": shown.page_of(shown.Workflow)}},
)
async def list_(
    catalogue: CatalogueHere, places: PlacesHere, caller: Viewer, query: Annotated[PageQuery, Query()]
) -> Response:
    """List the workflows that workers have registered, by name."""
    asked = {"workflows": [*caller.scope]}
    last = paging.position(asked, query.cursor, (str,))

    async def made() -> dict[str, Any]:
        found = (await catalogue.rows(caller.scope)).values()
        rows = sorted((row for row in found if last is None or row["name"] > last[0]), key=lambda row: str(row["name"]))
        return page(rows, query.limit, asked, lambda row: (row["name"],), views.workflow)

    return Page(made, places.of(caller.scope))


@router.get(
    "/workflows/{name:path}/input-schema",
    operation_id="getInputSchema",
    responses={
        **errors(WorkflowUnknown),
        200: {
            "description": "A JSON Schema; `{}` where its workers could not tell.",
            "content": {"application/json": {"schema": {"type": "object"}}},
        },
    },
)
async def input_schema(catalogue: CatalogueHere, caller: Viewer, name: str) -> Response:
    """What a workflow takes as input, as JSON Schema."""
    found = Declared(await workflow_row(catalogue, caller, name)).input_schema
    return Json(found if found is not None else _ANYTHING)


@router.post(
    "/workflows/{name:path}/pause",
    operation_id="pauseWorkflow",
    responses={**errors(*BODY, WorkflowUnknown), 200: {"model": shown.Switched}},
    openapi_extra=accepts(Nothing, required=False),
)
async def pause(
    node: NodeHere,
    catalogue: CatalogueHere,
    caller: Developer,
    name: str,
    _: Annotated[Nothing, Depends(body(Nothing, optional=True))],
) -> Response:
    """Hold a workflow: its runs are created and stay queued; executing ones go on."""
    await workflow_row(catalogue, caller, name)
    changed = await node.store.pause_workflow(name, caller.actor, caller.scope)
    return await _switched(node, caller, name, changed=changed)


@router.post(
    "/workflows/{name:path}/resume",
    operation_id="resumeWorkflow",
    responses={**errors(*BODY, WorkflowUnknown), 200: {"model": shown.Switched}},
    openapi_extra=accepts(Nothing, required=False),
)
async def resume(
    node: NodeHere,
    catalogue: CatalogueHere,
    caller: Developer,
    name: str,
    _: Annotated[Nothing, Depends(body(Nothing, optional=True))],
) -> Response:
    """Let a paused workflow go on."""
    await workflow_row(catalogue, caller, name)
    changed = await node.store.resume_workflow(name, caller.actor, caller.scope)
    if changed:
        node.queued()
    return await _switched(node, caller, name, changed=changed)


async def _switched(node: Node, caller: Caller, name: str, *, changed: bool) -> Response:
    paused_at = (await node.store.paused_workflows(caller.scope)).get(name)
    return Json(views.switched(name, paused_at, changed=changed))


@router.get(
    "/workflows/{name:path}",
    operation_id="getWorkflow",
    responses={**errors(WorkflowUnknown), 200: {"model": shown.Workflow}},
)
async def get(catalogue: CatalogueHere, caller: Viewer, name: str) -> Response:
    """A workflow: its version, the tags it asks of workers, what it declares of itself, and whether it is held."""
    return Json(views.workflow(await workflow_row(catalogue, caller, name)))
