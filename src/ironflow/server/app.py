"""The ASGI app of a node: the public API, the workers' routes, and whether it is well. It wires, and decides nothing.

Every answer that is an error is a problem document, whoever refused: a route, the router, or the check of a body.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ironflow.errors import IronflowError, Unauthenticated
from ironflow.observe.exposition import Exposition
from ironflow.observe.exposition import Scope as Asked
from ironflow.observe.http import Counted
from ironflow.observe.metrics import Metrics
from ironflow.observe.observation import Observation
from ironflow.server import problems
from ironflow.server.access import Access, watcher
from ironflow.server.api import mount
from ironflow.server.bodies import refused
from ironflow.server.node import Node
from ironflow.server.problems import Problem
from ironflow.server.route import Direct, Route, allowed
from ironflow.server.worker_routes import WorkerRoutes

#: How long the database may take to say that it is there, seconds.
DATABASE_ANSWERS_S: Final = 2.0
_CODES: Final = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
_NO_PATH: Final = "The API lies below /api/v1, which clients add themselves; /api/v1/openapi.json tells all of it."


def create_app(node: Node, access: Access, observation: Observation | None = None) -> FastAPI:
    """The app of one node.

    Args:
        node: started and stopped by whoever serves the app.
        access: who may ask for what.
        observation: by what this process is watched, if it is.
    """
    app = FastAPI(title="Ironflow", openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    of_workers = WorkerRoutes(node).routes()
    app.router.routes.extend(
        [
            Route("/health", _health, methods=["GET", "HEAD"]),
            Route("/ready", _ready, methods=["GET", "HEAD"]),
            *of_workers,
        ]
    )
    app.add_middleware(Direct, routes=of_workers)
    if observation is not None and observation.metrics is not None:
        _show_metrics(app, observation, observation.metrics)
    mount(app, node, access)
    app.add_exception_handler(IronflowError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unroutable)
    app.add_exception_handler(Exception, _refused)
    return app


def _show_metrics(app: FastAPI, observation: Observation, metrics: Metrics) -> None:
    async def allowed(asked: Asked) -> bool:
        await watcher(Request(asked))
        return True

    shown = Exposition(metrics, observation.backlog, allowed)
    app.router.routes.append(Route("/metrics", shown, methods=["GET", "HEAD"]))
    app.add_middleware(Counted, metrics=metrics)


async def refuse(app: FastAPI) -> None:
    """The node is about to stop: end what is held open, so that each is answered and comes back to another node."""
    node: Node = app.state.node
    node.refuse()
    await app.state.tail.close()


async def _health(request: Request) -> Response:
    """Whether the process lives: that it answers is the answer."""
    return JSONResponse({"status": "ok"})


async def _ready(request: Request) -> Response:
    """Whether work should be sent here: the database answers, the loops make their passes, and nobody stops it."""
    node: Node = request.app.state.node
    missing: list[str] = []
    if node.stopping:
        missing.append("the node is stopping")
    try:
        async with asyncio.timeout(DATABASE_ANSWERS_S):
            await node.store.next_due()
    except TimeoutError:
        missing.append(f"the database has not answered within {DATABASE_ANSWERS_S:g} s")
    except IronflowError as error:
        missing.append(problems.message_of(error))
    missing += [f"the loop {name} has made no pass for too long" for name in node.silent_loops()]
    if not missing:
        return JSONResponse({"status": "ready"})
    return answer(problems.problem(503, "NOT_READY", "; ".join(missing)))


def answer(problem: Problem) -> Response:
    """An answer that is an error."""
    return JSONResponse(problem, problem["status"], problems.headers(problem), problems.MEDIA_TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    return answer(problems.of_error(error))


async def _invalid(request: Request, error: Any) -> Response:
    return answer(problems.of_error(refused(error.errors())))


async def _unroutable(request: Request, error: Any) -> Response:
    status: int = error.status_code
    if status == 401:
        return answer(problems.of_error(Unauthenticated()))
    detail = f"{request.method} {request.url.path}: {error.detail}"
    hint = _NO_PATH if status == 404 else None
    made = answer(problems.problem(status, _CODES.get(status, "HTTP_ERROR"), detail, hint=hint))
    made.headers.update(error.headers or {})
    if status == 405:
        made.headers["Allow"] = allowed(request.app.routes, request.scope)
    return made
