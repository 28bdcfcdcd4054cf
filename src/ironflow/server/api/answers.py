"""What the modules of the API share: the node of a request, the run it names, and the errors an endpoint documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Security
from fastapi import Request as HttpRequest

from ironflow.engine import views
from ironflow.engine.hints import over_http
from ironflow.engine.why import Hold
from ironflow.errors import (
    Forbidden,
    InvalidRequest,
    IronflowError,
    MalformedJson,
    PayloadTooLarge,
    RateLimited,
    RunNotFound,
    StoreUnreachable,
    Unauthenticated,
    UnsupportedMediaType,
)
from ironflow.model.run import RunRow
from ironflow.server import access, paging
from ironflow.server.access import Caller
from ironflow.server.catalogue import Catalogue
from ironflow.server.large import Places
from ironflow.server.node import Node
from ironflow.server.shown import Problem

Row = TypeVar("Row")

PREFIX = "/api/v1"

#: What an endpoint that reads a body may answer.
BODY: tuple[type[IronflowError], ...] = (MalformedJson, PayloadTooLarge, UnsupportedMediaType)
#: What any endpoint may answer.
_ALWAYS: tuple[type[IronflowError], ...] = (Unauthenticated, Forbidden, RateLimited, InvalidRequest, StoreUnreachable)


async def _node(request: HttpRequest) -> Node:  # a plain function would be called in a thread
    node: Node = request.app.state.node
    return node


async def _catalogue(request: HttpRequest) -> Catalogue:
    catalogue: Catalogue = request.app.state.catalogue
    return catalogue


async def _places(request: HttpRequest) -> Places:
    places: Places = request.app.state.places
    return places


NodeHere = Annotated[Node, Depends(_node)]
CatalogueHere = Annotated[Catalogue, Depends(_catalogue)]
#: For answers that may be large. Followed runs have places of their own: a stream is longer on its way than an answer.
PlacesHere = Annotated[Places, Depends(_places)]
# Who may use an endpoint; the document says it, too, as roles that the key needs one of.
Viewer = Annotated[Caller, Security(access.org("viewer"), scopes=["viewer"])]
Developer = Annotated[Caller, Security(access.org("developer"), scopes=["developer"])]
Admin = Annotated[Caller, Security(access.org("admin"), scopes=["admin"])]
Platform = Annotated[Caller, Security(access.platform(), scopes=["platform"])]
ViewerOrPlatform = Annotated[Caller, Security(access.anyone("viewer"), scopes=["viewer", "platform"])]
AdminOrPlatform = Annotated[Caller, Security(access.anyone("admin"), scopes=["admin", "platform"])]


async def run_of(node: Node, caller: Caller, run_id: str) -> RunRow:
    """The run of this id.

    Raises:
        RunNotFound: there is none, or it is another organisation's: which of the two is not told.
    """
    row = await node.store.run(run_id)
    if row is None or row.scope != caller.scope:
        raise RunNotFound(f"no run has the id {run_id!r}")
    return row


#: What a refusal says in its headers; see `problems.headers`.
_HEADERS: dict[int, dict[str, Any]] = {
    401: {"WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}}},
    429: {"Retry-After": {"description": "In how many seconds to ask again.", "schema": {"type": "integer"}}},
}


def errors(*kinds: type[IronflowError]) -> dict[int | str, dict[str, Any]]:
    """The refusals an endpoint may answer with, for the OpenAPI document; those of every endpoint are added."""
    found: dict[int, list[type[IronflowError]]] = defaultdict(list)
    for kind in (*kinds, *_ALWAYS):
        found[kind.status].append(kind)
    return {status: _refusal(status, of_status) for status, of_status in sorted(found.items())}


def _refusal(status: int, kinds: Sequence[type[IronflowError]]) -> dict[str, Any]:
    told = {"model": Problem, "description": "; ".join(f"`{kind.code}`: {kind.summary}" for kind in kinds)}
    return {**told, "headers": _HEADERS[status]} if status in _HEADERS else told


def hold_of(hold: Hold) -> dict[str, Any]:
    """What holds a run, as JSON data."""
    return {**views.plain(hold), "message": over_http(hold.message)}


def page(
    rows: Sequence[Row],
    limit: int,
    query: Mapping[str, Any],
    key: Callable[[Row], Sequence[int | str]],
    show: Callable[[Row], dict[str, Any]],
) -> dict[str, Any]:
    """A page of a list.

    Args:
        rows: what was found; one more than the limit means that there is another page.
        limit: rows on the page.
        query: what was asked, without limit and cursor.
        key: the place of a row in the order of the list.
        show: a row as JSON data.
    """
    shown = rows[:limit]
    more = len(rows) > limit
    return {
        "items": [show(row) for row in shown],
        "next": paging.cursor(query, key(shown[-1])) if more else None,
    }
