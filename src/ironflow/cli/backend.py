"""Where a command works: on a database, or on a server. A command is written once, against :class:`Backend`.

Owns the choice between the two and the finding of the run that a person means. Promises that a command prints the same
and exits the same on either: what differs is behind this interface and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from ironflow.cli.database import answer
from ironflow.errors import InvalidInput, RunNotFound
from ironflow.model.run import RunRow
from ironflow.store.reader import RunFilter

if TYPE_CHECKING:
    from ironflow.context.workflows import Workflow
    from ironflow.engine.starting import Start
    from ironflow.engine.why import Hold
    from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
    from ironflow.model.journal import Event
    from ironflow.runtime.handle import RunView

ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        # No square brackets: where help is shown in colour, they are taken for markup and vanish.
        help="A server instead of a database: http://HOST:9123, with the key in IRONFLOW_API_KEY or --key-file; "
        "without it IRONFLOW_SERVER, unless --db is given.",
        show_default=False,
    ),
]
KeyFileOption = Annotated[
    str | None,
    typer.Option("--key-file", metavar="FILE", help="A file that holds the key for --server.", show_default=False),
]

#: A shorter part of an id would often be unique today and ambiguous tomorrow.
SHORTEST_PART = 4
#: How far back a part of an id is looked for, in runs; a whole id is found however old it is.
LOOK_BACK = 10_000


class Backend(Protocol):
    """What commands ask for. Rows are those of the model, wherever they come from."""

    def now(self) -> int:
        """Milliseconds since 1970, by the clock that the times of rows are told from."""
        ...

    # ---- runs
    async def run(self, run_id: str) -> RunRow | None: ...
    async def get(self, run_id: str) -> RunView: ...

    async def runs(self, filter: RunFilter) -> list[RunRow]:
        """The runs that a filter selects, newest first, up to its limit, however large that is."""
        ...

    async def journal(self, run_id: str, after: int) -> list[Event]: ...
    def follow(self, run_id: str) -> AsyncGenerator[list[Event], None]:
        """Pages of a run's journal as they come; an empty one, or the end, when there is nothing new at the moment.
        Who leaves before the end closes it.
        """
        ...

    async def holds(self, run_id: str) -> list[Hold]: ...
    async def steer(self, run_id: str, verb: str, **options: bool) -> dict[str, Any]:
        """cancel, pause, resume or retry a run; gives `engine.views.steered`."""
        ...

    async def delete(self, row: RunRow) -> dict[str, Any]:
        """Delete a run that has ended, with its journal and all runs below it; gives `engine.views.steered`."""
        ...

    async def create(self, wf: Workflow[Any, Any] | str, input: Any, options: Start) -> tuple[RunRow, bool]:
        """Start a run of a workflow, or of one that is known by its name only; gives whether it is a new one."""
        ...

    # ---- workflows
    async def workflows(self) -> list[dict[str, Any]]:
        """What workers have registered: rows of the store, with their tags as a list."""
        ...

    async def switch(self, workflow: str, *, to_pause: bool) -> dict[str, Any]:
        """Pause or resume a workflow; gives `engine.views.switched`."""
        ...

    # ---- capacity and audit
    async def leases(self) -> list[LeaseRow]: ...
    async def sessions(self) -> list[SessionRow]: ...
    def living(self, sessions: list[SessionRow]) -> list[SessionRow]:
        """Those of them whose processes are not proven to be gone, as far as that can be seen from here."""
        ...

    async def queue(self, limit: int) -> list[QueueRow]: ...
    async def lanes(self) -> list[dict[str, Any]]: ...
    async def stats(self) -> dict[str, Any]:
        """Everything counted, as `engine.views.stats` gives it."""
        ...

    async def audits(self, limit: int, run_id: str | None) -> list[dict[str, Any]]: ...


@dataclass(slots=True)
class Where:
    """What a person said of where a command is to work."""

    db: str | None = None
    server: str | None = None
    key_file: str | None = None

    def on_server(self) -> bool:
        """Whether it is a server: the one that is named, or the environment's where no database is.

        Raises:
            InvalidInput: both are named, or a key for no server.
        """
        if self.db is not None and self.server is not None:
            raise InvalidInput("--db and --server exclude each other", hint="Name the one the command is to work on.")
        found = self.server is not None or (self.db is None and bool(os.environ.get("IRONFLOW_SERVER", "").strip()))
        if self.key_file is not None and not found:
            raise InvalidInput("--key-file is the key for a server", hint="Name the server with --server.")
        return found

    def open(self, *, write: bool = False, make: bool = False) -> AbstractAsyncContextManager[Backend]:
        """Open it. `write`: the command changes something; `make`: a database that is not there is made."""
        if self.on_server():
            from ironflow.cli.on_server import server

            return server(self.server, self.key_file)
        from ironflow.cli.on_database import database

        return database(self.db, write=write, make=make)


def _is_part(run_id: str, text: str, part: str) -> bool:
    """Whether an id begins or ends with a part; where a `…` says which of the two is meant, only that."""
    begins = run_id.startswith(part) and not text.startswith("…")
    return begins or (run_id.endswith(part) and not text.endswith("…"))


def on_backend(
    where: Where, command: Callable[[Backend], Awaitable[int | None]], *, as_json: bool, write: bool = False
) -> None:
    """Open the database or the server, run a command on it, close it, leave with its exit code."""

    async def whole() -> int | None:
        async with where.open(write=write) as backend:
            return await command(backend)

    answer(whole, as_json=as_json)


async def find_run(backend: Backend, text: str) -> RunRow:
    """The run that a person means: by its whole id, or by a beginning or an end of it that no other has.

    Ends count because ids are ordered by time: runs started in one minute share their first eight characters. A table
    that is short of room shows the end behind a `…`, which may be copied with it.

    Raises:
        RunNotFound: none.
        InvalidInput: several, which are listed.
    """
    row = await backend.run(text)
    if row is not None:
        return row
    part = text.strip("…")
    if len(part) < SHORTEST_PART:
        raise RunNotFound(
            f"no run has the id {text!r}",
            hint=f"A part of an id needs at least {SHORTEST_PART} characters; see `ironflow runs list`.",
        )
    rows = await backend.runs(RunFilter(limit=LOOK_BACK))
    found = [one for one in rows if _is_part(one.run_id, text, part)]
    if not found:
        raise RunNotFound(f"no run's id is {text!r}, or begins or ends so")
    if len(found) > 1:
        ids = [one.run_id for one in found]
        listed = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise InvalidInput(
            f"{text!r} means {len(ids)} runs: {listed}",
            hint="Give more characters of the id, from its beginning or its end.",
            details={"run_ids": ids[:100]},
        )
    return found[0]
