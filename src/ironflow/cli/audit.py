"""`ironflow audit`: who did what, and what recovery did by itself. These rows cannot be switched off."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import output, times
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, find_run, on_backend
from ironflow.cli.database import DbOption, JsonOption

if TYPE_CHECKING:
    from rich.console import Console


def audit(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Only what concerns this run.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List the audit log, newest first."""

    async def command(backend: Backend) -> None:
        def draw(screen: Console, rows: list[dict[str, Any]]) -> None:
            now = backend.now()
            made = output.table("WHEN", "ACTION", "BY", "RUN", "FIELDS", shrink=("FIELDS",))
            for row in rows:
                fields = jsonlib.dumps(row["fields"], ensure_ascii=False, default=str) if row["fields"] else ""
                made.add_row(times.ago(row["at"], now), row["action"], row["actor"], _short(row["run_id"], run), fields)
            screen.print(made)

        run_id = (await find_run(backend, run)).run_id if run is not None else None
        empty = "the audit log is empty" if run_id is None else "the audit log says nothing of this run"
        output.show(await backend.audits(limit, run_id), as_json=json, empty=empty, draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


def _short(run_id: str | None, chosen: str | None) -> str:
    """The end of an id, which tells runs apart; nothing where all rows are of one run."""
    if run_id is None or chosen is not None:
        return ""
    return run_id if len(run_id) <= 12 else f"…{run_id[-12:]}"
