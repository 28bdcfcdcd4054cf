"""`/audit`: who did what, and what recovery did by itself. An organisation sees its own, the platform everything."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ironflow.engine import views
from ironflow.errors import InvalidCursor
from ironflow.server import paging, shown
from ironflow.server.api.answers import PREFIX, NodeHere, ViewerOrPlatform, errors, page
from ironflow.server.bodies import Json
from ironflow.server.schemas import AuditQuery

router = APIRouter(prefix=PREFIX, tags=["audit"])


@router.get(
    "/audit",
    operation_id="listAudit",
    responses={**errors(InvalidCursor), 200: {"model": shown.page_of(shown.Audit)}},
)
async def list_(node: NodeHere, caller: ViewerOrPlatform, query: Annotated[AuditQuery, Query()]) -> Response:
    """The audit log, newest first."""
    scope = None if caller.platform else caller.scope
    asked = {"audit": [*caller.scope], "run_id": query.run_id}
    before = paging.position(asked, query.cursor, (str,))
    rows = await node.store.audits(query.limit + 1, query.run_id, scope, before[0] if before is not None else None)
    return Json(page(rows, query.limit, asked, lambda row: (row["audit_id"],), views.plain))
