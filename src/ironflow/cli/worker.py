"""`ironflow worker`: execute the runs of some workflows until told to leave."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from ironflow.cli import exits, output, times
from ironflow.cli.database import DbOption, answer, settings_for
from ironflow.cli.run import ConcurrencyOption

if TYPE_CHECKING:
    from ironflow.config import Settings
    from ironflow.runtime import Engine

TargetsArgument = Annotated[
    list[str],
    typer.Argument(metavar="TARGET...", help="path/file.py[:name] or pkg.mod[:name].", show_default=False),
]


def worker(
    target: TargetsArgument,
    db: DbOption = None,
    worker_id: Annotated[
        str | None, typer.Option(help="A stable name [default: host-pid].", show_default=False)
    ] = None,
    concurrency: ConcurrencyOption = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="Plain `def` steps that execute here at once.", show_default=False),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Start so many processes under a supervisor that replaces dead ones.",
            show_default=False,
        ),
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(help="What this worker offers; repeatable.", show_default=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per event.", show_default=False)] = False,
) -> None:
    """Work on a database: take queued runs of these workflows and execute them, until SIGTERM or Ctrl-C.

    The first signal drains: nothing new is taken, what executes may finish, the rest is given back. The
    second stops now. Nothing is lost either way.
    """

    async def command() -> int:
        from ironflow.loading import load_all

        settings = settings_for(db, concurrency=concurrency, threads=threads)
        workflows = load_all(target)
        if processes is not None:
            from ironflow.cli.supervisor import supervise

            options = _options(db, concurrency, threads, tag, json)
            return await supervise([*target, *options], processes, worker_id, settings, as_json=json)
        from ironflow.runtime import Engine

        engine = Engine(settings=settings, workflows=workflows.values(), worker_id=worker_id, tags=tuple(tag or ()))
        return await _work(engine, settings, as_json=json)

    answer(command, as_json=json)


def _options(
    db: str | None, concurrency: int | None, threads: int | None, tags: list[str] | None, json: bool
) -> list[str]:
    """The options a child process is given; the database goes by the environment (it may hold a password)."""
    found = ["--json"] if json else []
    if db is not None:
        os.environ["IRONFLOW_DATABASE_URL"] = db
    for name, value in (("--concurrency", concurrency), ("--threads", threads)):
        if value is not None:
            found += [name, str(value)]
    for tag in tags or ():
        found += ["--tag", tag]
    return found


async def _work(engine: Engine, settings: Settings, *, as_json: bool) -> int:
    from ironflow.cli.logs import configure
    from ironflow.cli.stopping import Signals, drain, leave
    from ironflow.cli.supervisor import watch_supervisor

    configure(settings)
    with Signals() as signals:
        watch_supervisor(signals.add)
        async with engine:
            worker = engine.worker
            assert worker is not None
            _say_ready(engine, as_json=as_json)
            await signals.wait(1)
            name, held = worker.session.worker_id, len(worker.segments)
            facts = {"event": "draining", "worker_id": name, "held": held}
            _say(facts, f"worker {name} {_draining(held, settings)}", as_json=as_json)
            orderly = await drain(worker, signals, now_at=2)
            engine.worker = None
    stopped = "stopped" if orderly else "stopped now; what it held was given back"
    facts = {"event": "stopped", "worker_id": name, "orderly": orderly}
    _say(facts, f"worker {name} {stopped}", as_json=as_json)
    code = exits.OK if orderly else exits.INTERRUPTED
    leave(code)
    return code


def _say_ready(engine: Engine, *, as_json: bool) -> None:
    worker = engine.worker
    assert worker is not None
    session = worker.session.row
    names = sorted(engine.workflows)
    facts = {
        "event": "ready",
        "worker_id": session.worker_id,
        "session_id": session.session_id,
        "pid": session.pid,
        "workflows": names,
        "slots": session.slots,
        "database": engine.store.name,
    }
    text = f"worker {session.worker_id} (pid {session.pid}) serves {', '.join(names)} on {engine.store.name}"
    _say(facts, text, as_json=as_json)


def _draining(held: int, settings: Settings) -> str:
    if not held:
        return "leaves; nothing executes here"
    limit = times.span(settings.drain_timeout_ms)
    return f"leaves; {output.count(held, 'run')} may finish within {limit}, another signal stops now"


def _say(facts: dict[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        output.emit(facts)
    else:
        output.screen(stderr=True).print(text, soft_wrap=True)
