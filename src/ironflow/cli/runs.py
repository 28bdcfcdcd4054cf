"""`ironflow runs list|get|journal|watch|why`: looking at runs. None of these changes anything."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from ironflow.cli import advice, completing, exits, holding, inputs, output, run_screen, times
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, find_run, on_backend
from ironflow.cli.database import DbOption, JsonLinesOption, JsonOption, RunArgument
from ironflow.cli.listing import Listing
from ironflow.engine import views
from ironflow.engine.why import paused_because
from ironflow.errors import InvalidInput
from ironflow.model import run as states
from ironflow.model.run import RunRow
from ironflow.store.reader import RunFilter

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Runs: start, look at, and steer them.")


@app.command("list")
def list_(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", "-s", help="Only runs in this state; repeatable.", autocompletion=completing.state),
    ] = None,
    workflow: Annotated[
        str | None,
        typer.Option("--workflow", "-w", help="Only runs of this workflow.", autocompletion=completing.workflow),
    ] = None,
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
        told = await backend.journal(view.run_id, 0) if view.row.warnings else []
        run_screen.show(output.screen(), view, told, backend.now())

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def journal(
    run: RunArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonLinesOption = False,
) -> None:
    """Print the journal of a run, one event per line."""

    async def command(backend: Backend) -> None:
        from ironflow.cli.lines import Printer, kind_width

        row = await find_run(backend, run)
        screen = output.screen()
        events = await backend.journal(row.run_id, after)
        printer = Printer(screen, width=kind_width(screen, max((len(event.kind) for event in events), default=0)))
        for event in events:
            if json:
                output.emit(views.event(event))
            else:
                printer.show(event)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def watch(
    run: RunArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events after this seq.")] = 0,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonLinesOption = False,
) -> None:
    """Follow the journal of a run until it ends or is paused; the exit code tells how. Watching never harms the run."""
    where = Where(db, server, key_file)

    async def command(backend: Backend) -> int:
        from ironflow.cli.follow import Progress
        from ironflow.cli.lines import Printer, kind_width

        row = await find_run(backend, run)
        screen, progress = output.screen(), Progress()
        printer = Printer(screen, width=kind_width(screen))
        if row.state == states.PENDING:  # nothing may happen for ever, which would look like a command that hangs
            await advice.tell(backend, where, row.run_id, as_json=json)
        async with aclosing(backend.follow(row.run_id)) as pages:
            async for page in pages:
                for event in page:
                    progress.feed(event)
                    if event.seq <= after:
                        continue
                    if json:
                        output.emit(views.event(event))
                    else:
                        printer.show(event)
                if progress.ended and not page:
                    break
                if progress.state == states.PAUSED and not await backend.journal(row.run_id, progress.view.last_seq):
                    because = paused_because(progress.view.hold, row.run_id)
                    if not json:
                        output.screen(stderr=True).print(f"paused: {because}", style="yellow", soft_wrap=True)
                    break
        return exits.of_state(progress.state)

    on_backend(where, command, as_json=json)


@app.command()
def why(
    run: RunArgument,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Say why a run does not move: every hold, and the earliest time at which it can lift."""
    where = Where(db, server, key_file)

    async def command(backend: Backend) -> None:
        row = await find_run(backend, run)
        found = await backend.holds(row.run_id)
        if json:
            output.emit([views.plain(hold) for hold in found])
            return
        screen, now = output.screen(), backend.now()
        screen.print(f"{row.workflow}  {row.run_id}", output.state_text(row.state))
        holding.show(screen, found, now)
        todo = advice.next_command(where, found)
        if todo is not None:
            screen.print(f"  {todo}", style="dim")

    on_backend(where, command, as_json=json)


# ---- drawing ---------------------------------------------------------------------------------------------


def _states(names: list[str] | None) -> list[str]:
    wrong = [name for name in names or () if name not in states.STATES]
    if wrong:
        raise InvalidInput(f"{wrong[0]!r} is no state of a run", hint=f"States: {', '.join(states.TRANSITIONS)}.")
    return list(names or ())


def _label(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    [label] = inputs.pairs([text], "label").items()
    return label


def _draw_list(screen: Console, rows: list[RunRow], now: int) -> None:
    made = Listing("RUN", "STATE", "WORKFLOW", "CREATED", "TOOK", shrink=("WORKFLOW",), ids=("RUN",))
    for row in rows:
        length = output.took(row, now) if row.ended or row.state in states.OWNED else None
        made.add_row(
            row.run_id,
            output.state_text(row.state),
            row.workflow,
            times.ago(row.created_at, now),
            times.span(length) if length is not None else "",
        )
    made.print(screen)
