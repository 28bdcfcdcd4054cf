"""A node as the tests see it: served on a loopback port, with a worker that speaks the protocol by hand."""

from __future__ import annotations

import asyncio
import io
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from tests.recovery.kit import quick

from ironflow.config import Settings
from ironflow.engine import starting
from ironflow.engine.declared import Declared
from ironflow.model import key as kinds
from ironflow.model import wire
from ironflow.model.capacity import LeaseRow, RunHead
from ironflow.model.ids import join_tags
from ironflow.model.journal import RUN_STARTED, RUN_SUCCEEDED, STEP_COMPLETED, Event
from ironflow.model.run import COMPLETED, RUNNING, RunRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import GUARD_OWNER, GUARD_QUEUED, Transition
from ironflow.server import keys
from ironflow.server.access import Access, Caller
from ironflow.server.node import Node
from ironflow.server.serving import bind, serving
from ironflow.store.base import Store

WORKER = "/api/v1/worker"


def patient(**changes: Any) -> Settings:
    """Settings under which no clock speaks while a test lasts, so that what happens was brought about."""
    values = {"lease_ttl_ms": 60_000, "session_ttl_ms": 60_000, "reservation_ttl_ms": 60_000}
    return quick(**{**values, **changes})


class Refused(Exception):
    """An answer that is an error."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = problem
        self.code = problem.get("code")
        super().__init__(f"{status} {problem}")


async def new_key(store: Store, kind: str = kinds.WORKER, scope: Scope = DEFAULT, **options: Any) -> str:
    """A key that is valid."""
    row, secret = keys.issue(kind, "test", now=store.now(), by="tests", scope=scope, **options)
    assert await store.add_key(row, keys.audit_of(row))
    return secret


class Speaker:
    """One worker of the protocol, by hand: nothing happens unless a test says it."""

    def __init__(self, http: aiohttp.ClientSession, url: str, key: str) -> None:
        self.http = http
        self.url = url
        self.key = key
        self.session_id = f"s-{secrets.token_hex(4)}"
        #: where the journals of the runs that it was handed end
        self.ends: dict[str, int] = {}

    async def ask(
        self, method: str, path: str, body: Any = None, *, media: str = "application/json", **query: Any
    ) -> dict[str, Any]:
        """One request; raises `Refused` for an answer that is an error."""
        content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        data = None if content is None else io.BytesIO(content)
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": media}
        async with self.http.request(
            method, self.url + WORKER + path, data=data, params=query, headers=headers
        ) as response:
            found = json.loads(await response.read())
            if response.status >= 400:
                assert response.headers["Content-Type"] == "application/problem+json"
                raise Refused(response.status, found)
            return dict(found)

    async def register(
        self, *workflows: str, slots: int = 10, tags: tuple[str, ...] = (), needs: tuple[str, ...] = (), **more: Any
    ) -> dict[str, Any]:
        """Register with these workflows (`order` if none are named), which require the tags `needs` of themselves."""
        names = workflows or ("order",)
        served = {name: {"versions": ["1"], "tags": list(needs)} for name in names}
        seen = [{"name": name, "version": "1", "worker_tags": list(needs), "definition": {}} for name in names]
        body = {
            "session_id": self.session_id,
            "worker_id": "w",
            "slots": slots,
            "serves": {"tags": list(tags), "workflows": served},
            "workflows": seen,
        }
        return await self.ask("POST", "/sessions", {**body, **more})

    async def poll(self, free: int = 1, wait_ms: int = 0) -> list[RunHead]:
        """What is there for this worker."""
        answer = await self.ask("POST", "/poll", {"session_id": self.session_id, "credits": free, "wait_ms": wait_ms})
        heads = [wire.head_from_json(one["head"]) for one in answer["assignments"]]
        self.ends |= {
            head.run_id: one["journal"][-1][0] for head, one in zip(heads, answer["assignments"], strict=True)
        }
        return heads

    async def held(self, free: int = 1, wait_ms: int = 20_000) -> asyncio.Task[list[RunHead]]:
        """A poll that the server holds open by now: the one before it is answered at the moment this one is held."""
        polls = {asyncio.ensure_future(self.poll(free, wait_ms)) for _ in range(2)}
        (answered,), (held,) = await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        assert await answered == []
        return held

    async def transitions(self, *items: Any) -> list[Any]:
        """Ask for these changes; the answers."""
        answer = await self.ask("POST", "/transitions", {"session_id": self.session_id, "items": list(items)})
        return list(answer["answers"])

    async def take(self, head: RunHead, token: str = "token") -> Any:
        """Activate a run that was handed out."""
        return (await self.transitions(wire.item_of(taking(head, token, self.ends.get(head.run_id, 1) + 1))))[0]

    async def took(self, token: str = "token") -> RunHead:
        """Poll one run and activate it; its head as it is now."""
        [head] = await self.poll(1, 2_000)
        assert await self.take(head, token) == "applied"
        head.execution_seq += 1
        return head

    async def heartbeat(self, *held: tuple[str, int, str]) -> dict[str, Any]:
        """Renew these leases."""
        named = [[*one, True] for one in held]
        return await self.ask("POST", "/heartbeat", {"session_id": self.session_id, "credits": 1, "held": named})

    @asynccontextmanager
    async def liveness(self) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
        """The lines of this worker's stream, while the block runs."""
        headers = {"Authorization": f"Bearer {self.key}"}
        params = {"session_id": self.session_id}
        async with self.http.get(f"{self.url}{WORKER}/liveness", params=params, headers=headers) as response:
            assert response.status == 200

            async def lines() -> AsyncIterator[dict[str, Any]]:
                async for line in response.content:
                    yield json.loads(line)

            yield lines()


class Served:
    """A node that is served, with what tests need beside it."""

    def __init__(self, node: Node, database: str, url: str, http: aiohttp.ClientSession, key: str) -> None:
        self.node = node
        self.store = node.store
        self.database = database
        self.url = url
        self.http = http
        self.key = key

    def speaker(self, key: str | None = None) -> Speaker:
        """A worker that has not registered yet."""
        return Speaker(self.http, self.url, key or self.key)

    async def worker(self, *workflows: str, **options: Any) -> Speaker:
        """A worker that has registered."""
        speaker = self.speaker()
        await speaker.register(*workflows, **options)
        return speaker

    async def caller(self) -> Caller:
        """Who shows the key of this node's workers."""
        return await Access(self.store, self.node.settings).caller(self.key)

    async def start(self, workflow: str = "order", *, worker_tags: tuple[str, ...] = (), **options: Any) -> RunRow:
        """Start a run as the API does."""
        row = await start(self.store, workflow, worker_tags=worker_tags, **options)
        self.node.started(row)
        return row


async def start(
    store: Store,
    workflow: str = "order",
    *,
    worker_tags: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    scope: Scope = DEFAULT,
    value: Any = None,
    **options: Any,
) -> RunRow:
    """Create a run in the queue, and tell nobody."""
    spec = Declared({"name": workflow, "version": "1", "worker_tags": join_tags(needs), "definition": None})
    given: Any = {**options, "worker_tags": worker_tags}
    row, created, lanes = starting.new_run(spec, value, given, store.now(), 1 << 22, scope)
    submitted = store.submit(starting.queued(row, created, lanes))
    assert (submitted if isinstance(submitted, str) else await submitted) == "applied"
    return row


@asynccontextmanager
async def served(url: str, settings: Settings | None = None) -> AsyncIterator[Served]:
    """A node on this database, in this process."""
    listener = bind("127.0.0.1", 0)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with aiohttp.ClientSession() as http, serving(settings or patient(), url, listener) as node:
        yield Served(node, url, address, http, await new_key(node.store))


def looked_at(here: Served, monkeypatch: pytest.MonkeyPatch, name: str) -> list[int]:
    """Of each time that this read of a node's store is asked, for how many."""
    looks: list[int] = []
    look = getattr(here.store, name)

    async def counted(wanted: Any) -> Any:
        looks.append(len(wanted))
        return await look(wanted)

    monkeypatch.setattr(here.store, name, counted)
    return looks


async def always() -> bool:
    """Of a key that is not revoked: it counts."""
    return True


# ---- changes, as a worker's engine makes them


def taking(head: RunHead, token: str = "token", seq: int = 2) -> Transition:
    """Take a run that was handed out; `seq`: behind the end of its journal, which is that of a new run if not given."""
    change = Transition(head.run_id, GUARD_QUEUED, head.execution_seq)
    change.facts, change.reservation = head.facts, head.reservation
    change.new_execution_seq, change.new_token_hash = head.execution_seq + 1, token
    change.state, change.dequeue = RUNNING, True
    change.lease = LeaseRow(head.run_id, head.execution_seq + 1, token, "", 0, 0)
    change.events = [Event(seq, RUN_STARTED, None, '{"worker":"w"}', head.execution_seq + 1)]
    return change


def append(head: RunHead, seq: int, token: str = "token") -> Transition:
    """A step has ended."""
    change = Transition(head.run_id, GUARD_OWNER, head.execution_seq, token)
    change.events = [Event(seq, STEP_COMPLETED, f"{seq}:a", '{"result":1}', head.execution_seq)]
    return change


def ending(head: RunHead, seq: int, token: str = "token") -> Transition:
    """The run has ended."""
    change = Transition(head.run_id, GUARD_OWNER, head.execution_seq, token)
    change.state, change.ended, change.release = COMPLETED, True, True
    change.events = [Event(seq, RUN_SUCCEEDED, None, '{"output":1}', head.execution_seq)]
    return change
