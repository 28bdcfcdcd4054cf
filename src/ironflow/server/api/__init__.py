"""The public API, `/api/v1`: one module per noun. They only translate; what is allowed is decided in the model.

The routes of all modules stand in the app side by side, each with its whole path: it is what requests are counted by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fastapi import FastAPI
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from ironflow.server.access import Access
from ironflow.server.api import audit, capacity, journal, keys, many, runs, workflows
from ironflow.server.api.answers import PREFIX
from ironflow.server.api.document import document
from ironflow.server.bodies import Json
from ironflow.server.catalogue import Catalogue
from ironflow.server.large import Places
from ironflow.server.node import Node
from ironflow.server.sse import Tail

__all__ = ["DOCUMENT", "PREFIX", "mount", "routes"]

#: The path of the OpenAPI document.
DOCUMENT: Final = f"{PREFIX}/openapi.json"


def routes() -> Sequence[BaseRoute]:
    """All of them, in the order of matching: an id may hold a slash, so paths that end in a word come first."""
    modules = (journal, many, runs, workflows, capacity, audit, keys)
    return [route for module in modules for route in module.router.routes]


def mount(app: FastAPI, node: Node, access: Access) -> None:
    """Put the API into an app. The app's owner closes `app.state.tail` when it stops, and `access` behind it."""
    app.state.node, app.state.access = node, access
    app.state.catalogue, app.state.tail, app.state.places = Catalogue(node.store), Tail(node.store), Places()
    node.follow(app.state.tail.touched)
    app.router.routes.extend(routes())
    made: list[dict[str, Any]] = []

    async def openapi() -> Response:
        """The OpenAPI document; the one thing of the API that needs no key."""
        if not made:
            made.append(document(app.routes, node.settings.max_api_body_bytes))
        return Json(made[0])

    app.add_api_route(DOCUMENT, openapi, include_in_schema=False)
    app.add_middleware(Aliases)


class Aliases:
    """`/v1/…` means `/api/v1/…`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand the request on, under the path that it means."""
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            scope = {**scope, "path": f"/api{scope['path']}", "raw_path": None}
        await self._app(scope, receive, send)
