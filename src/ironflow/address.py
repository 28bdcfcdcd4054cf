"""Addresses of databases: which forms there are, and what of one may be shown.

One pattern says what a PostgreSQL address looks like, for the reader and for the redaction alike. That is the point of
this module: a password leaks where two parties cut an address differently (an unescaped `/` or `@` in a password moves
half of it into the host, the port or the path), so what does not fit the pattern is neither opened nor shown.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlencode

from ironflow.errors import InvalidSettings

__all__ = ["FORMS", "Postgres", "has_a_form", "not_an_address", "postgres", "redact_url", "sqlite_path"]

FORMS: Final = "use sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://user@host/database"

_HIDDEN: Final = "***"
_HOST: Final = r"(?:\[[0-9A-Fa-f:.%]+\]|[^:,/?#@\[\]\s]*)(?::\d{1,5})?"
_POSTGRES: Final = re.compile(
    rf"""postgres(?:ql)?://
    (?:(?P<user>[^:/?\#@\s]*)(?::(?P<password>[^/?\#@\s]*))?@)?
    (?P<hosts>{_HOST}(?:,{_HOST})*)
    (?P<path>/[^?\#@\s]*)?
    (?:\?(?P<query>[^\#@\s]*))?""",
    re.VERBOSE,
)
_PORT: Final = re.compile(r":(\d+)$")
#: How a connection may be encrypted, in the words of PostgreSQL.
SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_ONE_OF: Final = f"{', '.join(SSL_MODES[:-1])} or {SSL_MODES[-1]}"
_SCHEME: Final = re.compile(r"(sqlite|postgres(?:ql)?)(?:\+\w*)?://")
#: What a parameter may be called whose value tells nobody anything they could log in with.
_HARMLESS: Final = frozenset(
    {"application_name", "connect_timeout", "database", "dbname", "host", "port", "prepare", "service", "sslmode",
     "target_session_attrs", "user"}
)  # fmt: skip
#: The path of a database's file, without the characters that any credentials would need around them.
_BARE_FILE: Final = re.compile(r"[\w./-]+\.(?:db|sqlite3?)", re.ASCII)
#: A word or a path, as what somebody took for an address: with no sign that could set credentials apart from the rest.
_WORD: Final = re.compile(r"(?=.{1,80}\Z)(?:[a-z]{1,16}://)?[\w./-]+", re.ASCII)
#: A path that looks like the rest of another kind of address, put behind the wrong scheme.
_CREDENTIALS: Final = re.compile(r":.*@|(?:pass\w*|pwd|secret|token)\s*=", re.IGNORECASE | re.DOTALL)


class Postgres:
    """A PostgreSQL address, taken apart.

    Attributes:
        text: everything before the query, as the driver takes it.
        shown: the same without the password.
        query: the parameters, decoded, in their order.
    """

    __slots__ = ("query", "shown", "text")

    def __init__(self, text: str, shown: str, query: list[tuple[str, str]]) -> None:
        self.text = text
        self.shown = shown
        self.query = query


def postgres(url: str) -> Postgres:
    """Take a PostgreSQL address apart.

    Raises:
        InvalidSettings: it cannot be read in one way only; nothing of it is repeated.
    """
    parsed = _parse(url)
    if parsed is None:
        problem = (
            "the PostgreSQL address cannot be read (nothing of it is shown: it may hold a password): write "
            "postgresql://user:password@host:port/database, an IPv6 host in [brackets], and / ? # @ % and spaces "
            "in a name or password as %2F %3F %23 %40 %25 %20"
        )
        raise InvalidSettings([problem])
    _check(parsed)
    return parsed


def _check(address: Postgres) -> None:
    """Refuse at once what no server could ever be reached by: a try would look like one that does not answer."""
    hosts = address.text.partition("://")[2].rpartition("@")[2].partition("/")[0].split(",")
    ports = [port[1] for host in hosts if (port := _PORT.search(host)) is not None]
    for key, value in address.query:
        if key == "port":
            ports += [port for port in value.split(",") if port]
        elif key == "sslmode" and value not in SSL_MODES:
            raise InvalidSettings([f"the PostgreSQL address has an sslmode that does not exist: use {_ONE_OF}"])
    if not all(port.isascii() and port.isdecimal() and 1 <= int(port[:9]) <= 65_535 for port in ports):
        raise InvalidSettings(["the PostgreSQL address has a port that does not exist: a port is 1 to 65535"])


def _parse(url: str) -> Postgres | None:
    found = _POSTGRES.fullmatch(url)
    if found is None or not url.isprintable():
        return None
    try:
        query = parse_qsl(found["query"] or "", keep_blank_values=True, strict_parsing=bool(found["query"]))
    except ValueError:
        return None
    text, _, _ = url.partition("?")
    shown = text
    if found["user"] is not None:
        start, at = text.index("://") + 3, text.index("@")
        # An escaped colon, too, is somebody's idea of how a password begins.
        user, *rest = re.split(r":|%3a", text[start:at], maxsplit=1, flags=re.IGNORECASE)
        shown = f"{text[:start]}{user}{f':{_HIDDEN}' if rest else ''}{text[at:]}"
    return Postgres(text, shown, query)


def sqlite_path(url: str) -> str | None:
    """The file that a SQLite address names; None if it is not one."""
    return unquote(url[len("sqlite:///") :]) or None if url.startswith("sqlite:///") else None


def redact_url(url: str) -> str:
    """What of a database address may be shown: in logs, errors and reprs.

    Never a password, however the address is mistyped: a form that is not understood is not shown, because nobody can
    tell which part of it is the secret. Of a parameter the value is shown only if its name is known to be harmless.
    """
    if (path := sqlite_path(url)) is not None:
        return f"sqlite:///{_HIDDEN}" if _CREDENTIALS.search(path) else url
    parsed = _parse(url)
    if parsed is None:
        scheme = _SCHEME.match(url)
        return f"{scheme[1]}://{_HIDDEN}" if scheme is not None else _HIDDEN
    query = [(key, value if key in _HARMLESS else _HIDDEN) for key, value in parsed.query]
    return f"{parsed.shown}?{urlencode(query, safe='/:,*')}" if query else parsed.shown


def has_a_form(url: str) -> bool:
    """Whether a text begins as an address of a kind that can be opened; the rest of it may still be wrong."""
    return sqlite_path(url) is not None or url.startswith(("postgresql://", "postgres://"))


def not_an_address(url: str, origin: str = "") -> InvalidSettings:
    """The error of an address of no known form.

    Args:
        url: what was given.
        origin: where it comes from, in the words of whoever gave it.
    """
    where = f"{origin}: " if origin else ""
    return InvalidSettings([where + _not_an_address(url)])


def _not_an_address(url: str) -> str:
    driver = re.match(r"(sqlite|postgres(?:ql)?)\+\w*://", url)
    if driver is not None:
        return f"a database address names no driver: write {driver[1]}:// instead; {FORMS}"
    if _BARE_FILE.fullmatch(url):
        return f"{url!r} is a file's path, not the address of a database: write sqlite:///{url}"
    return f"{_recognisable(url)!r} is not the address of a database: {FORMS}"


def _recognisable(url: str) -> str:
    """What of an address of no known form may be shown: all but the password of what is written as PostgreSQL's is,
    and a bare word or path; of anything else nothing.
    """
    scheme, mark, rest = url.partition("://")
    if mark and re.fullmatch("[a-z]{1,16}", scheme) and _parse(f"postgresql://{rest}") is not None:
        return redact_url(f"postgresql://{rest}").replace("postgresql", scheme, 1)
    return url if _WORD.fullmatch(url) else redact_url(url)
