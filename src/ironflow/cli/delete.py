"""`ironflow runs delete`: remove runs that have ended, after asking.

The question is asked outside of the event loop, in which Ctrl-C would not be heard while somebody thinks about it. So
the runs are looked up twice, and whatever has happened to them in between is refused by the deletion itself.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ironflow.cli import exits, output
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, find_run, on_backend
from ironflow.cli.database import DbOption, JsonOption
from ironflow.cli.listing import Listing
from ironflow.cli.steer import RunsArgument, carry_out
from ironflow.errors import InvalidInput
from ironflow.model.run import RunRow


def delete(
    run: RunsArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Delete runs that have ended, each with its journal and all runs below it. Asks first, unless --yes.

    Nothing brings them back. The audit log keeps that they were deleted, and by whom. A server wants an admin's key.
    """
    where = Where(db, server, key_file)
    if not yes:
        _ask(where, run, as_json=json)

    async def command(backend: Backend) -> int:
        rows = await _rows(backend, run)
        return await carry_out(list(rows), lambda run_id: backend.delete(rows[run_id]), "", as_json=json)

    on_backend(where, command, as_json=json, write=True)


async def _rows(backend: Backend, texts: list[str]) -> dict[str, RunRow]:
    """The runs that were named, by their ids; each once."""
    return {row.run_id: row for row in [await find_run(backend, text) for text in texts]}


def _ask(where: Where, texts: list[str], *, as_json: bool) -> None:
    """Show the runs and leave the command, unless somebody wants it."""
    found: list[RunRow] = []

    async def look(backend: Backend) -> None:
        found.extend((await _rows(backend, texts)).values())
        if as_json or not sys.stdin.isatty():
            many = output.count(len(found), "run")
            raise InvalidInput(f"{many} would be deleted, and nobody is asked here", hint="Add --yes to delete.")

    on_backend(where, look, as_json=as_json)
    said = output.screen(stderr=True)
    listing = Listing("RUN", "STATE", "WORKFLOW", shrink=("WORKFLOW",), ids=("RUN",))
    for row in found:
        listing.add_row(row.run_id, output.state_text(row.state), row.workflow)
    listing.print(said)
    what = "this run with its journal" if len(found) == 1 else f"these {len(found):,} runs with their journals"
    if not typer.confirm(f"Delete {what}, and all runs below?", err=True):
        said.print("nothing was deleted", style="dim")
        raise typer.Exit(exits.USAGE)
