"""The OpenAPI document and the server say the same: schemathesis asks what the document allows, and much it does not.

Streams are left out (their tests are in `test_sse`), since what they answer has no end to wait for. So is one check,
that what the document allows is always accepted: what a cursor is, and which characters can be shown, no schema can
say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation import GenerationMode
from schemathesis.python import asgi
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from tests.server.asking import Api, of_code, serving
from tests.server.document import operations

import ironflow
from ironflow.errors import IronflowError
from ironflow.testing.postgres import PostgresServer

#: Each of these finds what it finds within some dozens of examples; the whole takes seconds.
EXAMPLES = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@ironflow.step
async def pick(item: str, fail: bool) -> str:
    if fail:
        raise ValueError("out of stock")
    return item


@ironflow.workflow
async def order(ctx: ironflow.Context, items: list[str]) -> int:
    """Take an order."""
    for item in items:
        await pick(item, fail=item == "none")
    return len(items)


class Server:
    """An ASGI app that opens its database when it is started, in the loop that it is asked in."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.api: Api | None = None
        self.known: dict[str, list[str]] = {}
        self.keys: dict[str, str] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            assert self.api is not None
            await self.api.app(scope, receive, send)
            return
        await receive()
        async with serving(self.url, api_rate=0) as self.api:
            await self._fill(self.api)
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def fixed(self, label: str) -> list[dict[str, str]]:
        """Parameters of a path that mean something that exists; nothing where a path has none."""
        return [{name: value} for name, values in self.known.items() if f"{{{name}}}" in label for value in values]

    async def _fill(self, api: Api) -> None:
        """A run of each kind that there is something to tell about."""
        await api.store.saw_workflows([of_code(order.spec)])
        await api.store.resume_workflow(order.name, "test")  # an earlier one of these tests may have paused it
        async with ironflow.open(self.url) as engine:
            done = await engine.start(order, ["a", "b"], labels={"shop": "x"})
            await done.result()
            failed = await engine.start(order, ["none"])
            with pytest.raises(IronflowError):
                await failed.result()
            later = await engine.start(order, ["a"], worker_tags=["gpu"], limits={"g": 1}, priority=3)
            held = await engine.start(order, ["a"], worker_tags=["gpu"])
            await held.pause()
        self.keys = {"org": await api.key(), "platform": await api.key(kind="platform")}
        self.known = {"run_id": [done.id, failed.id, later.id, held.id], "name": ["order"], "key_id": []}


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if request.param == "sqlite":
        yield Server(f"sqlite:///{tmp_path_factory.mktemp('openapi')}/iron.db")
    else:
        cluster: PostgresServer = request.getfixturevalue("postgres_server")
        template: str = request.getfixturevalue("postgres_template")
        yield Server(cluster.create_database("openapi", template=template))
    asgi.shutdown_lifespans()


@pytest.fixture(scope="module")
def whole(server: Server) -> Any:
    return schemathesis.openapi.from_asgi("/api/v1/openapi.json", server)


OPERATIONS = [str(one) for one in operations() if one.id != "followRun"]
#: Each operation with anything in its path, and again with what exists; what is deleted would be missed by the others.
ASKED = [(one, False) for one in OPERATIONS]
ASKED += [(one, True) for one in OPERATIONS if "{" in one and not one.startswith("DELETE")]


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize(("label", "known"), ASKED)
def test_the_server_answers_as_the_document_says(
    label: str, known: bool, mode: GenerationMode, whole: Any, server: Server
) -> None:
    fixed: list[dict[str, str]] = server.fixed(label) if known else [{}]
    kind = "platform" if "/capacity/" in label else "org"
    operation = whole.find_operation_by_label(label)
    for parameters in fixed:

        @EXAMPLES
        @given(case=operation.as_strategy(generation_mode=mode, path_parameters=parameters or None))
        def check(case: schemathesis.Case) -> None:
            # Some wrong values look right in an address: an empty list is nothing, a list of one is that one.
            assume(mode is GenerationMode.POSITIVE or all(map(_has_text, (case.query or {}).values())))
            key = {"Authorization": f"Bearer {server.keys[kind]}"}
            left_out = [positive_data_acceptance]
            if _only_the_headers_are_wrong(case):
                left_out.append(negative_data_rejection)  # the right key stands in the place of what was wrong
            answer = case.call(headers=key)
            if label.endswith("/batch") and _each_is_refused(answer):
                left_out.append(negative_data_rejection)
            case.validate_response(answer, headers=key, excluded_checks=left_out)

        check()


def _only_the_headers_are_wrong(case: schemathesis.Case) -> bool:
    parts = case.meta.components.items() if case.meta is not None else ()
    return {part for part, info in parts if info.mode is GenerationMode.NEGATIVE} == {ParameterLocation.HEADER}


def _each_is_refused(answer: Any) -> bool:
    """A start of a batch whose priority is out of range is refused as one of an unknown workflow is: by itself."""
    return answer.status_code == 200 and all(one["problem"] is not None for one in answer.json()["items"])


def _has_text(value: object) -> bool:
    return isinstance(value, str | int | float) or (isinstance(value, list) and len(value) > 1)
