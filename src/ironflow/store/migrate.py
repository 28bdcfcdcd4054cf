"""Numbered migrations, forward only, under the lock of the store that runs them.

The database remembers what it was given (`ironflow_migrations`). A database that knows a number which this
code does not was written by a newer Ironflow: it is refused rather than guessed at, because a guess could
break the promises of the newer one. There is no way down: a migration that fails rolls back as a whole, and
old code meets an error instead of a half-known schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from ironflow.errors import StoreCorrupt, StoreError, StoreTooNew, StoreUnreachable
from ironflow.store.dialect import SQLITE, translate

#: Made before anything else; idempotent, so two processes that open an empty database at once both succeed.
BOOKKEEPING = (
    "create table if not exists ironflow_migrations"
    " (version bigint not null primary key, name text not null, applied_at bigint not null)"
)
#: What makes `ironflow_migrations` ours: other tools keep their own numbers in a table of the same name.
BOOKKEEPING_COLUMNS = frozenset({"version", "name", "applied_at"})
APPLIED = "select max(version) from ironflow_migrations"
NAMES = re.compile(r"^(\d{4})_(\w+)\.sql$")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema, in the text of one database."""

    number: int
    name: str
    text: str


def migrations(dialect: str) -> list[Migration]:
    """Every migration this code knows, in order."""
    found = []
    for entry in resources.files("ironflow.store").joinpath("migrations").iterdir():
        match = NAMES.match(entry.name)
        if match is not None:
            text, _ = translate(entry.read_text(encoding="utf-8"), dialect)
            found.append(Migration(int(match[1]), match[2], text))
    return sorted(found, key=lambda migration: migration.number)


def latest() -> int:
    """The number of the newest migration this code knows."""
    names = (entry.name for entry in resources.files("ironflow.store").joinpath("migrations").iterdir())
    return max(int(match[1]) for match in map(NAMES.match, names) if match is not None)


def tables() -> frozenset[str]:
    """Every table that is the engine's own: no transaction of a user may write to one."""
    made = re.findall(r"^create table (\w+)", "\n".join(m.text for m in migrations(SQLITE)), re.M)
    return frozenset({*made, "ironflow_migrations"})


def nothing_there(name: str) -> StoreUnreachable:
    """The error of one who came to read, and came too early or to the wrong place."""
    return StoreUnreachable(
        f"no Ironflow database at {name} yet",
        hint="`ironflow run …`, `worker …`, `serve …`, `runs create …` and `apikey create …` make it; --db or "
        "IRONFLOW_DATABASE_URL names another one.",
    )


def foreign(name: str, found: Iterable[str]) -> StoreCorrupt:
    """The error of a database that another program keeps its tables in: nothing of ours is put beside them unasked."""
    tables = sorted(found)
    shown = ", ".join(tables[:5]) + (f" and {len(tables) - 5} more" if len(tables) > 5 else "")
    return StoreCorrupt(
        f"{name} is not an Ironflow database: another program's tables are in it ({shown}); nothing was changed",
        hint="Point IRONFLOW_DATABASE_URL or --db at an Ironflow database or at a new one.",
        details={"tables": tables[:100]},
    )


def verify(dialect: str, applied: int | None) -> None:
    """For a store that only reads: the schema must be the one this code knows, since it may not be changed from here.

    Raises:
        StoreTooNew: a newer release has been here.
        StoreError: it is older, or there is none.
    """
    if pending(dialect, applied):
        raise StoreError(
            f"the database has schema {applied or 0}, and this release reads schema {latest()}",
            hint="Open it once for writing: that brings the schema up to date.",
        )


def pending(dialect: str, applied: int | None, known: Iterable[Migration] | None = None) -> list[Migration]:
    """What is left to do for a database that has `applied` (None: an empty one).

    Raises:
        StoreTooNew: the database is ahead of this code.
    """
    every = list(migrations(dialect) if known is None else known)
    newest = every[-1].number if every else 0
    if applied is not None and applied > newest:
        raise StoreTooNew(
            f"the database has schema {applied}; this version of Ironflow knows schemas up to {newest}",
            hint="Use the version of Ironflow that wrote it, or a newer one: a schema is never taken back",
        )
    return [migration for migration in every if migration.number > (applied or 0)]
