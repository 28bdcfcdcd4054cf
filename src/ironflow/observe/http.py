"""Counts and times HTTP requests, around a whole ASGI application.

The route is the pattern that the application matched (`/api/v1/runs/{run_id}`), never the path: paths hold ids. What
matched no route is one label, and so is a method that HTTP does not know, or a scanner of the internet would fill the
registry.
"""

from __future__ import annotations

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
        began, status, root = perf_counter(), 0, scope.get("root_path", "")

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
            route = pattern_of(scope, root)
            method = scope["method"] if scope["method"] in METHODS else OTHER
            of = self._metrics.of
            of("ironflow_http_requests_total", route, method, str(status or GONE)).inc()
            of("ironflow_http_request_seconds", route, method).observe(perf_counter() - began)


def pattern_of(scope: Scope, root: str = "") -> str:
    """The pattern of the route that a request was matched by: the application leaves that route in its scope.

    Args:
        scope: of a request that was answered.
        root: the path below which the whole application lies.
    """
    mounted: str = scope.get("root_path", "")
    if mounted != root:  # an application below a prefix: what it serves is its own affair
        return f"{mounted}/*"
    pattern: str | None = getattr(scope.get("route"), "path_format", None)
    return pattern if pattern is not None else UNKNOWN
