"""`ironflow audit`: who did what, and what recovery did by itself. These rows cannot be switched off."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import completing, output, times
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, find_run, on_backend
from ironflow.cli.database import DbOption, JsonOption
from ironflow.cli.listing import Listing

if TYPE_CHECKING:
    from rich.console import Console


def audit(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]", help="Only what concerns this run.", show_default=False, autocompletion=completing.run
        ),
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
            made = Listing("WHEN", "ACTION", "BY", "RUN", "FIELDS", fold="FIELDS", ids=("RUN",))
            for row in rows:
                about = "" if run is not None else row["run_id"] or ""  # one run: its id would stand in every line
                made.add_row(times.ago(row["at"], now), row["action"], row["actor"], about, _fields(row["fields"]))
            made.print(screen)

        run_id = (await find_run(backend, run)).run_id if run is not None else None
        empty = "the audit log is empty" if run_id is None else "the audit log says nothing of this run"
        output.show(await backend.audits(limit, run_id), as_json=json, empty=empty, draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


def _fields(fields: Mapping[str, Any] | None) -> str:
    """What else an entry tells, without what it does not know: `state=running force=false`."""
    told = {name: value for name, value in (fields or {}).items() if value is not None}
    return "  ".join(f"{name}={value if isinstance(value, str) else _json(value)}" for name, value in told.items())


def _json(value: Any) -> str:
    return jsonlib.dumps(value, ensure_ascii=False, default=str)
