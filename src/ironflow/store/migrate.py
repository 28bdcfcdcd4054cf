"""Numbered migrations, forward only, under the lock of the store that runs them.

The database remembers what it was given (`schema_migrations`). A database that knows a number which this
code does not was written by a newer Ironflow: it is refused rather than guessed at, because a guess could
break the promises of the newer one. There is no way down: a migration that fails rolls back as a whole, and
old code meets an error instead of a half-known schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

from ironflow.errors import StoreTooNew
from ironflow.store.dialect import SQLITE, translate

#: Made before anything else; idempotent, so two processes that open an empty database at once both succeed.
BOOKKEEPING = (
    "create table if not exists schema_migrations"
    " (version bigint not null primary key, name text not null, applied_at bigint not null)"
)
APPLIED = "select max(version) from schema_migrations"
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
    return frozenset({*made, "schema_migrations"})


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
            hint="use the version of Ironflow that wrote it, or a newer one: a schema is never taken back",
        )
    return [migration for migration in every if migration.number > (applied or 0)]
