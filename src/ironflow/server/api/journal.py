"""`/runs/…/steps|journal|events|why`: what a run has done, what it does now, and why it does not move."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ironflow.engine import reading, views
from ironflow.engine.why import holds
from ironflow.errors import InvalidCursor, RunNotFound, StoreError, TooManyStreams
from ironflow.model import journal as j
from ironflow.server import paging, shown
from ironflow.server.access import Access, Caller
from ironflow.server.api.answers import PREFIX, NodeHere, PlacesHere, Viewer, errors, hold_of, page, run_of
from ironflow.server.bodies import Json
from ironflow.server.large import Page
from ironflow.server.node import Node
from ironflow.server.schemas import EventsQuery, JournalQuery, PageQuery
from ironflow.server.sse import Tail, frames
from ironflow.worker.evidence import living

router = APIRouter(prefix=PREFIX, tags=["runs"])

#: A page ends once its payloads have so many characters: one value may have two million.
_PAGE_CHARACTERS = 1 << 20


@router.get(
    "/runs/{run_id:path}/steps",
    operation_id="listSteps",
    responses={**errors(RunNotFound, InvalidCursor), 200: {"model": shown.page_of(shown.Step)}},
)
async def steps(
    node: NodeHere, places: PlacesHere, caller: Viewer, run_id: str, query: Annotated[PageQuery, Query()]
) -> Response:
    """The steps of a run with their tries, in the order in which they were first asked for. A page may be shorter than
    its limit, where results are large.
    """
    await run_of(node, caller, run_id)
    asked = {"steps": run_id}
    last = paging.position(asked, query.cursor, (str,))

    async def made() -> dict[str, Any]:
        return await _steps(node, run_id, asked, None if last is None else last[0], query.limit)

    return Page(made, places.of(caller.scope))


async def _steps(node: Node, run_id: str, asked: dict[str, Any], last: str | None, most: int) -> dict[str, Any]:
    view = await reading.outlined(node.store, run_id)
    found = list(view.steps.values())
    begin = 0
    if last is not None:
        at = [place for place, step in enumerate(found) if step.step_id == last]
        if not at:
            raise InvalidCursor("the run was opened again meanwhile, and its steps are others")
        begin = at[0] + 1
    rows = found[begin : begin + most + 1]
    limit, size = most, 0
    for number, step in enumerate(rows[:limit], 1):
        size += await reading.complete(node.store, run_id, view, step)
        if size > _PAGE_CHARACTERS:
            limit = number
            break
    return page(rows[: limit + 1], limit, asked, lambda step: (step.step_id,), views.step)


@router.get(
    "/runs/{run_id:path}/journal",
    operation_id="readJournal",
    responses={**errors(RunNotFound, InvalidCursor), 200: {"model": shown.page_of(shown.Event)}},
)
async def journal(
    node: NodeHere, places: PlacesHere, caller: Viewer, run_id: str, query: Annotated[JournalQuery, Query()]
) -> Response:
    """The events of a run in order. A page may be shorter than its limit, where payloads are large."""
    await run_of(node, caller, run_id)
    asked = {"journal": run_id, "after": query.after}
    last = paging.position(asked, query.cursor, (int,))
    after = last[0] if last is not None else query.after

    async def made() -> dict[str, Any]:
        rows, more = await reading.page(node.store, run_id, after, query.limit, _PAGE_CHARACTERS)
        following = paging.cursor(asked, (rows[-1].seq,)) if more else None
        return {"items": [views.event(row) for row in rows], "next": following}

    return Page(made, places.of(caller.scope))


@router.get(
    "/runs/{run_id:path}/events",
    operation_id="followRun",
    response_class=StreamingResponse,
    responses={
        **errors(RunNotFound, InvalidCursor, TooManyStreams),
        200: {
            "description": "Server-sent events without an `event` field: one per event of the journal, its `id` the "
            "seq, its `data` the event as JSON (the schema `Event`). The first frame only sets `retry`; while "
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
    last_event_id: Annotated[str | None, Header(description="The seq of the last event that arrived.")] = None,
) -> Response:
    """Follow a run: what its journal holds already, then each event as it is committed, until the run ends.

    A stream that broke is taken up again, on any node, with the header `Last-Event-ID`, which browsers send by
    themselves, or with `after`; both are the seq of the last event that arrived, and the header goes before the query.
    No event is missed and none comes twice. A seq that this run's journal does not hold is refused. Who only waits for
    the end asks for `kind=run_paused`: what ends a run comes always, and the results of its steps do not.
    """
    row = await run_of(node, caller, run_id)
    after = _place(last_event_id, query.after)
    known = await node.store.journal(run_id, max(after - 1, 0), 2)
    if after and (not known or known[0].seq != after):
        raise InvalidCursor(
            f"run {run_id} has no event {after}: this place is one of another run",
            hint="Send the id of the last event of this run that arrived; leave it out to begin at the first.",
        )
    if row.ended and after and len(known) == 1:
        return Response(status_code=204)
    access: Access = request.app.state.access
    tail: Tail = request.app.state.tail

    async def allowed() -> bool:
        try:
            return await access.counts(caller)
        except StoreError:  # while the database is away, no key is revoked
            return True

    kinds = j.TERMINAL_KINDS.union(query.kind) if query.kind else None
    return _EventStream(frames(tail, run_id, after, allowed, caller.scope, kinds), access, caller)


class _EventStream(StreamingResponse):
    """A stream that counts as one of its key's while it is open. One too many is refused before anything is sent."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[str, None], access: Access, caller: Caller) -> None:
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._frames, self._access, self._caller = frames, access, caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._frames):
            with self._access.streaming(self._caller):
                await super().__call__(scope, receive, send)


def _place(header: str | None, after: int | None) -> int:
    """Where a stream begins. The header is newer than the address: a browser that comes back repeats the address."""
    if header is None or not header.strip():
        return after or 0
    text = header.strip()
    if not (text.isascii() and text.isdigit()) or len(text) > 15:
        raise InvalidCursor(
            f"the header Last-Event-ID {text[:40]!r} is no place in a journal",
            hint="Send the id of the last event that arrived, a whole number, or leave the header out.",
        )
    return int(text)


@router.get(
    "/runs/{run_id:path}/why",
    operation_id="explainRun",
    responses={**errors(RunNotFound), 200: {"model": list[shown.Hold]}},  # type: ignore[valid-type]
)
async def why(node: NodeHere, caller: Viewer, run_id: str) -> Response:
    """Why a run does not move: every hold, the most telling first, with the earliest time at which it can lift."""
    await run_of(node, caller, run_id)
    return Json([hold_of(hold) for hold in await holds(node.store, run_id, living)])
