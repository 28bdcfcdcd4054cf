"""A node's app in this process, asked without a socket between: every answer whole, and streams as they come."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote, urlencode

from ironflow.config import Settings
from ironflow.engine.definitions import WorkflowSpec
from ironflow.model import key as kinds
from ironflow.model.ids import join_tags
from ironflow.model.scope import DEFAULT, Scope
from ironflow.server import keys
from ironflow.server.access import Access
from ironflow.server.app import create_app, refuse
from ironflow.server.node import Node
from ironflow.store import connect
from ironflow.store.base import Store, WorkflowSeen

OTHER = Scope("other", "default")


class Answer:
    """What was answered."""

    def __init__(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.status = status
        self.headers = headers
        self.content = content

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def code(self) -> str:
        """The code of a refusal, which is a problem document."""
        assert self.headers["content-type"] == "application/problem+json"
        found = self.json
        assert found["status"] == self.status
        return str(found["code"])

    def __repr__(self) -> str:
        return f"{self.status} {self.content[:500]!r}"


class Api:
    """A node and its app."""

    def __init__(self, store: Store, node: Node, access: Access, app: Any) -> None:
        self.store, self.node, self.access, self.app = store, node, access, app

    async def key(self, role: str = "admin", *, kind: str = kinds.ORG, scope: Scope = DEFAULT, **more: Any) -> str:
        """A new key."""
        own = role if kind == kinds.ORG else None
        row, secret = keys.issue(kind, f"{kind} {role}", now=self.store.now(), by="test", scope=scope, role=own, **more)
        assert await self.store.add_key(row, keys.audit_of(row))
        return secret

    async def declare(self, name: str = "order", scope: Scope = DEFAULT, **definition: Any) -> None:
        """What a worker that has this workflow writes of it."""
        text = json.dumps({"priority": 0, "timeout_ms": None, "max_recoveries": None, "lanes": [],
                           "input_schema": None, "doc": None, "compatible": [], **definition})  # fmt: skip
        await self.store.saw_workflows([WorkflowSeen(name, "1", join_tags(()), text)], scope)

    async def ask(
        self,
        method: str,
        path: str,
        key: str | None = None,
        *,
        body: Any = None,
        content: bytes | None = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask, and wait for the whole answer."""
        if body is not None:
            content = json.dumps(body).encode()
        async with self.open(method, path, key, content=content or b"", query=query, headers=headers) as stream:
            return Answer(stream.status, stream.headers, b"".join([chunk async for chunk in stream.chunks()]))

    @asynccontextmanager
    async def open(
        self,
        method: str,
        path: str,
        key: str | None = None,
        *,
        content: bytes = b"",
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Stream]:
        """Ask, and read the answer as it comes; leaving is hanging up."""
        sent = {"content-length": str(len(content)), **{k.lower(): v for k, v in (headers or {}).items()}}
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        address = path if path.startswith(("/v1/", "/health")) else f"/api/v1{path}"
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
            "path": address, "raw_path": quote(address).encode(), "root_path": "",
            "query_string": urlencode(query or {}, doseq=True).encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
            "client": ("127.0.0.1", 1), "server": ("test", 80),
        }  # fmt: skip
        stream = Stream(content)
        task = asyncio.create_task(self.app(scope, stream.receive, stream.send))
        task.add_done_callback(stream.over)
        try:
            await stream.begun.wait()
            if not stream.status:
                await task  # it raised before it answered
            yield stream
        finally:
            stream.hung_up.set()
            await asyncio.wait({task}, timeout=5)
            assert task.done(), "the request went on although its caller has hung up"


class Stream:
    """An answer that is under way."""

    def __init__(self, content: bytes) -> None:
        self._content: bytes | None = content
        self._chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.begun = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        if self._content is not None:
            content, self._content = self._content, None
            return {"type": "http.request", "body": content, "more_body": False}
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode("latin-1") for name, value in message["headers"]}
            self.begun.set()
        else:
            self._chunks.put_nowait(message.get("body", b""))
            if not message.get("more_body", False):
                self._chunks.put_nowait(None)

    def over(self, task: asyncio.Task[None]) -> None:
        self.begun.set()
        self._chunks.put_nowait(None)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body, as it comes."""
        while (chunk := await self._chunks.get()) is not None:
            yield chunk


@asynccontextmanager
async def serving(url: str, *, started: bool = False, **settings: Any) -> AsyncIterator[Api]:
    """A node on a database. `started`: its loops work, too."""
    chosen = Settings(database_url=url, **settings)
    store = await connect(url)
    try:
        node, access = Node(store, chosen), Access(store, chosen)
        app = create_app(node, access)
        if started:
            await node.start()
        try:
            yield Api(store, node, access, app)
        finally:
            await refuse(app)
            await access.close()
            await node.stop()
    finally:
        await store.close()


def of_code(spec: WorkflowSpec) -> WorkflowSeen:
    """What a worker that has this code writes of it."""
    return WorkflowSeen(spec.name, spec.version, join_tags(spec.worker_tags), json.dumps(spec.definition()))


async def post(api: Api, key: str, **body: Any) -> Answer:
    """Start a run of the workflow `order`."""
    return await api.ask("POST", "/runs", key, body={"workflow": "order", **body})
