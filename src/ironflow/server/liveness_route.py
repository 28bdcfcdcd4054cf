"""`GET /api/v1/worker/liveness`: the stream of one worker, as lines of JSON; see `ironflow.server.liveness`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ironflow.server.access import Access, worker
from ironflow.server.exchange import refuse, until_gone
from ironflow.server.liveness import Stream
from ironflow.server.node import Node


class LivenessRoute:
    """An ASGI app."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open a stream, and keep it open until one side ends it."""
        node, request = self._node, Request(scope)
        with ExitStack() as counted:
            try:
                caller = await worker(request)
                access: Access = request.app.state.access
                counted.enter_context(access.streaming(caller))
                session_id = request.query_params.get("session_id", "")
                await node.moved_here(await node.sessions.known(session_id, caller))
            except Exception as error:
                await refuse(send, error)
                return
            stream = node.streams.open(session_id, caller, partial(access.counts, caller))
            await self._stream(stream, receive, send)

    async def _stream(self, stream: Stream, receive: Receive, send: Send) -> None:
        node = self._node
        broken = asyncio.ensure_future(until_gone(receive))
        telling = asyncio.ensure_future(_tell(stream.lines(node.store.now), send))
        try:
            await asyncio.wait({broken, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (broken, telling):
                task.cancel()
            await asyncio.gather(broken, telling, return_exceptions=True)
            await node.streams.ended(stream)


async def _tell(lines: AsyncIterator[dict[str, Any]], send: Send) -> None:
    headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    async for line in lines:
        await send({"type": "http.response.body", "body": to_json(line) + b"\n", "more_body": True})
    await send({"type": "http.response.body", "body": b""})
