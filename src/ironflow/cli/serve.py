"""`ironflow serve`: a node of a cluster. It answers workers and clients over HTTP and drives the loops."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ironflow.cli import exits, output, process, stdout
from ironflow.cli.database import DbOption, JsonOption, answer, hints_for, settings_for
from ironflow.engine.commands import local_user
from ironflow.errors import ConfigError
from ironflow.extras import not_installed

if TYPE_CHECKING:
    from ironflow.cli.stopping import Signals
    from ironflow.config import Settings
    from ironflow.errors import StoreGone
    from ironflow.store.base import Store

log = logging.getLogger("ironflow.server")

#: How long the keys of `--dev` hold, ms: each start makes new ones, and old ones must not pile up for ever.
DEV_KEYS_MS: Final = 7 * 24 * 3_600_000


def serve(
    db: DbOption = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; without it 127.0.0.1.", show_default=False)] = None,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="The port; without it 9123, with 0 any free one.", show_default=False),
    ] = None,
    app: Annotated[
        list[str] | None,
        typer.Option(metavar="TARGET", help="Also execute these workflows here; repeatable.", show_default=False),
    ] = None,
    dev: Annotated[
        bool,
        typer.Option("--dev", help="For development: only this host, and keys are made and shown.", show_default=False),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Serve the HTTP API to workers and clients, until SIGTERM or Ctrl-C.

    Any number of nodes work on one PostgreSQL database; each answers any request. With `--app` the node also executes
    workflows in its own process, so that one command is a whole system. Keys for others than `--dev` are made with
    `ironflow apikey create` on the host that owns the database.
    """

    async def command() -> int:
        stdout.keep(as_json)
        settings = settings_for(db, listen_host=host, listen_port=port)
        if dev:
            _only_this_host(settings.listen_host)
        from ironflow.loading import load_all

        with hints_for(db):
            return await _serve(settings, load_all(app) if app else {}, dev=dev, as_json=as_json)

    answer(command, as_json=as_json, loop_factory=process.fast_loop())


def _only_this_host(host: str) -> None:
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local:
        raise ConfigError(
            f"--dev listens on this host only, and {host} can be reached from others",
            hint="Leave --host out, or leave --dev out and make keys with `ironflow apikey create NAME`.",
        )


async def _serve(settings: Settings, workflows: dict[str, Any], *, dev: bool, as_json: bool) -> int:
    try:
        from ironflow.server.api import DOCUMENT
        from ironflow.server.open_files import raise_limit
        from ironflow.server.serving import bind, serving
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("ironflow"):
            raise
        raise not_installed(f"{error.name}, which a server needs,", "server") from error
    from ironflow.cli.logs import configure
    from ironflow.cli.stopping import Signals, drain, leave
    from ironflow.runtime import Engine

    configure(settings)
    raise_limit(settings.max_streams)
    orderly, engine = True, None
    with bind(settings.listen_host, settings.listen_port) as listener, Signals() as signals:
        async with AsyncExitStack() as stack:
            node = await stack.enter_async_context(serving(settings, settings.database_url, listener, metrics=True))
            if workflows:
                engine = await stack.enter_async_context(
                    Engine(settings=settings, workflows=workflows.values(), observation=node.observation)
                )
            url = _url(listener.getsockname())
            facts = {"event": "ready", "url": url, "openapi": f"{url}{DOCUMENT}", "database": node.store.name}
            facts |= await _dev_keys(node.store) if dev else {}
            process.relax_collector()
            _say_ready({**facts, "workflows": sorted(workflows)}, as_json=as_json)
            await _warn_without_keys(node.store)
            gone = await _until_told(signals, node.store)
            node.refuse()  # before the drain, which may take long: workers go to another node meanwhile
            output.tell({"event": "stopping"}, "stopping", as_json=as_json)
            if engine is not None and engine.worker is not None:
                orderly = await drain(engine.worker, signals, now_at=2)
                engine.worker = None
    output.tell({"event": "stopped", "orderly": orderly}, "stopped", as_json=as_json)
    code = exits.OK if orderly else exits.INTERRUPTED
    if gone is not None:
        code = exits.say(gone, as_json=as_json)
    leave(code)
    return code


async def _until_told(signals: Signals, store: Store) -> StoreGone | None:
    """Return at the first signal, or (with the error) when the database is gone for good."""
    told = asyncio.ensure_future(signals.wait(1))
    waiting: set[asyncio.Future[Any]] = {told, store.gone}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    return store.gone.result() if store.gone.done() else None


async def _warn_without_keys(store: Store) -> None:
    """A node that was started without its database's address makes a new one, and answers, and refuses everybody."""
    if not await store.keys(None):
        log.warning(
            "%s holds no API key, so every request is refused. Make one with `ironflow apikey create NAME` (a worker's "
            "with --worker); or, if this is not the database that was meant, name that with --db or "
            "IRONFLOW_DATABASE_URL.",
            store.name,
        )


async def _dev_keys(store: Store) -> dict[str, str]:
    """New keys for whoever develops here: one for clients, one for workers."""
    from ironflow.model import key as kinds
    from ironflow.server import keys

    made = {}
    for kind, role, name in ((kinds.ORG, "admin", "admin_key"), (kinds.WORKER, None, "worker_key")):
        until = store.now() + DEV_KEYS_MS
        called, by = f"serve --dev {kind}", local_user()
        _, made[name] = await keys.make(store, kind, called, by=by, role=role, expires_at=until)
    return made


def _url(address: Any) -> str:
    host, port = address[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say_ready(facts: dict[str, Any], *, as_json: bool) -> None:
    lines = [f"serving {facts['database']} on {facts['url']}", f"its API is described at {facts['openapi']}"]
    if facts["workflows"]:
        lines.append(f"executes {', '.join(facts['workflows'])}")
    if "admin_key" in facts:
        lines += [
            "keys for development, valid for 7 days and shown only now:",
            f"  clients  export IRONFLOW_SERVER={facts['url']} IRONFLOW_API_KEY={facts['admin_key']}",
            f"  workers  export IRONFLOW_SERVER={facts['url']} IRONFLOW_API_KEY={facts['worker_key']}",
            "  platform `ironflow apikey create --platform NAME` makes one, on the same database",
        ]
    output.tell(facts, "\n".join(lines), as_json=as_json)
