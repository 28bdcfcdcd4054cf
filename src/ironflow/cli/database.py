"""Opening the database a command works on, and finding the run that a person means.

Commands that only look open it read-only and never create it: a slip in the path must say "there is
nothing", not leave an empty database behind that the next command believes.
"""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeVar

import typer

from ironflow.address import redact_url, sqlite_path
from ironflow.cli import exits
from ironflow.config import Settings
from ironflow.errors import InvalidInput, IronflowError, RunNotFound
from ironflow.model.run import RunRow
from ironflow.store import connect
from ironflow.store.base import RunFilter, Store
from ironflow.store.migrate import nothing_there

T = TypeVar("T")

DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The database: sqlite:///FILE or postgresql://… "
        "[default: IRONFLOW_DATABASE_URL, else sqlite:///ironflow.db]",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.", show_default=False)]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run's id, or a beginning or end of it that no other has.", show_default=False
    ),
]

#: A shorter part of an id would often be unique today and ambiguous tomorrow.
SHORTEST_PART = 4
#: How far back a part of an id is looked for, in runs; a whole id is found however old it is.
LOOK_BACK = 10_000
_PAGE = 500


def settings_for(url: str | None, **overrides: Any) -> Settings:
    """The settings a command works with: its options over the environment and `ironflow.toml`."""
    return Settings.load(database_url=url, **overrides)


@asynccontextmanager
async def opened(url: str | None, *, write: bool = False) -> AsyncIterator[Store]:
    """Open an existing database.

    Raises:
        StoreUnreachable: there is none.
    """
    settings = settings_for(url)
    must_exist(settings.database_url)
    store = await connect(settings.database_url, settings=settings, read_only=not write)
    try:
        yield store
    finally:
        await store.close()


def must_exist(url: str) -> None:
    """Refuse the address of a SQLite file that is not there."""
    from pathlib import Path

    path = sqlite_path(url)
    if path is not None and not Path(path).exists():
        raise nothing_there(redact_url(url))


async def find_run(store: Store, text: str) -> RunRow:
    """The run that a person means: by its whole id, or by a beginning or an end of it that no other has.

    Ends count because ids are ordered by time: runs started in one minute share their first eight characters.

    Raises:
        RunNotFound: none.
        InvalidInput: several, which are listed.
    """
    row = await store.run(text)
    if row is not None:
        return row
    if len(text) < SHORTEST_PART:
        raise RunNotFound(
            f"no run has the id {text!r}",
            hint=f"A part of an id needs at least {SHORTEST_PART} characters; see `ironflow runs list`.",
        )
    found: list[RunRow] = []
    before: tuple[int, str] | None = None
    for _ in range(LOOK_BACK // _PAGE):
        page = await store.runs(RunFilter(before=before, limit=_PAGE))
        found += [one for one in page if one.run_id.startswith(text) or one.run_id.endswith(text)]
        if len(page) < _PAGE:
            break
        before = (page[-1].created_at, page[-1].run_id)
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


def answer(command: Callable[[], Awaitable[int | None]], *, as_json: bool) -> None:
    """Run a command to its end and leave with its exit code; an error of ours is said, not thrown."""

    async def whole() -> int:
        return await command() or exits.OK

    try:
        code = asyncio.run(whole())
    except IronflowError as error:
        code = exits.say(error, as_json=as_json)
    if code:
        raise typer.Exit(code)


def actor() -> str:
    """Who a command is recorded to come from: the user of the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def on_store(
    url: str | None, command: Callable[[Store], Awaitable[int | None]], *, as_json: bool, write: bool = False
) -> None:
    """Open the database, run a command on it, close it, leave with its exit code."""

    async def whole() -> int | None:
        async with opened(url, write=write) as store:
            return await command(store)

    answer(whole, as_json=as_json)
