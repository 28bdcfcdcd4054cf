"""A route that leaves itself in the scope of its request, as those of FastAPI do: requests are counted by its pattern.

And what a path may be asked for, which no single route knows: each has its own methods.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from starlette import routing
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send


class Route(routing.Route):
    """See the module's docstring. It takes the methods that it names, and HEAD is one of them only if it is named: what
    GET holds open for a reader must not be opened for somebody who takes no body.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], methods: Collection[str]) -> None:
        super().__init__(path, endpoint, methods=methods)
        self.methods = set(methods)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See `starlette.routing.Route`."""
        match, found = super().matches(scope)
        if match is not Match.NONE:
            found["route"] = self
        return match, found


class Direct:
    """Routes that are asked thousands of times a second, found by their path alone, before any other route is tried.

    Only what has no parameter in its path and is asked with POST; everything else goes on to the app. An ASGI
    application around another; the endpoints answer their own errors.
    """

    def __init__(self, app: ASGIApp, routes: Iterable[Route]) -> None:
        self._app = app
        self._routes = {
            route.path: route for route in routes if not route.param_convertors and route.methods == {"POST"}
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        route = self._routes.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        await route.app(scope, receive, send)


def allowed(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """The methods that the path of a request takes, as the header `Allow` names them.

    Those of the pattern that fits it best, which is the first. A later one fits `/runs/r/events` as well: that of a run
    whose id has a slash, which is not what such a path is asked for.
    """
    fitting = [route for route in routes if route.matches(scope)[0] is not Match.NONE]
    best = getattr(fitting[0], "path", None) if fitting else None
    found = {method for route in fitting if getattr(route, "path", None) == best for method in _methods(route)}
    return ", ".join(sorted(found))


def _methods(route: BaseRoute) -> Collection[str]:
    return getattr(route, "methods", None) or ()
