"""`ironflow workflows list|pause|resume`: what workers serve, and whether it is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import completing, output, times
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, on_backend
from ironflow.cli.database import DbOption, JsonOption
from ironflow.cli.listing import Listing

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Workflows: list, pause and resume them.")

NameArgument = Annotated[
    str,
    typer.Argument(metavar="WORKFLOW", help="Its name.", show_default=False, autocompletion=completing.workflow),
]


@app.command("list")
def list_(
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List the workflows that workers have registered here."""

    async def command(backend: Backend) -> None:
        def draw(screen: Console, rows: list[dict[str, Any]]) -> None:
            now = backend.now()
            made = Listing("WORKFLOW", "VERSION", "SEEN", "TAGS", "PAUSED", shrink=("TAGS", "WORKFLOW"))
            for row in rows:
                made.add_row(
                    row["name"],
                    row["version"],
                    times.ago(row["seen_at"], now),
                    ", ".join(row["worker_tags"]),
                    times.ago(row["paused_at"], now),
                )
            made.print(screen)

        rows = await backend.workflows()
        output.show(rows, as_json=json, empty="no worker has registered a workflow here", draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def pause(
    name: NameArgument,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Hold a workflow: its runs are created and stay queued; executing ones go on."""
    _switch(name, Where(db, server, key_file), to_pause=True, as_json=json)


@app.command()
def resume(
    name: NameArgument,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Let a paused workflow go on."""
    _switch(name, Where(db, server, key_file), to_pause=False, as_json=json)


#: What is said, by whether it was to be paused and whether that changed anything.
_TOLD = {
    (True, True): "is now paused",
    (True, False): "was already paused",
    (False, True): "is no longer paused",
    (False, False): "was not paused",
}


def _switch(name: str, where: Where, *, to_pause: bool, as_json: bool) -> None:
    async def command(backend: Backend) -> None:
        done = await backend.switch(name, to_pause=to_pause)
        if as_json:
            output.emit(done)
            return
        output.screen().print(name, _TOLD[to_pause, done["changed"]])

    on_backend(where, command, as_json=as_json, write=True)
