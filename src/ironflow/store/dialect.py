"""Named SQL statements, written once for both databases.

A file under `sql/` holds statements that each open with `-- name: …` and take parameters as `:name`. Where
the databases differ, the difference stands inside the statement: `/*postgres: … */` and `/*sqlite: … */`
are unpacked for that database and vanish for the other. `-- fragment: …` names a piece of text (a list of
columns) that statements include as `{piece}`. Strings, comments, casts (`::`) and dollar quotes are left
alone.

It promises that a statement means the same on both; what it does not do is translate. A reader sees the SQL
that runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

SQLITE = "sqlite"
POSTGRES = "postgres"

_HEAD = re.compile(r"^-- (name|fragment): (\w+)[ \t]*$", re.M)
_TOKEN = re.compile(
    r"'(?:[^']|'')*'"  # a string
    r'|"(?:[^"]|"")*"'  # a quoted name
    r"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$"  # a dollar quote: the body of a PostgreSQL function
    r"|--[^\n]*"
    r"|/\*(?P<dialect>postgres|sqlite):(?P<only>.*?)\*/"
    r"|/\*.*?\*/"
    r"|::"
    r"|:(?P<param>[A-Za-z_]\w*)"
    r"|\{(?P<fragment>\w+)\}",
    re.S,
)


class Statement:
    """One statement in the text of one database.

    `params` are its parameters in the order of their numbers (PostgreSQL) or of their first appearance
    (SQLite, which takes them by name).
    """

    __slots__ = ("name", "params", "text")

    def __init__(self, name: str, text: str, params: tuple[str, ...]) -> None:
        self.name = name
        self.text = text
        self.params = params

    def arguments(self, values: Mapping[str, Any]) -> list[Any]:
        """The values in the order of `params`, for a driver that takes positions.

        Raises:
            KeyError: a parameter has no value.
        """
        return [values[param] for param in self.params]

    def __repr__(self) -> str:
        return f"Statement({self.name}, {', '.join(self.params)})"


def translate(text: str, dialect: str, fragments: Mapping[str, str] | None = None) -> tuple[str, tuple[str, ...]]:
    """The text for one database, and the names of its parameters in order.

    Args:
        text: SQL with `:name` parameters and dialect comments.
        dialect: `sqlite` keeps `:name`; `postgres` numbers `$1`, `$2`, … (one number per name).
        fragments: what `{name}` stands for.

    Raises:
        KeyError: a fragment is not defined.
    """
    params: list[str] = []

    def put(match: re.Match[str]) -> str:
        if match["dialect"] is not None:
            # Unpacked text may itself hold parameters and fragments, so it goes through the same door.
            return _TOKEN.sub(put, match["only"].strip()) if match["dialect"] == dialect else ""
        if match["fragment"] is not None:
            return _TOKEN.sub(put, (fragments or {})[match["fragment"]])
        param = match["param"]
        if param is None:
            return match[0]
        if param not in params:
            params.append(param)
        return f":{param}" if dialect == SQLITE else f"${params.index(param) + 1}"

    return _TOKEN.sub(put, text).strip(), tuple(params)


def parse(text: str, dialect: str) -> dict[str, Statement]:
    """The named statements of a text.

    Raises:
        ValueError: two statements have one name.
    """
    pieces = _HEAD.split(text)[1:]
    # Whole-line comments are for the reader of the file: the one above a statement would end up in the one
    # before.
    plain = [re.sub(r"^\s*--.*\n?", "", body, flags=re.M) for body in pieces[2::3]]
    bodies = list(zip(pieces[0::3], pieces[1::3], plain, strict=True))
    fragments = {name: body.strip() for head, name, body in bodies if head == "fragment"}
    found: dict[str, Statement] = {}
    for head, name, body in bodies:
        if head == "fragment":
            continue
        if name in found:
            raise ValueError(f"two statements are named {name}")
        sql, params = translate(body, dialect, fragments)
        found[name] = Statement(name, sql.rstrip().rstrip(";"), params)
    return found


def load(dialect: str, *files: str) -> dict[str, Statement]:
    """The statements of these files of `sql/` (names without `.sql`); fragments are shared by all of them.

    Raises:
        ValueError: two statements have one name.
    """
    return dict(_loaded(dialect, *files))


@cache
def _loaded(dialect: str, *files: str) -> dict[str, Statement]:
    """Read once in a process: every store, and every part of one, asks for the same files."""
    folder = resources.files("ironflow.store").joinpath("sql")
    text = "\n".join(folder.joinpath(f"{name}.sql").read_text(encoding="utf-8") for name in files)
    return parse(text, dialect)


#: The files whose statements both databases share.
SHARED = ("columns", "reads", "queue", "lanes", "sweeps", "sessions", "operator")
