"""`/api-keys`: make, list and revoke keys. An admin does so for the own organisation, the platform for any."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from ironflow.engine import views
from ironflow.errors import Forbidden, InvalidCursor, InvalidInput, KeyNotFound
from ironflow.model import key as kinds
from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.server import keys, paging, schemas, shown
from ironflow.server.access import Access, Caller
from ironflow.server.api.answers import BODY, PREFIX, AdminOrPlatform, NodeHere, errors, page
from ironflow.server.bodies import Json, accepts, body
from ironflow.server.node import Node
from ironflow.server.schemas import KeyCreate, PageQuery

router = APIRouter(prefix=PREFIX, tags=["keys"])


@router.post(
    "/api-keys",
    operation_id="createKey",
    status_code=201,
    responses={
        **errors(*BODY, InvalidInput),
        201: {"model": shown.KeyCreated, "description": "The key. `key` is shown only here."},
    },
    openapi_extra=accepts(KeyCreate),
)
async def create(
    node: NodeHere, caller: AdminOrPlatform, given: Annotated[KeyCreate, Depends(body(KeyCreate))]
) -> Response:
    """Make a key. What is answered as `key` is shown this once; only its hash is kept."""
    row, secret = await keys.make(
        node.store,
        given.kind,
        given.name,
        by=caller.actor,
        scope=_scope(caller, given),
        role=given.role,
        workflows=given.workflows,
        expires_at=schemas.ms(given.expires_at),
    )
    return Json({**views.plain(row), "key": secret}, 201)


def _scope(caller: Caller, given: KeyCreate) -> Scope:
    """Whose the new key is."""
    if caller.platform:
        if given.kind == kinds.PLATFORM and (given.org or given.environment):
            raise InvalidInput("a platform key belongs to no organisation", hint="Leave org and environment out.")
        return Scope(given.org or DEFAULT.org, given.environment or DEFAULT.environment)
    if given.kind == kinds.PLATFORM:
        raise Forbidden("only a platform key makes platform keys")
    asked = Scope(given.org or caller.scope.org, given.environment or caller.scope.environment)
    if asked != caller.scope:
        raise Forbidden("this key makes keys for its own organisation and environment only")
    return asked


@router.get(
    "/api-keys",
    operation_id="listKeys",
    responses={**errors(InvalidCursor), 200: {"model": shown.page_of(shown.Key)}},
)
async def list_(node: NodeHere, caller: AdminOrPlatform, query: Annotated[PageQuery, Query()]) -> Response:
    """The keys, oldest first, revoked and expired ones, too; their secrets are nowhere."""
    asked = {"keys": [*caller.scope]}
    last = paging.position(asked, query.cursor, (int, str))
    rows = sorted(await _visible(node, caller), key=_place)
    rows = [row for row in rows if last is None or _place(row) > (last[0], last[1])]
    return Json(page(rows, query.limit, asked, _place, views.plain))


@router.delete(
    "/api-keys/{key_id}",
    operation_id="revokeKey",
    status_code=204,
    response_class=Response,
    responses={**errors(KeyNotFound), 204: {"description": "It opens nothing any more; it was so, or is so now."}},
)
async def revoke(request: Request, node: NodeHere, caller: AdminOrPlatform, key_id: str) -> Response:
    """Take a key back: at once on this node, and within a second on every other. Its streams end soon after."""
    if key_id not in {row.key_id for row in await _visible(node, caller)}:
        raise KeyNotFound(f"no API key has the id {key_id!r}")
    await node.store.revoke_key(key_id, caller.actor)
    access: Access = request.app.state.access
    access.forget(key_id)
    return Response(status_code=204)


async def _visible(node: Node, caller: Caller) -> list[KeyRow]:
    """The keys a caller may know of."""
    if caller.platform:
        return await node.store.keys(None)
    return [row for row in await node.store.keys(caller.scope.org) if row.scope == caller.scope]


def _place(row: KeyRow) -> tuple[int, str]:
    return row.created_at, row.key_id
