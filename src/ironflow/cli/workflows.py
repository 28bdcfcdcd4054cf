"""`ironflow workflows list|pause|resume`: what workers of this database serve, and whether it is held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import output, times
from ironflow.cli.database import DbOption, JsonOption, actor, on_store
from ironflow.errors import WorkflowUnknown
from ironflow.model.ids import split_tags
from ironflow.store.base import Store

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Workflows: list, pause and resume them.")

NameArgument = Annotated[str, typer.Argument(metavar="WORKFLOW", help="Its name.", show_default=False)]


@app.command("list")
def list_(db: DbOption = None, json: JsonOption = False) -> None:
    """List the workflows that workers have registered here."""

    async def command(store: Store) -> None:
        def draw(screen: Console, rows: list[dict[str, Any]]) -> None:
            now = store.now()
            made = output.table("WORKFLOW", "VERSION", "SEEN", "TAGS", "PAUSED", shrink=("TAGS",))
            for row in rows:
                made.add_row(
                    row["name"],
                    row["version"],
                    times.ago(row["seen_at"], now),
                    ", ".join(row["worker_tags"]),
                    times.ago(row["paused_at"], now),
                )
            screen.print(made)

        rows = [{**row, "worker_tags": split_tags(row["worker_tags"])} for row in await store.workflows()]
        output.show(rows, as_json=json, empty="no worker has registered a workflow here", draw=draw)

    on_store(db, command, as_json=json)


@app.command()
def pause(name: NameArgument, db: DbOption = None, json: JsonOption = False) -> None:
    """Hold a workflow: its runs are created and stay queued; executing ones go on."""
    _switch(name, db, to_pause=True, as_json=json)


@app.command()
def resume(name: NameArgument, db: DbOption = None, json: JsonOption = False) -> None:
    """Let a paused workflow go on."""
    _switch(name, db, to_pause=False, as_json=json)


def _switch(name: str, db: str | None, *, to_pause: bool, as_json: bool) -> None:
    async def command(store: Store) -> None:
        paused = await store.paused_workflows()
        known = {row["name"] for row in await store.workflows()} | set(paused)
        if name not in known:
            raise WorkflowUnknown(
                f"no worker has registered a workflow {name!r} here; known: {', '.join(sorted(known)) or 'none'}"
            )
        change = store.pause_workflow if to_pause else store.resume_workflow
        changed = await change(name, actor())
        if changed and not to_pause:
            store.notify("queue", await store.sessions())
        at = (await store.paused_workflows()).get(name)
        if as_json:
            output.emit({"workflow": name, "changed": changed, **output.plain({"paused_at": at})})
            return
        word = "paused" if to_pause else "not paused"
        output.screen().print(f"{name} {'is now' if changed else 'was already'} {word}")

    on_store(db, command, as_json=as_json, write=True)
