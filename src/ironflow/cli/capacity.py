"""`ironflow capacity leases|sessions|queue|lanes|stats`: who works, who holds what, and what waits for
a slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import output, times
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where, on_backend
from ironflow.cli.database import DbOption, JsonOption
from ironflow.cli.listing import Listing
from ironflow.model import run as states
from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
from ironflow.model.ids import split_route, split_routes
from ironflow.model.routing import Serves

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Workers, leases, the queue and the lanes.")

LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]


@app.command()
def leases(
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List the leases: which session executes which run, and until when it may without renewing."""

    async def command(backend: Backend) -> None:
        def draw(screen: Console, rows: list[LeaseRow]) -> None:
            now = backend.now()
            made = Listing("RUN", "SEQ", "SINCE", "EXPIRES", "SESSION", ids=("SESSION", "RUN"))
            for row in rows:
                since, until = times.ago(row.acquired_at, now), times.ago(row.expires_at, now)
                made.add_row(row.run_id, str(row.execution_seq), since, until, row.session_id)
            made.print(screen)

        output.show(await backend.leases(), as_json=json, empty="no leases: nothing executes", draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def sessions(
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List the live worker processes with their free slots, their tags and what they serve.

    One that is `gone` has died on this host a moment ago: it is listed until somebody has taken back what it held.
    """

    async def command(backend: Backend) -> None:
        def draw(screen: Console, rows: list[SessionRow]) -> None:
            now, live = backend.now(), {one.session_id for one in backend.living(rows)}
            heads = ("WORKER", "HOST", "PID", "FREE", "BEAT", "TAGS", "WORKFLOWS")
            made = Listing(*heads, shrink=("WORKFLOWS", "HOST", "TAGS"))
            for row in rows:
                free = "leaves" if row.draining else f"{row.credits}/{row.slots}"
                free = free if row.session_id in live else "gone"
                names = ", ".join(map(_route, split_routes(row.routes)))
                tags = ", ".join(Serves.from_json(row.scope, row.serves).tags)
                beat = times.ago(row.heartbeat_at, now)
                made.add_row(row.worker_id, row.host, str(row.pid), free, beat, tags, names)
            made.print(screen)

        output.show(await backend.sessions(), as_json=json, empty="no worker is connected", draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def queue(
    limit: LimitOption = 100,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List the dispatch queue in the order of handing out."""

    async def command(backend: Backend) -> None:
        def draw(screen: Console, rows: list[QueueRow]) -> None:
            now = backend.now()
            made = Listing("RUN", "STATUS", "PRIO", "ELIGIBLE", "ROUTE", "", shrink=("", "ROUTE"), ids=("RUN",))
            for row in rows:
                note = row.blocked_lane or row.reserved_by or ""
                when = "now" if row.eligible_at <= now else times.ago(row.eligible_at, now)
                made.add_row(row.run_id, row.status, str(row.priority), when, _route(row.route), note)
            made.print(screen)

        output.show(await backend.queue(limit), as_json=json, empty="the queue is empty", draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def lanes(
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """List the lanes in use: how many runs execute in each, and how many it holds back."""

    async def command(backend: Backend) -> None:
        def draw(screen: Console, rows: list[dict[str, Any]]) -> None:
            made = Listing("LANE", "LIMIT", "EXECUTING", "RESERVED", "BLOCKED", shrink=("LANE",))
            for row in rows:
                made.add_row(row["lane"], *(str(row[n]) for n in ("lane_limit", "executing", "reserved", "blocked")))
            made.print(screen)

        output.show(await backend.lanes(), as_json=json, empty="no lane is in use", draw=draw)

    on_backend(Where(db, server, key_file), command, as_json=json)


@app.command()
def stats(
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Count runs by state, slots, leases and queued segments."""

    async def command(backend: Backend) -> None:
        facts = await backend.stats()
        if json:
            output.emit(facts)
            return
        screen = output.screen()
        made = Listing("STATE", "RUNS")
        for state in states.TRANSITIONS:
            if facts["runs"].get(state):
                made.add_row(output.state_text(state), f"{facts['runs'][state]:>6,}")
        if made:
            made.print(screen)
            screen.print()
        slots, due = facts["slots"], facts["next_due_at_ms"]
        counted = f"workers {facts['workers']}   slots {slots['free']} of {slots['total']} free   "
        screen.print(f"{counted}leases {facts['leases']}   queued {facts['queued']}")
        if due is not None:
            screen.print(f"next due {times.ago(due, backend.now())}", style="dim")

    on_backend(Where(db, server, key_file), command, as_json=json)


def _route(route: str) -> str:
    """A routing class for people: the workflow, its version where that is not the first, and the tags it asks for."""
    workflow, version, tags, _ = split_route(route)
    name = workflow if version in ("", "1") else f"{workflow} {version}"
    return f"{name} [{', '.join(sorted(tags))}]" if tags else name
