"""Opening the database a command works on, and ending the command.

Commands that only look open it read-only and never create it: a slip in the path must say "there is
nothing", not leave an empty database behind that the next command believes.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any, Final, TypeVar

import typer

from ironflow.address import has_a_form, not_an_address, redact_url, sqlite_path
from ironflow.cli import completing, exits
from ironflow.cli.output import visible
from ironflow.config import Settings
from ironflow.errors import IronflowError, StoreError
from ironflow.store import connect
from ironflow.store.base import Store
from ironflow.store.migrate import nothing_there

T = TypeVar("T")

_VARIABLE: Final = "IRONFLOW_DATABASE_URL"
#: How hints call what names a database: they are made where nobody knows of a command line, or of another name.
_NAMED_BY: Final = re.compile(rf"--db or {_VARIABLE}|{_VARIABLE}(?: or --db)?")

DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        # No square brackets: where help is shown in colour, they are taken for markup and vanish.
        help="The database: sqlite:///FILE or postgresql://…; without it IRONFLOW_DATABASE_URL, or "
        "sqlite:///ironflow.db.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON for programs.", show_default=False)]
JsonLinesOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object per line, for programs.", show_default=False)
]
RunArgument = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run's id, or a beginning or end of it that no other has.",
        show_default=False,
        autocompletion=completing.run,
    ),
]


def settings_for(url: str | None, *, database: bool = True, **overrides: Any) -> Settings:
    """The settings a command works with: its options over the environment and `ironflow.toml`.

    Args:
        url: what `--db` was given.
        database: the command will open the database; else its address does not matter.
        overrides: as of `Settings.load`.

    Raises:
        InvalidSettings: something cannot be used; of an address, it is said who gave it.
    """
    settings = Settings.load(database_url=url, **overrides)
    if database and not has_a_form(settings.database_url):
        raise not_an_address(settings.database_url, _origin(url))
    return settings


def say_no_server(url: str | None, settings: Settings) -> None:
    """Say which database a command works on that never asks a server, where the environment names one: most other
    commands would ask that.

    Args:
        url: what `--db` was given: who names a database means it.
        settings: the settings it works with.
    """
    if url is None and os.environ.get("IRONFLOW_SERVER", "").strip():
        told = f"works on the database {redact_url(settings.database_url)}, and not on the server of IRONFLOW_SERVER"
        print(visible(told), file=sys.stderr)


def _origin(url: str | None) -> str:
    """What named the database that a command works on. `url`: what `--db` was given."""
    if url is not None:
        return "--db"
    if os.environ.get(_VARIABLE, "").strip():
        return _VARIABLE
    return "ironflow.toml" if Settings.load().database_url != Settings().database_url else f"--db or {_VARIABLE}"


@contextmanager
def hints_for(url: str | None) -> Iterator[None]:
    """Around what opens a database: the hint of an error names what named the database, and nothing that did not.

    Args:
        url: what `--db` was given. Without it, the variable or `ironflow.toml`; where nothing did, what could.
    """
    try:
        yield
    except StoreError as error:
        error.hint = _NAMED_BY.sub(_origin(url), error.hint or "") or None
        raise


@asynccontextmanager
async def opened(url: str, *, write: bool = False, make: bool = False) -> AsyncIterator[Store]:
    """Open a database.

    Args:
        url: its address.
        write: the command changes something.
        make: it does, and a database that is not there is made.

    Raises:
        StoreUnreachable: there is none, and `make` does not say to make one.
    """
    if not make:
        _must_exist(url)
    store = await connect(url, read_only=not (write or make))
    try:
        yield store
    finally:
        await store.close()


def _must_exist(url: str) -> None:
    """Refuse the address of a SQLite file that is not there."""
    from pathlib import Path

    path = sqlite_path(url)
    if path is not None and not Path(path).exists():
        raise nothing_there(redact_url(url))


def answer(
    command: Callable[[], Awaitable[int | None]],
    *,
    as_json: bool,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> None:
    """Run a command to its end and leave with its exit code; an error of ours is said, not thrown."""

    async def whole() -> int:
        return await command() or exits.OK

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            code = runner.run(whole())
    except IronflowError as error:
        code = exits.say(error, as_json=as_json)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; the flush at exit must not complain about it either. Said here: the
        # parser above would end the process with 1, which is what a failed run ends with.
        exits.give_up_output()
        code = exits.BROKEN_PIPE
    if code:
        raise typer.Exit(code)


def on_store(
    url: str | None,
    command: Callable[[Store], Awaitable[int | None]],
    *,
    as_json: bool,
    write: bool = False,
    make: bool = False,
) -> None:
    """Open the database (`make`: one that is not there is made), run a command on it, leave with its exit code."""

    async def whole() -> int | None:
        settings = settings_for(url)
        say_no_server(url, settings)
        with hints_for(url):
            async with opened(settings.database_url, write=write, make=make) as store:
                return await command(store)

    answer(whole, as_json=as_json)
