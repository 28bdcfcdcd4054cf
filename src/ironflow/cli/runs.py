"""`ironflow runs list|get|journal|watch|why`: looking at runs. None of these changes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import exits, output, times
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, find_run, on_backend
from ironflow.cli.database import DbOption, JsonOption, RunArgument
from ironflow.engine import views
from ironflow.errors import InvalidInput
from ironflow.model import journal as j
from ironflow.model import run as states
from ironflow.model import step as step_states
from ironflow.model.fold import StepView
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.store.base import RunFilter

if TYPE_CHECKING:
    from rich.console import Console

    from ironflow.runtime.handle import RunView

app = typer.Typer(no_args_is_help=True, help="Runs: start, look at, and steer them.")


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only runs in this state; repeatable.")
    ] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="Only runs of this workflow.")] = None,
    label: Annotated[
        str | None, typer.Option("--label", metavar="KEY=VALUE", help="Only runs with this label.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List runs, newest first."""

    async def command(backend: Backend) -> None:
        chosen = RunFilter(states=_states(state), workflow=workflow, label=_label(label), limit=limit)
        rows = await backend.runs(chosen)
        output.show(rows, as_json=json, empty="no runs", draw=lambda c, found: _draw_list(c, found, backend.now()))

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def get(
    run: RunArgument,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Show a run: its row, its steps with their tries, and its result or error."""

    async def command(backend: Backend) -> None:
        view = await backend.get((await find_run(backend, run)).run_id)
        if json:
            output.emit({**views.run(view.row, view), "worker_routing": view.worker_routing})
            return
        told = _warnings(await backend.journal(view.run_id, 0), view) if view.row.warnings else []
        _draw_run(output.screen(), view, [*told, *_unserved(view)], backend.now())

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def journal(
    run: RunArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Print the journal of a run, one event per line."""

    async def command(backend: Backend) -> None:
        from ironflow.cli.lines import show

        row = await find_run(backend, run)
        screen = output.screen()
        for event in await backend.journal(row.run_id, after):
            if json:
                output.emit(views.event(event))
            else:
                show(screen, event)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def watch(
    run: RunArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Follow the journal of a run until it ends; the exit code tells how. Watching never harms the run."""

    async def command(backend: Backend) -> int:
        from ironflow.cli.follow import Progress
        from ironflow.cli.lines import show

        row = await find_run(backend, run)
        screen, progress = output.screen(), Progress()
        async for page in backend.follow(row.run_id):
            for event in page:
                progress.feed(event)
                if event.seq <= after:
                    continue
                if json:
                    output.emit(views.event(event))
                else:
                    show(screen, event)
            if progress.ended and not page:
                break
        return exits.of_state(progress.state)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def why(
    run: RunArgument,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a run does not move: every hold, and the earliest time at which it can lift."""

    async def command(backend: Backend) -> None:
        row = await find_run(backend, run)
        found = await backend.holds(row.run_id)
        if json:
            output.emit([views.plain(hold) for hold in found])
            return
        screen, now = output.screen(), backend.now()
        screen.print(f"{row.workflow}  {row.run_id}", output.state_text(row.state))
        for hold in found:
            lifts = f"  ({times.ago(hold.until, now)}, {views.iso(hold.until)})" if hold.until else ""
            screen.print(f"  {hold.code}", style="bold", end="")
            screen.print(f"  {hold.message}{lifts}")

    on_backend(Where(db, server, key_file), command, as_json=json)


# ---- drawing ---------------------------------------------------------------------------------------------


def _states(names: list[str] | None) -> list[str]:
    wrong = [name for name in names or () if name not in states.STATES]
    if wrong:
        raise InvalidInput(f"{wrong[0]!r} is no state of a run", hint=f"States: {', '.join(states.TRANSITIONS)}.")
    return list(names or ())


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise InvalidInput(f"{text!r} is no label", hint="Give it as key=value.")
    return key, value


def _draw_list(screen: Console, rows: list[RunRow], now: int) -> None:
    made = output.table("RUN", "STATE", "WORKFLOW", "CREATED", "TOOK", shrink=("WORKFLOW",))
    for row in rows:
        length = output.took(row, now) if row.ended or row.state in states.OWNED else None
        made.add_row(
            row.run_id,
            output.state_text(row.state),
            row.workflow,
            times.ago(row.created_at, now),
            times.span(length) if length is not None else "",
        )
    screen.print(made)


def _warnings(events: list[Event], view: RunView) -> list[str]:
    """What the run warned of since it was started or restarted."""
    told = [str(event.data().get("message")) for event in events if event.kind == j.WARNING]
    return told[len(told) - view.row.warnings :]


def _unserved(view: RunView) -> list[str]:
    """What keeps a queued run from ever being taken, as far as workers were seen lately."""
    routing = view.worker_routing
    if routing is None or routing["workers_eligible"]:
        return []
    none = f"of the {output.count(routing['workers_seen'], 'worker')} connected none could take it"
    return [f"{none if routing['workers_seen'] else 'no worker is connected'} (see `ironflow why`)"]


def _draw_run(screen: Console, view: RunView, warnings: list[str], now: int) -> None:
    from rich.table import Table

    row = view.row
    facts = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(row, view, now):
        facts.add_row(name, value)
    screen.print(facts)
    if view.steps:
        screen.print()
        screen.print(_steps(list(view.steps.values()), now))
    _draw_errors(screen, row, view)
    if warnings:
        screen.print()
    for text in warnings:
        screen.print(f"warning: {text}", style="yellow", soft_wrap=True)
    if row.state in (states.COMPLETED, states.WARNING):
        screen.print()
        screen.print(output.result_text(view.output))


def _draw_errors(screen: Console, row: RunRow, view: RunView) -> None:
    """Below the table, whole and unwrapped: a column has no room for them, and a cut message is no message."""
    last = output.error_text(view.error)
    for step in view.steps.values():
        errors = [one.error for one in step.tries if one.error]
        texts = [f"try {one.number}: {output.error_text(one.error)}" for one in step.tries if one.error]
        if len(texts) < 2:
            texts = [output.error_text(error) for error in errors or ([step.error] if step.error else [])]
        if not texts or texts == [last]:
            continue
        screen.print()
        screen.print(f"{step.name}  {step.step_id.partition(':')[0]}", style="bold")
        for text in texts:
            screen.print(text, style="red", soft_wrap=True)
    if row.state == states.PAUSED:
        from ironflow.engine.why import paused_because

        screen.print()
        screen.print(f"paused: {paused_because(view.hold, row.run_id)}", style="yellow", soft_wrap=True)
    if view.error:
        screen.print()
        screen.print(last, style="red", soft_wrap=True)
        trace = str(view.error.get("traceback", "")).rstrip()
        if trace:
            screen.print(trace, style="dim", soft_wrap=True)
    for text in output.undone_lines(view.undo_errors):
        screen.print()
        screen.print(text, style="red", soft_wrap=True)


def _facts(row: RunRow, view: RunView, now: int) -> list[tuple[str, Any]]:
    length = output.took(row, now) if row.ended or row.state in states.OWNED else None
    found: list[tuple[str, Any]] = [
        ("run", row.run_id),
        ("workflow", f"{row.workflow} (version {row.version})"),
        ("state", output.state_text(row.state, row.reason or "")),
        ("status", row.status_text or ""),
        ("created", f"{times.ago(row.created_at, now)}, {views.iso(row.created_at)}"),
        ("scheduled", views.iso(row.scheduled_at) or ""),
        ("took" if row.ended else "running for", times.span(length) if length is not None else ""),
        ("input", output.result_text(view.input) if view.input is not None else ""),
        ("attempt", str(row.attempt) if row.attempt > 1 else ""),
        ("recovered", output.count(row.lease_recoveries, "time") if row.lease_recoveries else ""),
        ("priority", str(row.priority) if row.priority else ""),
        ("labels", row.labels or ""),
        ("concurrency key", row.concurrency_key or ""),
        ("parent", row.parent_run_id or ""),
    ]
    return [(name, value) for name, value in found if value]


def _steps(steps: list[StepView], now: int) -> Any:
    from rich.text import Text

    made = output.table("STEP", "STATE", "TRIES", "STARTED", "TOOK", "", shrink=("STEP", ""))
    for step in steps:
        first = step.tries[0].started_at if step.tries else None
        length = output.took(step.tries[-1], now) if step.tries else None
        note = f"next {times.ago(step.due_at, now)}" if step.due_at else ""
        made.add_row(
            Text(step.name).append(f"  {step.step_id.partition(':')[0]}", style="dim"),
            output.state_text(step.state),
            str(len(step.tries) or ""),
            times.ago(first, now),
            times.span(length) if length is not None else "",
            note,
        )
        if len(step.tries) > 1:
            for one in step.tries:
                made.add_row(
                    f"  try {one.number}",
                    # What the step does after a failed try is the step's state; the try itself has failed.
                    output.state_text(step_states.FAILED if one.state == step_states.RETRYING else one.state),
                    "",
                    times.ago(one.started_at, now),
                    times.span(output.took(one, now) or 0),
                    "",
                    style="dim",
                )
    return made
