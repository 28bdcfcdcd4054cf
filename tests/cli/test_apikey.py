"""`ironflow apikey`: the first keys are made beside the database, and shown once."""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.cli.conftest import Cli

from ironflow.server.keys import EVERYWHERE, hash_of
from ironflow.store import connect


@pytest.fixture
def database(cli: Cli) -> Cli:
    """A command line on a database that is there."""

    async def make() -> None:
        await (await connect(cli.url)).close()

    asyncio.run(make())
    return cli


def test_a_key_is_all_of_stdout_and_nowhere_else_again(database: Cli) -> None:
    secret = database("apikey", "create", "ci", "--role", "developer").strip()
    assert re.fullmatch(r"ifkey_[0-9A-Za-z]{43}", secret)
    assert "cannot be shown again" in database.err
    assert secret not in database.err
    for told in (database("apikey", "list"), database("apikey", "list", "--json"), database("audit", "--json")):
        assert secret not in told
        assert hash_of(secret) not in told
    (row,) = database.json("apikey", "list")
    assert (row["name"], row["kind"], row["role"], row["revoked_at"]) == ("ci", "org", "developer", None)


def test_each_kind_of_key_is_what_it_says(database: Cli) -> None:
    made = [
        database.json("apikey", "create", "a", "--role", "admin", "--org", "shop", "--environment", "staging"),
        database.json("apikey", "create", "w", "--worker", "--workflow", "b", "--workflow", "a", "--expires", "+90d"),
        database.json("apikey", "create", "p", "--platform"),
    ]
    assert [one["key"].partition("_")[0] for one in made] == ["ifkey", "ifworker", "ifplatform"]
    assert [(one["org"], one["environment"]) for one in made] == [
        ("shop", "staging"), ("default", "default"), tuple(EVERYWHERE),
    ]  # fmt: skip
    assert made[1]["workflows"] == ["a", "b"]
    assert made[1]["expires_at_ms"] - made[1]["created_at_ms"] == pytest.approx(90 * 86_400_000, abs=60_000)
    assert [one["name"] for one in database.json("apikey", "list", "--org", "shop")] == ["a"]
    assert [one["action"] for one in database.json("audit")] == ["key.create"] * 3


def test_a_revoked_key_is_shown_so(database: Cli) -> None:
    made = database.json("apikey", "create", "ci", "--role", "viewer")
    assert database("apikey", "revoke", made["key_id"]) == f"{made['key_id']} is revoked\n"
    assert database.json("apikey", "revoke", made["key_id"]) == {"key_id": made["key_id"], "changed": False}
    assert "revoked" in database("apikey", "list")
    assert database.json("audit")[0]["action"] == "key.revoke"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "needs a role"),
        (["--role", "boss"], "'boss' is no role"),
        (["--worker", "--role", "admin"], "has no role"),
        (["--worker", "--platform"], "--worker or --platform"),
        (["--role", "viewer", "--workflow", "a"], "bound to workflows"),
        (["--role", "viewer", "--org", "a b"], "organisation"),
        (["--role", "viewer", "--expires", "soon"], "--expires: 'soon' is no time"),
        (["--role", "viewer", "--expires", "2001-01-01T00:00:00Z"], "expired already"),
    ],
)
def test_what_does_not_go_together_is_refused(database: Cli, words: list[str], told: str) -> None:
    database("apikey", "create", "x", *words, code=2)
    assert told in database.err
    assert database.json("apikey", "list") == []


def test_a_key_that_is_not_there_cannot_be_revoked(database: Cli) -> None:
    database("apikey", "revoke", "key_nope", code=2)
    assert "no API key has the id 'key_nope'" in database.err
