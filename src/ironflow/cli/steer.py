"""`ironflow runs cancel|pause|resume|retry`: what a person may ask of runs that exist.

Each takes any number of runs and says of each what became of it. The runs are found first, all of them, so
that a slip in the third id is noticed before the first run is touched; after that one refusal does not
keep the others from being carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import typer

from ironflow.cli import advice, completing, exits, output
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, find_run, on_backend
from ironflow.cli.database import DbOption, JsonOption
from ironflow.errors import InvalidInput, IronflowError, ReplayDivergence
from ironflow.model import run as states
from ironflow.store.reader import RunFilter

RunsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Ids of runs, or unambiguous parts of them.",
        show_default=False,
        autocompletion=completing.run,
    ),
]

#: More runs than there are: a bulk command means all of them.
_ALL = 1_000_000_000


def cancel(
    run: RunsArgument,
    force: Annotated[bool, typer.Option("--force", help="Skip the compensations.")] = False,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """End runs. What they registered to undo is undone first, unless --force."""

    _on_each(Where(db, server, key_file), run, "cancel", "already cancelled", as_json=json, force=force)


def pause(
    run: RunsArgument,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Hold runs where they are: no further step begins.

    A body that executes right now goes on to its end in its worker, and its result counts only if that worker's process
    still lives at the resume and takes the run again. Elsewhere the step counts as cut off, as after a crash.
    """

    _on_each(Where(db, server, key_file), run, "pause", "already paused", as_json=json)


def resume(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Ids of runs.", show_default=False, autocompletion=completing.run),
    ] = None,
    divergence: Annotated[
        bool, typer.Option("--divergence", help="All runs that were paused by a replay divergence.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --divergence: do it.")] = False,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Let paused runs go on. With --divergence, shows which runs first and resumes them with --yes."""
    where = Where(db, server, key_file)
    if divergence and not run:
        _all_diverged(where, yes=yes, as_json=json)
        return

    def check() -> list[str]:
        if divergence:
            raise InvalidInput("--divergence means all such runs; name none beside it", hint="")
        if not run:
            raise InvalidInput("no run was named", hint="Give the ids of runs, or --divergence.")
        return run

    _on_each(where, check, "resume", "not paused", as_json=json)


def retry(
    run: RunsArgument,
    restart: Annotated[
        bool, typer.Option("--restart", help="Execute every step again; the numbers of their tries go on counting.")
    ] = False,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Reopen failed or cancelled runs: finished steps keep their results, failed ones execute again.

    A run whose compensations have run needs --restart: what its finished steps did is undone.
    """

    _on_each(Where(db, server, key_file), run, "retry", "not ended", as_json=json, restart=restart)


def _on_each(
    where: Where, run: list[str] | Callable[[], list[str]], verb: str, same: str, *, as_json: bool, **options: bool
) -> None:
    async def command(backend: Backend) -> int:
        texts = run() if callable(run) else run
        rows = {row.run_id: row for row in [await find_run(backend, text) for text in texts]}
        code = await _carry_out(backend, list(rows), verb, same, as_json=as_json, **options)
        if code == exits.OK and verb in ("resume", "retry"):
            await advice.tell(backend, where, next(iter(rows)), as_json=as_json)
        return code

    on_backend(where, command, as_json=as_json, write=True)


async def _carry_out(
    backend: Backend, run_ids: list[str], verb: str, same: str, *, as_json: bool, **options: bool
) -> int:
    return await carry_out(run_ids, lambda run_id: backend.steer(run_id, verb, **options), same, as_json=as_json)


async def carry_out(
    run_ids: list[str], act: Callable[[str], Awaitable[dict[str, Any]]], same: str, *, as_json: bool
) -> int:
    """Do one thing to each of these runs, and say of each what became of it.

    Args:
        run_ids: their ids.
        act: does it to one; gives `engine.views.steered`.
        same: what to say of a run that was so already.
        as_json: say it as one JSON array.

    Returns:
        the exit code: of the last refusal, if any. Of a single run, the refusal is raised.
    """
    done: list[dict[str, Any]] = []
    code = exits.OK
    for run_id in run_ids:
        try:
            became = await act(run_id)
        except IronflowError as error:
            if len(run_ids) == 1:
                raise
            code = exits.of_error(error)
            refused = {"code": error.code, "message": error.message, "hint": error.hint}
            done.append({"run_id": run_id, "changed": False, "error": refused})
            if not as_json:
                exits.say(error, as_json=False)
            continue
        done.append(became)
        if not as_json:
            note = "" if became["changed"] else f"(nothing changed: {same})"
            output.screen().print(run_id, output.state_text(became["state"] or "deleted", note))
    if as_json:
        output.emit(done)
    return code


def _all_diverged(where: Where, *, yes: bool, as_json: bool) -> None:
    async def command(backend: Backend) -> int | None:
        diverged = RunFilter(states=[states.PAUSED], reason=ReplayDivergence.code, limit=_ALL)
        rows = await backend.runs(diverged)
        if yes:
            return await _carry_out(backend, [row.run_id for row in rows], "resume", "", as_json=as_json)
        if as_json:
            output.emit({"count": len(rows), "applied": False, "run_ids": [row.run_id for row in rows]})
            return None
        screen = output.screen()
        for row in rows:
            screen.print(row.run_id, row.workflow)
        what = f"{output.count(len(rows), 'run')} {'is' if len(rows) == 1 else 'are'}"
        tail = "; add --yes to resume" if rows else ""
        screen.print(f"{what} paused by a replay divergence{tail}", style="bold")
        return None

    on_backend(where, command, as_json=as_json, write=yes)
