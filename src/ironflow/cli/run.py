"""`ironflow run`: start a run, or go on with the one that is unfinished, and see it to its end.

The same command is the whole recovery procedure: killed in any way and given again, it finds the newest
unfinished run of the same workflow and input in the database and continues it. If that run executes in
another live process, this one watches, and takes over only when the other one has died: being a worker like
any other, it does so by itself.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ironflow.cli import exits, holding, output, stdout, times
from ironflow.cli.choice import Asked, check_fit, chosen, passed_over
from ironflow.cli.database import DbOption, JsonOption, answer, hints_for, say_no_server, settings_for
from ironflow.cli.follow import Progress, events
from ironflow.cli.inputs import InputOption, read_input
from ironflow.cli.stopping import Signals, drain, leave
from ironflow.engine import views
from ironflow.engine.why import paused, paused_because
from ironflow.errors import InvalidInput, IronflowError, RunFailed, unknown_effect
from ironflow.model import journal as j
from ironflow.model import run as states
from ironflow.model import step as steps
from ironflow.model.fold import Folded, fold
from ironflow.model.journal import Event
from ironflow.model.run import RunRow

if TYPE_CHECKING:
    from ironflow.cli.view import View
    from ironflow.config import Settings
    from ironflow.runtime import Engine
    from ironflow.worker.worker import Worker

#: How long a proof of death may take before another process is believed to execute the run, seconds.
OWNER_PROVEN_DEAD_S = 0.5

TargetArgument = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="path/file.py[:name] or pkg.mod[:name].", show_default=False),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--concurrency",
        "-c",
        min=1,
        help="Runs that execute here at once; without it IRONFLOW_CONCURRENCY, or 100.",
        show_default=False,
    ),
]


def run(
    target: TargetArgument,
    input: InputOption = None,
    db: DbOption = None,
    id: Annotated[
        str | None,
        typer.Option("--id", help="The run with this id; started if there is none.", show_default=False),
    ] = None,
    new: Annotated[bool, typer.Option("--new", help="Start another run, even if one is unfinished.")] = False,
    concurrency: ConcurrencyOption = None,
    json: JsonOption = False,
) -> None:
    """Run a workflow to its end, or go on with the unfinished run of the same input.

    The result goes to stdout, everything else to stderr, also what the workflow's own code prints. Ctrl-C, or a closed
    terminal, lets what executes finish and gives the run back; a second Ctrl-C stops now. Run again to resume.
    """

    async def command() -> int:
        if id is not None and new:
            raise InvalidInput("--id and --new exclude each other", hint="--id with a new id starts a run.")
        from ironflow.loading import load_one

        given = read_input(input)
        stdout.keep()
        workflow = load_one(target)
        settings = settings_for(db, concurrency=concurrency)
        say_no_server(db, settings)
        asked = Asked(workflow, given, id, new)
        with hints_for(db):
            return await _Errand(asked, settings, as_json=json).go()

    answer(command, as_json=json)


class _Errand:
    """One `ironflow run`, from the open database to the exit code."""

    def __init__(self, asked: Asked, settings: Settings, *, as_json: bool) -> None:
        from ironflow.cli.view import view_for

        self.asked = asked
        self.settings = settings
        self.as_json = as_json
        self.view: View = view_for(asked.workflow.name, as_json=as_json)
        self.orderly = True

    async def go(self) -> int:
        from ironflow.cli.logs import configure, to_stderr
        from ironflow.runtime import Engine

        configure(self.settings, to_stderr if self.as_json else self.view.say, ends=False)
        with Signals() as signals:
            async with Engine(settings=self.settings, workflows=[self.asked.workflow], own_only=True) as engine:
                run_id, seen = await self._begin(engine)
                with self.view.live():
                    await self._see_through(engine, run_id, seen, signals)
                await self._let_others_finish(engine, signals)
                row = await engine.store.run(run_id)
                assert row is not None
                view = fold(await engine.store.journal(run_id))
        code = self._report(row, view)
        if not self.orderly or code == exits.INTERRUPTED:
            leave(code)
        return code

    async def _begin(self, engine: Engine) -> tuple[str, int]:
        """The run to see through, and the last event of it that happened before this command."""
        asked, name = self.asked, engine.store.name
        row, others = await chosen(engine, asked)
        if row is None:
            handle = await engine.start(asked.workflow, asked.input(), id=asked.id)
            self.view.say(f"run {handle.id} on {name}")
            if others:
                self.view.say(passed_over(asked.workflow.name, others), "dim")
            return handle.id, 0
        events = await engine.store.journal(row.run_id)
        if row.ended:
            self.view.say(f"run {row.run_id} on {name} has ended; this is its result")
            return row.run_id, len(events)
        check_fit(engine, asked.workflow, row)
        engine.take_on(row.run_id)
        self.view.say(f"run {row.run_id} on {name} goes on; {output.count(_kept(events), 'step')} done")
        return row.run_id, len(events)

    async def _see_through(self, engine: Engine, run_id: str, seen: int, signals: Signals) -> None:
        """Show the run until it ends, is paused, or a signal asks this process to leave."""
        progress, wake = Progress(), asyncio.Event()
        told = asyncio.ensure_future(_tell(engine, run_id, wake))
        named = asyncio.ensure_future(self._name_owner(engine, run_id))
        held = asyncio.ensure_future(holding.watch(lambda: engine.why(run_id), progress, self.view.held))
        asked_to_leave = asyncio.ensure_future(signals.wait(1))
        asked_to_leave.add_done_callback(lambda _: wake.set())
        leaving: asyncio.Future[bool] | None = None
        try:
            async for page in events(engine.store, run_id, wake=wake):
                for event in page:
                    progress.feed(event)
                self.view.update(progress, [event for event in page if event.seq > seen])
                if page:
                    continue
                if progress.ended or progress.state == states.PAUSED or (leaving and leaving.done()):
                    break
                if signals.count and leaving is None and engine.worker is not None:
                    self.view.say(_leaving(engine.worker, self.settings))
                    leaving = asyncio.ensure_future(drain(engine.worker, signals, now_at=2))
                    leaving.add_done_callback(lambda _: wake.set())
        finally:
            for task in (told, named, held, asked_to_leave):
                task.cancel()
        if leaving is not None:
            self.orderly = await leaving
            engine.worker = None

    async def _name_owner(self, engine: Engine, run_id: str) -> None:
        # An owner that is dead already is found out within this time, and then there is nothing to watch.
        await asyncio.sleep(OWNER_PROVEN_DEAD_S)
        owner = await _owner(engine, run_id)
        if owner is not None:
            self.view.say(f"worker {owner} executes it; watching, and taking over only if that one dies")

    async def _let_others_finish(self, engine: Engine, signals: Signals) -> None:
        worker = engine.worker
        if worker is not None and worker.segments:
            others = output.count(len(worker.segments), "other run")
            self.view.say(f"letting {others} finish; Ctrl-C gives back what is left")
            self.orderly = await drain(worker, signals, now_at=1)
            engine.worker = None

    # ---- the end

    def _report(self, row: RunRow, view: Folded) -> int:
        over = row.ended or row.state == states.PAUSED
        code = exits.of_state(row.state) if over else exits.INTERRUPTED
        if self.as_json:
            told = {**views.plain(row), "output": view.output, "error": view.error, "undo_errors": view.undo_errors}
            hold = None if view.hold is None else views.plain(paused(view.hold, row.run_id))
            told |= {"hold": hold, "exit": code}
            output.emit({**told, "resumable": True} if code == exits.INTERRUPTED else told)
            return code
        done = sum(step.state == steps.COMPLETED for step in view.steps.values())
        if code == exits.INTERRUPTED:
            self.view.say(f"interrupted; {output.count(done, 'step')} done. Run again to resume.", "yellow")
        elif row.state == states.PAUSED:
            self.view.say(f"paused: {paused_because(view.hold, row.run_id)}", "yellow")
        elif row.state == states.CANCELLED:
            self.view.say("cancelled", "magenta")
            self._report_undone(view)
        elif row.state == states.FAILED:
            self._report_failure(row, view)
        else:
            lasted = times.span((row.ended_at or row.created_at) - row.created_at)
            self.view.say(f"{row.state} in {lasted}, {output.count(done, 'step')}", output.style_of(row.state))
            print(output.result_text(view.output), file=stdout.stream(), flush=True)
        return code

    def _report_failure(self, row: RunRow, view: Folded) -> None:
        error = view.error or {}
        exits.say_text(output.error_code(error), f"run {row.run_id} failed: {output.error_text(error)}")
        trace = str(error.get("traceback", "")).rstrip()
        if trace:
            self.view.say(trace, "dim")
        self._report_undone(view)
        retry = f"ironflow runs retry {row.run_id}"
        if unknown_effect(error):
            print(f"  {RunFailed.advice_unknown}", file=sys.stderr)
        if row.compensating_for is None:
            print(f"  After a fix, `{retry}` keeps the finished steps.", file=sys.stderr)
            return
        undone = "It was undone but for that" if view.undo_errors else "It was undone"
        print(f"  {undone}: after a fix, `{retry} --restart` executes every step again.", file=sys.stderr)

    def _report_undone(self, view: Folded) -> None:
        for text in output.undone_lines(view.undo_errors):
            self.view.say("\n".join(f"  {line}" for line in text.splitlines()), "red")


def _kept(events: list[Event]) -> int:
    """How many steps have been finished whose results count: those of before a restart do not."""
    kept = 0
    for event in events:
        if event.kind == j.STEP_COMPLETED:
            kept += 1
        elif event.kind in (j.RUN_REOPENED, j.RUN_RETRYING) and event.told().get("mode") == "restart":
            kept = 0
    return kept


async def _owner(engine: Engine, run_id: str) -> str | None:
    """The worker of another process that executes the run."""
    own = engine.worker.session.row.session_id if engine.worker is not None else None
    for lease in await engine.store.leases():
        if lease.run_id == run_id and lease.session_id != own:
            for session in await engine.store.sessions():
                if session.session_id == lease.session_id:
                    return f"{session.worker_id} (pid {session.pid} on {session.host})"
            return lease.session_id
    return None


async def _tell(engine: Engine, run_id: str, wake: asyncio.Event) -> None:
    """Wake the view at the very moment at which the run ends in this process."""
    try:
        await engine.handle(run_id).result()
    except IronflowError:
        pass  # how it ended is read from the journal
    finally:
        wake.set()


def _leaving(worker: Worker, settings: Settings) -> str:
    if not worker.segments:
        return "leaving"
    limit = times.span(settings.drain_timeout_ms)
    return f"letting what executes finish, for {limit} at most; once more stops now"
