"""Addresses of databases: every form is read or refused, and no form ever shows a password."""

from __future__ import annotations

import asyncio
import string
import traceback

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from ironflow.address import postgres, redact_url, sqlite_path
from ironflow.cli.main import main
from ironflow.config import Settings
from ironflow.errors import InvalidSettings, IronflowError
from ironflow.store import connect

PASSWORD = "s3cr3t-Zq"

#: How people write an address, rightly and wrongly; port 1 has no server, so nothing waits for an answer.
FORMS = (
    "postgresql://bob:{}@localhost:1/x",
    "postgres://bob:{}@localhost:1/x",
    "postgresql://localhost:1/x?user=bob&password={}",
    "postgresql://localhost:1/x?user=bob&passwor%64={}",
    "postgresql://localhost:1/x?user=bob&sslpassword={}",
    "postgresql://localhost:1/x?pass={}",
    "postgresql://bob%3A{}@localhost:1/x",
    "postgresql://bob@corp:{}@localhost:1/x",
    "postgresql://bob:{}@[::1/x",
    "postgresql://bob:{}@[::1]:70000000/x",
    "postgresql://bob:{}@localhost:port/x",
    "postgresql://bob:{}",
    "postgresql://bob/{}@localhost:1/x",
    "postgresql:bob:{}@localhost:1/x",
    "postgresql:/bob:{}@localhost:1/x",
    "postgresql+asyncpg://bob:{}@localhost:1/x",
    "bob:{}@localhost:1/x",
    "bob/{}@localhost:1/x",
    "host=localhost port=1 user=bob password={}",
    "Host=localhost;Username=bob;Password={}",
    "mysql://bob:{}@localhost:1/x",
    "{}://localhost",
    "sqlite://bob:{}@localhost/x",
    "sqlite:///bob:{}@localhost/x",
    "sqlite:////no/such/folder/host=localhost password={}",
)


def everything_said(url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """All that a person can be shown of an address: by the store, by the settings and by the command line."""
    said = [redact_url(url), repr(Settings(database_url=url))]
    for read_only in (True, False):
        try:
            asyncio.run(connect(url, read_only=read_only))
        except IronflowError as error:
            said += [str(error), repr(error), repr(error.details), repr(error.args)]
            said += traceback.format_exception_only(error)
        else:
            raise AssertionError("nothing is there to connect to")
    main(["runs", "list", "--db", url])
    main(["runs", "list", "--json", "--db", url])
    return "\n".join([*said, *capsys.readouterr()])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("password", [PASSWORD, "a/s3cr3t-Zq", "s3cr3t-Zq@b", "1?s3cr3t-Zq", "1#s3cr3t-Zq"])
def test_no_form_of_an_address_shows_its_password(
    form: str, password: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert PASSWORD not in everything_said(form.format(password), capsys)


@given(
    before=st.text(string.printable, max_size=12),
    password=st.text(string.ascii_letters + string.digits, min_size=10, max_size=12),
    around=st.sampled_from(["{}", "{}@", ":{}@", "//u:{}@", "/{}@", "?{}@", "#{}@", "{}/@", "{}?x=1@h", "@{}@"]),
    scheme=st.sampled_from(["", "postgresql://", "postgres:", "sqlite://", "mysql://", "postgresql://u:"]),
    after=st.text(string.printable, max_size=12),
)
@example(before="", password="s3cr3tpass", around=":{}@", scheme="postgresql://u:", after="h/db")
def test_redacting_hides_whatever_stands_where_a_password_can_stand(
    before: str, password: str, around: str, scheme: str, after: str
) -> None:
    url = scheme + before + around.format(password) + after
    shown = redact_url(url)
    if password in shown:
        # Only an address that is read in one way is shown, and in it the text stands where no password stands.
        assert scheme.startswith(("postgresql", "sqlite"))
        if (path := sqlite_path(url)) is not None:
            assert f":{password}@" not in path
        else:
            parsed = postgres(url)
            user, colon, rest = parsed.shown.partition("://")[2].partition("@")[0].partition(":")
            assert not (colon and password in rest and "@" in parsed.shown) or rest == "***"
            assert all(password not in value or value == user for key, value in parsed.query if "pass" in key)


@given(st.text())
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    assume("\x00" not in text)
    for url in (text, f"postgresql://{text}", f"postgresql://u:p@{text}"):
        redact_url(url)
        try:
            postgres(url)
        except InvalidSettings as error:
            assert text not in str(error) or len(text) < 4  # noqa: PT017 - both ends are fine


@pytest.mark.parametrize(("url", "shown"), [
    ("postgresql://u:secret@h:5/db", "postgresql://u:***@h:5/db"),
    ("postgresql://u:@h/db", "postgresql://u:***@h/db"),
    ("postgresql://u:se/cr@et@h/db", "postgresql://***"),
    ("postgresql://h/db?user=u&password=secret&x=1", "postgresql://h/db?user=u&password=***&x=***"),
    ("postgresql://h/db?sslpassword=secret", "postgresql://h/db?sslpassword=***"),
    ("postgresql://u@h/db", "postgresql://u@h/db"),
    ("postgresql://u:secret@[::1]:5432,h2:5433/db", "postgresql://u:***@[::1]:5432,h2:5433/db"),
    ("postgresql://u@/db?host=/var/run/pg&port=1", "postgresql://u@/db?host=/var/run/pg&port=1"),
    ("postgresql+psycopg://u:secret@h/db", "postgresql://***"),
    ("host=h password=secret", "***"),
    ("sqlite:///iron.db", "sqlite:///iron.db"),
    ("sqlite:////var/lib/me@home/iron.db", "sqlite:////var/lib/me@home/iron.db"),
])  # fmt: skip
def test_what_is_shown_of_an_address(url: str, shown: str) -> None:
    assert redact_url(url) == shown


@pytest.mark.parametrize("url", ["postgresql://bob:x@[::1/x", "postgresql://bob:x@h:port/x", "postgresql://a b@h/x"])
def test_an_address_that_cannot_be_read_is_one_clear_error(url: str) -> None:
    with pytest.raises(InvalidSettings, match=r"cannot be read.*write postgresql://user:password@host:port/database"):
        asyncio.run(connect(url))


def test_an_address_of_another_library_is_told_how_to_write_it() -> None:
    with pytest.raises(InvalidSettings, match="names no driver: write postgresql:// instead"):
        asyncio.run(connect("postgresql+asyncpg://u:secret@h/db"))


def test_the_driver_gets_the_password_that_is_not_shown() -> None:
    parsed = postgres("postgresql://u:secret@h/db?sslmode=require")
    assert (parsed.text, parsed.query) == ("postgresql://u:secret@h/db", [("sslmode", "require")])
    assert parsed.shown == "postgresql://u:***@h/db"


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://bob:s3cr3t-Zq@host:99999/x", "a port that does not exist"),
        ("postgresql://bob:s3cr3t-Zq@host:0/x", "a port that does not exist"),
        ("postgresql://bob:s3cr3t-Zq@one:5432,two:65536/x", "a port that does not exist"),
        ("postgresql://bob:s3cr3t-Zq@host/x?port=99999", "a port that does not exist"),
        ("postgresql://bob:s3cr3t-Zq@host/x?port=abc", "a port that does not exist"),
        ("postgresql://bob:s3cr3t-Zq@host/x?sslmode=bogus", "sslmode that does not exist: use disable, allow"),
    ],
)
async def test_what_no_server_could_be_reached_by_is_refused_at_once(url: str, told: str) -> None:
    with pytest.raises(InvalidSettings, match=told) as refused:
        await connect(url)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize("query", ["", "?sslmode=verify-full", "?sslmode=disable&port=5433", "?port=5432,5433"])
def test_every_mode_and_port_that_exists_is_taken(query: str) -> None:
    assert postgres(f"postgresql://[::1]:65535,host:1/x{query}").text == "postgresql://[::1]:65535,host:1/x"
