"""`/capacity`: who works, who holds what, and what waits, of all organisations: for who runs the platform."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from ironflow.engine import views
from ironflow.errors import PlatformRequired
from ironflow.model.capacity import SessionRow
from ironflow.server import shown
from ironflow.server.api.answers import PREFIX, NodeHere, Platform, errors
from ironflow.server.bodies import Json
from ironflow.worker.evidence import living

router = APIRouter(prefix=f"{PREFIX}/capacity", tags=["capacity"])


class QueueQuery(BaseModel):
    """How much of the queue."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=10_000, description="Rows, at most.")


def _answers(item: type[Any]) -> dict[int | str, dict[str, Any]]:
    return {**errors(PlatformRequired), 200: {"model": shown.page_of(item)}}


def _all(rows: Iterable[dict[str, Any]]) -> Response:
    return Json({"items": list(rows), "next": None})


@router.get("/leases", operation_id="listLeases", responses=_answers(shown.Lease))
async def leases(node: NodeHere, caller: Platform) -> Response:
    """The leases: which session executes which run, and until when it may without renewing."""
    return _all(views.plain(row) for row in await node.store.leases())


@router.get("/sessions", operation_id="listSessions", responses=_answers(shown.Session))
async def sessions(node: NodeHere, caller: Platform) -> Response:
    """The live worker processes with their free places and what they serve."""
    return _all(views.plain(row) for row in await node.store.sessions())


@router.get("/queue", operation_id="listQueue", responses=_answers(shown.QueueRow))
async def queue(node: NodeHere, caller: Platform, query: Annotated[QueueQuery, Query()]) -> Response:
    """The dispatch queue in the order of handing out."""
    return _all(views.plain(row) for row in await node.store.queue(query.limit))


@router.get("/lanes", operation_id="listLanes", responses=_answers(shown.Lane))
async def lanes(node: NodeHere, caller: Platform) -> Response:
    """The lanes in use: how many runs execute in each, and how many it holds back."""
    return _all(views.plain(row) for row in await node.store.lanes())


@router.get("/credits", operation_id="listCredits", responses=_answers(shown.Credit))
async def credits_(node: NodeHere, caller: Platform) -> Response:
    """How many more runs each live worker would take now."""
    return _all(_credit(row) for row in await node.store.sessions())


def _credit(row: SessionRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in shown.Credit.model_fields}


@router.get("/stats", operation_id="getStats", responses={**errors(PlatformRequired), 200: {"model": shown.Stats}})
async def stats(node: NodeHere, caller: Platform) -> Response:
    """Runs by state, places, leases and queued segments."""
    store = node.store
    counts, live = await store.counts(), living(await store.sessions())
    return Json(views.stats(counts, live, len(await store.leases()), await store.next_due()))
