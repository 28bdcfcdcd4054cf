"""`ironflow runs cancel|pause|resume|retry`: what a person may ask of runs that exist.

Each takes any number of runs and says of each what became of it. The runs are found first, all of them, so
that a slip in the third id is noticed before the first run is touched; after that one refusal does not
keep the others from being carried out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

import typer

from ironflow.cli import exits, output
from ironflow.cli.database import DbOption, JsonOption, actor, find_run, on_store
from ironflow.errors import InvalidInput, IronflowError, ReplayDivergence
from ironflow.model import run as states
from ironflow.model.run import RunRow
from ironflow.store.base import RunFilter, Store

RunsArgument = Annotated[
    list[str],
    typer.Argument(metavar="RUN...", help="Ids of runs, or unambiguous parts of them.", show_default=False),
]
Steer = Callable[[Store, str], Awaitable[bool]]

#: Runs that a bulk command reads at once.
_PAGE = 500


def cancel(
    run: RunsArgument,
    force: Annotated[bool, typer.Option("--force", help="Skip the compensations.")] = False,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """End runs. What they registered to undo is undone first, unless --force."""

    async def steer(store: Store, run_id: str) -> bool:
        from ironflow.engine import commands

        return await commands.cancel(store, run_id, actor(), force=force)

    _on_each(db, run, steer, "already cancelled", as_json=json)


def pause(run: RunsArgument, db: DbOption = None, json: JsonOption = False) -> None:
    """Hold runs where they are; a step that executes is interrupted."""

    async def steer(store: Store, run_id: str) -> bool:
        from ironflow.engine import commands

        return await commands.pause(store, run_id, actor())

    _on_each(db, run, steer, "already paused", as_json=json)


def resume(
    run: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="Ids of runs.", show_default=False)
    ] = None,
    divergence: Annotated[
        bool, typer.Option("--divergence", help="All runs that were paused by a replay divergence.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --divergence: do it.")] = False,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Let paused runs go on. With --divergence, shows which runs first and resumes them with --yes."""
    if divergence and not run:
        _all_diverged(db, yes=yes, as_json=json)
        return

    def check() -> list[str]:
        if divergence:
            raise InvalidInput("--divergence means all such runs; name none beside it", hint="")
        if not run:
            raise InvalidInput("no run was named", hint="Give the ids of runs, or --divergence.")
        return run

    _on_each(db, check, _resume, "not paused", as_json=json)


def retry(
    run: RunsArgument,
    restart: Annotated[bool, typer.Option("--restart", help="Execute every step again.")] = False,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Reopen failed or cancelled runs: finished steps keep their results, failed ones execute again.

    A run whose compensations have run needs --restart: what its finished steps did is undone.
    """

    async def steer(store: Store, run_id: str) -> bool:
        from ironflow.engine import commands

        return await commands.retry(store, run_id, actor(), restart=restart)

    _on_each(db, run, steer, "not ended", as_json=json)


async def _resume(store: Store, run_id: str) -> bool:
    from ironflow.engine import commands

    return await commands.resume(store, run_id, actor())


def _on_each(
    db: str | None, run: list[str] | Callable[[], list[str]], steer: Steer, same: str, *, as_json: bool
) -> None:
    async def command(store: Store) -> int:
        texts = run() if callable(run) else run
        rows = {row.run_id: row for row in [await find_run(store, text) for text in texts]}
        return await _carry_out(store, list(rows), steer, same, as_json=as_json)

    on_store(db, command, as_json=as_json, write=True)


async def _carry_out(store: Store, run_ids: list[str], steer: Steer, same: str, *, as_json: bool) -> int:
    done: list[dict[str, object]] = []
    code = exits.OK
    for run_id in run_ids:
        try:
            changed = await steer(store, run_id)
        except IronflowError as error:
            if len(run_ids) == 1:
                raise
            code = exits.of_error(error)
            refused = {"code": error.code, "message": error.message, "hint": error.hint}
            done.append({"run_id": run_id, "changed": False, "error": refused})
            if not as_json:
                exits.say(error, as_json=False)
            continue
        row = await store.run(run_id)
        state = row.state if row is not None else None
        done.append({"run_id": run_id, "changed": changed, "state": state})
        if not as_json:
            note = "" if changed else f"(nothing changed: {same})"
            output.screen().print(run_id, output.state_text(state or "gone", note))
    if as_json:
        output.emit(done)
    return code


def _all_diverged(db: str | None, *, yes: bool, as_json: bool) -> None:
    async def command(store: Store) -> int | None:
        rows = await _diverged(store)
        if yes:
            return await _carry_out(store, [row.run_id for row in rows], _resume, "", as_json=as_json)
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

    on_store(db, command, as_json=as_json, write=yes)


async def _diverged(store: Store) -> list[RunRow]:
    found: list[RunRow] = []
    before: tuple[int, str] | None = None
    while True:
        chosen = RunFilter(states=[states.PAUSED], reason=ReplayDivergence.code, before=before, limit=_PAGE)
        page = await store.runs(chosen)
        found += page
        if len(page) < _PAGE:
            return found
        before = (page[-1].created_at, page[-1].run_id)
