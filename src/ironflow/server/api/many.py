"""`/runs/batch`: many starts in one request.

Each start is taken or refused by itself, as `POST /runs` would; what they share is the request and, in the database,
the commit. That is what makes thousands of starts a second cheap, where the request costs more than the start. They
begin some at a time, so that others have their turn, and so have other requests of the same organisation.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Header, Request
from starlette.responses import Response

from ironflow.engine import views
from ironflow.server import problems, shown
from ironflow.server.access import Caller
from ironflow.server.api.answers import BODY, PREFIX, Developer, NodeHere, errors
from ironflow.server.api.runs import begun
from ironflow.server.bodies import Json, accepts, body
from ironflow.server.node import Node
from ironflow.server.schemas import RunStart, RunStarts

router = APIRouter(prefix=PREFIX, tags=["runs"])

#: Starts that begin in one tick of the loop, and share a commit for certain.
AT_ONCE: Final = 64
#: Names of workflows that the refusal of one of many starts lists.
_MOST_KNOWN: Final = 50


@router.post(
    "/runs/batch",
    operation_id="createRuns",
    responses={
        **errors(*BODY),
        200: {"model": shown.RunsCreated, "description": "What became of each start, in the order of the request."},
    },
    openapi_extra=accepts(RunStarts),
)
async def create_many(
    request: Request,
    node: NodeHere,
    caller: Developer,
    given: Annotated[RunStarts, Depends(body(RunStarts))],
    traceparent: Annotated[str | None, Header(description="W3C: the trace of each run is linked to it")] = None,
) -> Response:
    """Create up to 500 runs. Each start is taken or refused by itself; the answer tells of each."""
    request.app.state.access.charge(caller, len(given.runs) - 1)
    turn = node.turns.of(caller.scope.org)
    async with asyncio.TaskGroup() as group:
        ones: list[asyncio.Task[dict[str, Any]]] = []
        for start in given.runs:
            if ones and len(ones) % AT_ONCE == 0:
                await asyncio.sleep(0)
                await turn.come()
            ones.append(group.create_task(_one(request, node, caller, start, traceparent)))
    return Json({"items": [one.result() for one in ones]})


async def _one(
    request: Request, node: Node, caller: Caller, start: RunStart, traceparent: str | None
) -> dict[str, Any]:
    try:
        row, new = await begun(request, node, caller, start, None, traceparent)
    except Exception as error:
        refused = problems.of_error(error)
        if "known" in refused.get("details", {}):  # which may be told once for each start
            refused["details"]["known"] = refused["details"]["known"][:_MOST_KNOWN]
        return {"status": refused["status"], "run": None, "problem": refused}
    return {"status": 201 if new else 200, "run": views.created(row, new=new), "problem": None}
