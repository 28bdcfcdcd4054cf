"""Counts and times HTTP requests, around a whole ASGI application.

The route is the pattern that the application matched (`/api/v1/runs/{run_id}`), never the path: paths hold ids. What
matched no route is one label, and so is a method that HTTP does not know, or a scanner of the internet would fill the
registry.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from time import perf_counter
from typing import Any, Final

from ironflow.observe.exposition import Receive, Scope, Send
from ironflow.observe.metrics import OTHER, Metrics

App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The route of a request that matched none.
UNKNOWN: Final = "unknown"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
#: The status of an answer that never began: its client went away.
GONE: Final = 499


class Counted:
    """See the module's docstring. An ASGI application around another."""

    def __init__(self, app: App, metrics: Metrics) -> None:
        self.app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request and count it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = perf_counter(), 0

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, sending)
        except Exception:
            status = status or 500
            raise
        finally:
            route = pattern_of(scope)
            method = scope["method"] if scope["method"] in METHODS else OTHER
            of = self._metrics.of
            of("ironflow_http_requests_total", route, method, str(status or GONE)).inc()
            of("ironflow_http_request_seconds", route, method).observe(perf_counter() - began)


def pattern_of(scope: Scope) -> str:
    """The pattern that a request was matched by, made from what the application left in the request's scope.

    Its values of path parameters are put back into names, which holds for every kind of route, however it was mounted.
    """
    endpoint = scope.get("endpoint")
    if endpoint is None:
        return UNKNOWN
    path, mounted = str(scope["path"]), scope.get("root_path", "")
    if mounted and not inspect.isroutine(endpoint):  # an application below a prefix: what it serves is its own affair
        return f"{mounted}/*"
    for name, value in reversed((scope.get("path_params") or {}).items()):
        # From the right: an id that reads like the noun before it is still the id.
        before, found, after = f"{path}/".rpartition(f"/{value}/")
        if not found:
            return UNKNOWN
        path = f"{before}/{{{name}}}/{after}".removesuffix("/")
    return path
