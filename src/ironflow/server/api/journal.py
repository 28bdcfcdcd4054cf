"""`/runs/…/steps|journal|events|why`: what a run has done, what it does now, and why it does not move."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse

from ironflow.engine import views
from ironflow.engine.why import holds
from ironflow.errors import InvalidCursor, InvalidRequest, RunNotFound
from ironflow.model.journal import Event
from ironflow.server import paging, schemas
from ironflow.server.access import Access
from ironflow.server.api.answers import NodeHere, Viewer, errors, folded, page, run_of
from ironflow.server.bodies import Json
from ironflow.server.node import Node
from ironflow.server.schemas import EventsQuery, JournalQuery, PageQuery
from ironflow.server.sse import Tail, frames

router = APIRouter(tags=["runs"])

#: A page of a journal ends once its payloads have so many characters: one value may have two million.
_PAGE_CHARACTERS = 1 << 20
#: Events read at once for a page.
_CHUNK = 50


@router.get(
    "/runs/{run_id:path}/steps",
    operation_id="listSteps",
    responses={**errors(RunNotFound, InvalidCursor), 200: {"model": schemas.page_of(schemas.StepOut)}},
)
async def steps(node: NodeHere, caller: Viewer, run_id: str, query: Annotated[PageQuery, Query()]) -> Response:
    """The steps of a run with their tries, in the order in which they were first asked for."""
    await run_of(node, caller, run_id)
    asked = {"steps": run_id}
    last = paging.position(asked, query.cursor, (str,))
    found = list((await folded(node, run_id)).steps.values())
    begin = 0
    if last is not None:
        places = [place for place, step in enumerate(found) if step.step_id == last[0]]
        if not places:
            raise InvalidCursor("the run was opened again meanwhile, and its steps are others")
        begin = places[0] + 1
    rows = found[begin : begin + query.limit + 1]
    return Json(page(rows, query.limit, asked, lambda step: (step.step_id,), views.step))


@router.get(
    "/runs/{run_id:path}/journal",
    operation_id="readJournal",
    responses={**errors(RunNotFound, InvalidCursor), 200: {"model": schemas.page_of(schemas.EventOut)}},
)
async def journal(node: NodeHere, caller: Viewer, run_id: str, query: Annotated[JournalQuery, Query()]) -> Response:
    """The events of a run in order. A page may be shorter than its limit, where payloads are large."""
    await run_of(node, caller, run_id)
    asked = {"journal": run_id, "after": query.after}
    last = paging.position(asked, query.cursor, (int,))
    rows, more = await _events(node, run_id, last[0] if last is not None else query.after, query.limit)
    following = paging.cursor(asked, (rows[-1].seq,)) if more else None
    return Json({"items": [views.event(row) for row in rows], "next": following})


async def _events(node: Node, run_id: str, after: int, limit: int) -> tuple[list[Event], bool]:
    """A page of events, and whether there are more behind it."""
    found: list[Event] = []
    size = 0
    while True:
        chunk = await node.store.journal(run_id, after, _CHUNK)
        for event in chunk:
            if len(found) == limit or (found and size + len(event.payload or "") > _PAGE_CHARACTERS):
                return found, True
            found.append(event)
            size += len(event.payload or "")
        if len(chunk) < _CHUNK:
            return found, False
        after = chunk[-1].seq


@router.get(
    "/runs/{run_id:path}/events",
    operation_id="followRun",
    response_class=StreamingResponse,
    responses={
        **errors(RunNotFound, InvalidCursor),
        200: {
            "description": "Server-sent events without an `event` field: one per event of the journal, its `id` the "
            "seq, its `data` the event as JSON (the schema `EventOut`). The first frame only sets `retry`; while "
            "nothing happens there is a comment every 15 s. The stream ends behind the event that ends the run.",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'retry: 1000\n\nid: 1\ndata: {"seq":1,"kind":"run_created"}\n\n: keep-alive\n\n',
                }
            },
        },
        204: {"description": "The run has ended, and nothing follows: do not connect again."},
    },
)
async def events(
    request: Request,
    node: NodeHere,
    caller: Viewer,
    run_id: str,
    query: Annotated[EventsQuery, Query()],
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Follow a run: what its journal holds already, then each event as it is committed, until the run ends.

    A stream that broke is taken up again, on any node, with the header `Last-Event-ID`, which browsers send by
    themselves, or with `after`; both are the seq of the last event that arrived, and the header goes before the query.
    No event is missed and none comes twice. A seq that this run's journal does not hold is refused.
    """
    row = await run_of(node, caller, run_id)
    after = _place(last_event_id, query.after)
    known = await node.store.journal(run_id, max(after - 1, 0), 2)
    if after and (not known or known[0].seq != after):
        raise InvalidCursor(f"run {run_id} has no event {after}: this place is one of another run")
    if row.ended and after and len(known) == 1:
        return Response(status_code=204)
    access: Access = request.app.state.access
    tail: Tail = request.app.state.tail

    async def allowed() -> bool:
        return await access.still(caller) and await node.store.run(run_id) is not None

    return StreamingResponse(
        frames(tail, run_id, after, allowed),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _place(header: str | None, after: int | None) -> int:
    """Where a stream begins. The header is newer than the address: a browser that comes back repeats the address."""
    if header is None or not header.strip():
        return after or 0
    text = header.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise InvalidCursor(f"the header Last-Event-ID {text[:40]!r} is no place in a journal")
    return int(text)


@router.get(
    "/runs/{run_id:path}/why",
    operation_id="explainRun",
    responses={**errors(RunNotFound, InvalidRequest), 200: {"model": list[schemas.HoldOut]}},  # type: ignore[valid-type]
)
async def why(node: NodeHere, caller: Viewer, run_id: str) -> Response:
    """Why a run does not move: every hold, the most telling first, with the earliest time at which it can lift."""
    await run_of(node, caller, run_id)
    found: list[dict[str, Any]] = [views.plain(hold) for hold in await holds(node.store, run_id)]
    return Json(found)
