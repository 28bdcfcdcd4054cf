"""The durable half of Ironflow: where journals, queues and leases are kept.

`connect` is the one door. It chooses the store by the address and imports a driver only when it is needed,
so a program on SQLite never loads PostgreSQL's, and an installation without it gets a sentence instead of a
traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ironflow.address import FORMS, not_an_address, redact_url, sqlite_path
from ironflow.errors import InvalidSettings
from ironflow.extras import not_installed

if TYPE_CHECKING:
    from ironflow.store.base import Store


async def connect(
    url: str,
    *,
    clock: Callable[[], int] | None = None,
    read_only: bool = False,
) -> Store:
    """Open a store, bringing its schema up to date.

    Args:
        url: `sqlite:///relative.db`, `sqlite:////absolute/path.db` or `postgresql://…`.
        clock: SQLite only: milliseconds since 1970 in place of the host's clock (PostgreSQL has its own).
        read_only: refuse every write, and leave the schema alone.

    Raises:
        InvalidSettings: the address has another form, or its driver is not installed.
        StoreUnreachable: nothing answers there.
        StoreTooNew: a newer release of Ironflow has migrated it.
    """
    path = sqlite_path(url)
    if path is not None:
        if path == ":memory:":
            raise InvalidSettings([f"{redact_url(url)} would forget every run with its process: {FORMS}"])
        from ironflow.store.sqlite import open_sqlite

        return await open_sqlite(path, clock=clock, read_only=read_only)
    if url.startswith(("postgresql://", "postgres://")):
        try:
            from ironflow.store.postgres import open_postgres
        except ModuleNotFoundError as error:
            if error.name != "asyncpg":
                raise
            raise not_installed("the PostgreSQL driver (asyncpg)", "postgres") from error
        return await open_postgres(url, clock=clock, read_only=read_only)
    raise not_an_address(url)


__all__ = ["connect"]
