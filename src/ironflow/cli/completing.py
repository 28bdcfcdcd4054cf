"""What the Tab key offers: states, names of workflows and ids of runs, of the database that the line names so far.

Promises that pressing it is never an error and never a wait: what the database has not told in time is not offered, a
server is not asked at all (its answers need a key and a network), and nothing is written or made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import typer

from ironflow.model import run as states

if TYPE_CHECKING:
    from ironflow.store.base import Store

#: How long the answer of a database is waited for, seconds; a shell draws its line again within a second in all.
WAIT_S: Final = 0.3
#: Runs that are looked at, newest first, and ids that are offered of them.
LOOKED_AT, OFFERED = 500, 50


def state(incomplete: str) -> list[str]:
    """States of runs."""
    return [name for name in states.TRANSITIONS if name.startswith(incomplete)]


def workflow(ctx: typer.Context, incomplete: str) -> list[str]:
    """Workflows that workers have registered."""

    async def look(store: Store) -> list[str]:
        return sorted(row["name"] for row in await store.workflows())

    return [name for name in _asked(ctx, look) if name.startswith(incomplete)]


def run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the newest runs that begin so, or that end so: people read the end of an id in a list."""

    async def look(store: Store) -> list[str]:
        from ironflow.store.reader import RunFilter

        return [row.run_id for row in await store.runs(RunFilter(limit=LOOKED_AT))]

    ids = _asked(ctx, look)
    found = [one for one in ids if one.startswith(incomplete)] or [one for one in ids if one.endswith(incomplete)]
    return found[:OFFERED]


def _asked(ctx: typer.Context, look: Callable[[Store], Awaitable[list[str]]]) -> list[str]:
    """What the database of a command tells; nothing if there is none, or it does not answer at once."""
    import logging

    params: dict[str, Any] = ctx.params
    if params.get("server") or (not params.get("db") and os.environ.get("IRONFLOW_SERVER", "").strip()):
        return []
    logging.disable()  # a warning would be written into the line that is being typed

    async def whole() -> list[str]:
        from ironflow.cli.database import opened, settings_for

        async with asyncio.timeout(WAIT_S), opened(settings_for(params.get("db")).database_url) as store:
            return await look(store)

    try:
        return asyncio.run(whole())
    except Exception:  # whatever is wrong there: the command itself says it
        return []
    finally:
        logging.disable(logging.NOTSET)
