"""`ironflow worker`: execute the runs of some workflows until told to leave, on a database or for a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import exits, output, process, stdout, times
from ironflow.cli.backend import KeyFileOption
from ironflow.cli.database import DbOption, answer, hints_for, settings_for
from ironflow.cli.run import ConcurrencyOption
from ironflow.errors import Unauthenticated

if TYPE_CHECKING:
    from ironflow.cli.stopping import Signals
    from ironflow.cli.words import Words
    from ironflow.config import Settings
    from ironflow.context.workflows import Workflow
    from ironflow.errors import IronflowError
    from ironflow.observe.observation import Observation
    from ironflow.worker.worker import Worker

TargetsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TARGET...", help="path/file.py[:name] or pkg.mod[:name].", show_default=False),
]
ServersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="A server instead of a database: http://HOST:9123; repeatable for the nodes of one cluster. The key is in "
        "IRONFLOW_API_KEY or --key-file. Without it IRONFLOW_SERVER, where no --db is given.",
        show_default=False,
    ),
]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Plain `def` steps that execute here at once; without it IRONFLOW_THREADS, or 8.",
        show_default=False,
    ),
]
EventsOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print one JSON object per event on stdout, and nothing else: log records, and what your code prints, go "
        "to stderr. With IRONFLOW_LOG_FORMAT=json the records are JSON, too.",
        show_default=False,
    ),
]
ProcessesOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Start so many processes under a supervisor that replaces dead ones.",
        show_default=False,
    ),
]
TagOption = Annotated[
    list[str] | None,
    typer.Option(
        help="What this worker offers, all of it; repeatable. Without any, the tags that its workflows ask for.",
        show_default=False,
    ),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Show metrics for Prometheus there, without a key; with --processes each takes the next port.",
        show_default=False,
    ),
]


def worker(
    target: TargetsArgument,
    db: DbOption = None,
    server: ServersOption = None,
    key_file: KeyFileOption = None,
    worker_id: Annotated[
        str | None, typer.Option(help="A stable name; without it host-pid.", show_default=False)
    ] = None,
    concurrency: ConcurrencyOption = None,
    threads: ThreadsOption = None,
    processes: ProcessesOption = None,
    tag: TagOption = None,
    metrics_address: MetricsOption = None,
    json: EventsOption = False,
) -> None:
    """Take queued runs of these workflows and execute them, until SIGTERM or Ctrl-C.

    Works on a database, or with --server for a server, which needs no more than its address and a worker key.

    The first signal drains: nothing new is taken, what executes may finish, the rest is given back. The second stops
    now. Nothing is lost either way. A closed terminal drains, too (SIGHUP), except under nohup.
    """

    async def command() -> int:
        from ironflow.cli.words import Words
        from ironflow.loading import load_all

        words = Words.of_this_process()
        stdout.keep(json)
        servers = _servers(db, server, key_file)
        settings = settings_for(
            db, database=not servers, concurrency=concurrency, threads=threads, metrics_address=metrics_address
        )
        workflows = load_all(target)
        if processes is not None:
            from ironflow.cli.supervisor import Reporting, supervise

            options = [*_options(db, concurrency, threads, tag, json), *_servers_options(servers, key_file)]
            reporting = Reporting(servers, _key(key_file), lambda: _key(key_file)) if servers else None
            arguments = [*target, *options]
            return await supervise(arguments, processes, worker_id, settings, as_json=json, reporting=reporting)
        if servers:
            opened = _over_http(servers, _key(key_file), settings, workflows, worker_id, tag, words)
            return await _work(opened, settings, sorted(workflows), worker_id, words, as_json=json)
        with hints_for(db):
            opened = _on_database(settings, workflows, worker_id, tag)
            return await _work(opened, settings, sorted(workflows), worker_id, words, as_json=json)

    # The supervisor only waits for its children.
    answer(command, as_json=json, loop_factory=process.fast_loop() if processes is None else None)


# ---- where it works


def _servers(db: str | None, named: list[str] | None, key_file: str | None) -> list[str]:
    """The servers to work for; none where it works on a database."""
    from ironflow.cli.backend import Where
    from ironflow.client.address import server_url

    if not Where(db, named[0] if named else None, key_file).on_server():
        return []
    return [server_url(text) for text in dict.fromkeys(named)] if named else [server_url()]


def _key(key_file: str | None) -> str:
    from ironflow.client.address import api_key

    key = api_key(key_file)
    if key is None:
        raise Unauthenticated(
            "a worker of a server needs a key, and none was given",
            hint="Put a worker key into IRONFLOW_API_KEY or a --key-file; `ironflow apikey create --worker NAME` makes "
            "one.",
        )
    return key


def _options(
    db: str | None, concurrency: int | None, threads: int | None, tags: list[str] | None, json: bool
) -> list[str]:
    """The options a child process is given; the database goes by the environment (it may hold a password)."""
    found = ["--json"] if json else []
    if db is not None:
        os.environ["IRONFLOW_DATABASE_URL"] = db
        os.environ.pop("IRONFLOW_SERVER", None)
    for name, value in (("--concurrency", concurrency), ("--threads", threads)):
        if value is not None:
            found += [name, str(value)]
    for tag in tags or ():
        found += ["--tag", tag]
    return found


def _servers_options(servers: list[str], key_file: str | None) -> list[str]:
    found = [word for server in servers for word in ("--server", server)]
    return found + (["--key-file", key_file] if key_file is not None else [])


@asynccontextmanager
async def _on_database(
    settings: Settings, workflows: dict[str, Workflow[Any, Any]], worker_id: str | None, tags: list[str] | None
) -> AsyncIterator[Worker]:
    from ironflow.runtime import Engine

    async with Engine(
        settings=settings,
        workflows=workflows.values(),
        worker_id=worker_id,
        tags=tuple(tags or ()),
        metrics_address=settings.metrics_address,
    ) as engine:
        assert engine.worker is not None
        yield engine.worker
        engine.worker = None  # stopped by now; after an error the engine does it


@asynccontextmanager
async def _over_http(
    servers: list[str],
    key: str,
    settings: Settings,
    workflows: dict[str, Workflow[Any, Any]],
    worker_id: str | None,
    tags: list[str] | None,
    words: Words,
) -> AsyncIterator[Worker]:
    from ironflow.engine import guard
    from ironflow.engine.registry import Registry
    from ironflow.remote.worker import remote_worker

    guard.install()
    registry = Registry(wf.spec for wf in workflows.values())
    worker = await remote_worker(
        servers, key, registry, settings, worker_id=worker_id, tags=tuple(tags or ()), supervised=words.supervised()
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(worker.port.close)
        stack.push_async_callback(_observed(worker, settings).close)
        try:
            await worker.start()
            yield worker
        except BaseException:
            await worker.stop(drain_ms=0)
            raise


def _observed(worker: Worker, settings: Settings) -> Observation:
    """Watch a worker over HTTP; its queue is the server's, and is asked for."""
    from ironflow.observe.observation import Observation
    from ironflow.remote.port import HttpPort

    address, port = settings.metrics_address, worker.port
    observation = Observation(port.now, metrics=address is not None)
    worker.observer = observation.observer
    if isinstance(port, HttpPort):
        observation.look_at_queue(port.backlog)
    if address is not None:
        observation.listen(address)
    return observation


# ---- at work


async def _work(
    opened: Any, settings: Settings, names: list[str], worker_id: str | None, words: Words, *, as_json: bool
) -> int:
    from ironflow.cli.logs import configure
    from ironflow.cli.stopping import Signals, drain, leave
    from ironflow.cli.supervisor import watch_supervisor

    with Signals(executes=False) as signals:
        has_supervisor = watch_supervisor(signals.add)
        # Siblings write to the same place, and what befalls one of them often befalls all.
        configure(settings, process=_name(worker_id) if has_supervisor else "")
        async with AsyncExitStack() as stack:
            worker = await _begun(stack.enter_async_context(opened), signals)
            if worker is None:
                output.tell({"event": "stopped", "orderly": True}, "stopped before it began", as_json=as_json)
                return exits.OK
            words.began()
            signals.executes = True
            process.relax_collector()
            _say_ready(worker, names, as_json=as_json)
            await _until_told(worker, signals)
            if worker.refused is not None:
                return await _refused(worker, worker.refused, as_json=as_json)
            name, held = worker.session.worker_id, len(worker.segments)
            facts = {"event": "draining", "worker_id": name, "held": held}
            output.tell(facts, f"worker {name} {_draining(held, settings)}", as_json=as_json)
            orderly = await drain(worker, signals, now_at=2)
    stopped = "stopped" if orderly else "stopped now; what it held was given back"
    facts = {"event": "stopped", "worker_id": name, "orderly": orderly}
    output.tell(facts, f"worker {name} {stopped}", as_json=as_json)
    if orderly and worker.dismissed.is_set():
        words.left()
    code = exits.OK if orderly else exits.INTERRUPTED
    leave(code)
    return code


async def _refused(worker: Worker, error: IronflowError, *, as_json: bool) -> int:
    """The key was taken back, or the database is gone: stop at once, for what executes here could not be recorded."""
    from ironflow.cli.stopping import leave

    await worker.stop(drain_ms=0)
    code = exits.say(error, as_json=as_json)
    leave(code)
    return code


async def _begun(beginning: Coroutine[Any, Any, Worker], signals: Signals) -> Worker | None:
    """The worker, once it has begun; None if a signal came first, for what it works on may be away for long."""
    task, told = asyncio.ensure_future(beginning), asyncio.ensure_future(signals.wait(1))
    await asyncio.wait({task, told}, return_when=asyncio.FIRST_COMPLETED)
    told.cancel()
    if not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None
    return await task


async def _until_told(worker: Worker, signals: Signals) -> None:
    """Return at the first signal, or when somebody wishes that this worker leaves."""
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(signals.wait(1)),
        asyncio.ensure_future(worker.dismissed.wait()),
    ]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


def _name(worker_id: str | None) -> str:
    """What this worker is called, also before it has begun."""
    from ironflow.worker.session import worker_name

    return worker_name(worker_id)


def _say_ready(worker: Worker, names: list[str], *, as_json: bool) -> None:
    session, place = worker.session.row, worker.port.name
    facts = {
        "event": "ready",
        "worker_id": session.worker_id,
        "session_id": session.session_id,
        "pid": session.pid,
        "workflows": names,
        "tags": list(worker.session.tags),
        "slots": session.slots,
        "server" if session.kind == "http" else "database": place,
    }
    offers = f", with tags {', '.join(worker.session.tags)}," if worker.session.tags else ""
    text = f"worker {session.worker_id} (pid {session.pid}) serves {', '.join(names)}{offers} on {place}"
    output.tell(facts, text, as_json=as_json)


def _draining(held: int, settings: Settings) -> str:
    if not held:
        return "leaves; nothing executes here"
    limit = times.span(settings.drain_timeout_ms)
    return f"leaves; {output.count(held, 'run')} may finish within {limit}, another signal stops now"
