"""The durable half of Ironflow: where journals, queues and leases are kept.

`connect` is the one door. It chooses the store by the address and imports a driver only when it is needed,
so a program on SQLite never loads PostgreSQL's, and an installation without it gets a sentence instead of a
traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from ironflow.config import redact_url
from ironflow.errors import InvalidSettings

if TYPE_CHECKING:
    from ironflow.config import Settings
    from ironflow.store.base import Store

_FORMS = "use sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://user@host/database"


async def connect(
    url: str,
    *,
    settings: Settings | None = None,
    clock: Callable[[], int] | None = None,
    read_only: bool = False,
) -> Store:
    """Open a store, bringing its schema up to date.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute/path.db` or `postgresql://…`.
        settings: of the engine; None takes the defaults.
        clock: SQLite only: milliseconds since 1970 in place of the host's clock (PostgreSQL has its own).
        read_only: refuse every write, and leave the schema alone.

    Raises:
        InvalidSettings: the address has another form, or its driver is not installed.
        StoreUnreachable: nothing answers there.
        StoreTooNew: a newer release of Ironflow has migrated it.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        path = unquote(rest[1:])
        if path == ":memory:":
            raise InvalidSettings([f"{url} would forget every run with its process: {_FORMS}"])
        from ironflow.store.sqlite import open_sqlite

        return await open_sqlite(path, clock=clock, read_only=read_only)
    if separator and scheme in ("postgresql", "postgres"):
        try:
            from ironflow.store.postgres import open_postgres
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise InvalidSettings(
                ["the PostgreSQL driver is not installed: pip install 'ironflow-engine[postgres]'"]
            ) from error
        return await open_postgres(url, settings=settings, clock=clock, read_only=read_only)
    raise InvalidSettings([f"{redact_url(url)!r} is not the address of a database: {_FORMS}"])


__all__ = ["connect"]
