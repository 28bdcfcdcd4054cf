"""`/metrics` on a server's own port, as an ASGI application.

Who may read: anybody who asks from this very host, with no proxy in between; from elsewhere, whoever shows a key that
`allowed` accepts, because the figures are those of all organisations. An operator who wants scrapes without a key from
other hosts gives them an address of their own (`IRONFLOW_METRICS_ADDRESS`), which no proxy publishes by accident.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ironflow.observe.backlog import Backlog
from ironflow.observe.metrics import Metrics

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: A request that carries one of these came through a proxy: its peer says nothing about who asks.
_FORWARDED = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via"})


class Exposition:
    """See the module's docstring.

    Args:
        metrics: what to show.
        backlog: brought up to date first, if there is one.
        allowed: whether the caller of a request (its ASGI scope) may read them; what it raises is the application's to
            answer. None: nobody from elsewhere may.
    """

    def __init__(
        self,
        metrics: Metrics,
        backlog: Backlog | None = None,
        allowed: Callable[[Scope], Awaitable[bool]] | None = None,
    ) -> None:
        self._metrics = metrics
        self._backlog = backlog
        self._allowed = allowed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] not in ("GET", "HEAD"):
            await _problem(send, 405, "METHOD_NOT_ALLOWED", "metrics are read with GET", (b"allow", b"GET, HEAD"))
            return
        if not from_this_host(scope) and not (self._allowed is not None and await self._allowed(scope)):
            detail = (
                "from other hosts the metrics need a platform key; IRONFLOW_METRICS_ADDRESS=HOST:PORT gives them an "
                "address of their own, without a key"
            )
            await _problem(send, 401, "UNAUTHENTICATED", detail, (b"www-authenticate", b"Bearer"))
            return
        if self._backlog is not None:
            await self._backlog.refresh()
        accept = b",".join(value for name, value in scope["headers"] if name == b"accept").decode("latin-1")
        body, kind = await asyncio.to_thread(self._metrics.text, accept)
        await _respond(send, 200, kind.encode(), b"" if scope["method"] == "HEAD" else body)


def from_this_host(scope: Scope) -> bool:
    """Whether a request comes from a process of this host, and from nobody behind that."""
    client = scope.get("client")
    try:
        local = client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False
    return local and not any(name in _FORWARDED for name, _ in scope["headers"])


async def _problem(send: Send, status: int, code: str, detail: str, *headers: tuple[bytes, bytes]) -> None:
    body = {"type": "about:blank", "title": code, "status": status, "code": code, "detail": detail}
    await _respond(send, status, b"application/problem+json", json.dumps(body).encode(), *headers)


async def _respond(send: Send, status: int, kind: bytes, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", kind), (b"cache-control", b"no-store"), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})
