"""Advice that names commands says to callers of the HTTP API, too, what they can do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.asking import serving
from tests.server.document import operations
from tests.store.build import answer, create

import ironflow
from ironflow.cli.app import command as whole_command
from ironflow.client.problems import classes, error_of
from ironflow.engine.hints import ENDPOINTS, at_a_terminal, endpoint_of, over_http
from ironflow.errors import RunNotFound
from ironflow.model.transition import APPLIED

#: Packages whose texts a server may answer with.
ANSWERED = ("codec", "context", "engine", "model", "server", "store")
NAMED = re.compile(r"`ironflow ([a-z][^`…]*)`")


def commands() -> Iterator[str]:
    """Every command that a text of those packages, or an error's advice, names."""
    source = Path(ironflow.__file__).parent
    for folder in ANSWERED:
        for path in (source / folder).rglob("*.py"):
            for found in NAMED.findall(path.read_text(encoding="utf-8")):
                yield re.sub(r"\{[^}]*\}", "X", found)
    for error in classes().values():
        yield from NAMED.findall(error.advice)


def test_every_command_that_an_answer_may_name_is_in_the_table() -> None:
    found = {*commands()}
    assert {"runs list", "runs get RUN", "apikey list", "apikey create --platform NAME", "runs resume X"} <= found
    for one in found:
        endpoint_of(one)


def test_every_endpoint_of_the_table_exists_and_so_does_every_command() -> None:
    there = {str(one) for one in operations()}
    assert {one.partition(" with ")[0] for one in ENDPOINTS.values() if one is not None} <= there
    group: Any = whole_command()
    for one in ENDPOINTS:
        command = group
        for word in one.split():
            if not word.startswith("-"):
                command = command.commands[word]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("See `ironflow runs list`.", "See `ironflow runs list` (`GET /api/v1/runs`)."),
        ("`ironflow runs retry r 1`", "`ironflow runs retry r 1` (`POST /api/v1/runs/{run_id}/retry`)"),
        (
            "`ironflow runs retry --restart r1` or wait",
            '`ironflow runs retry --restart r1` (`POST /api/v1/runs/{run_id}/retry with {"restart": true}`) or wait',
        ),
        ("run `ironflow doctor`", "run `ironflow doctor`"),
        ("`ironflow apikey create --platform` there", "`ironflow apikey create --platform` there"),
        ("`ironflow dance`", "`ironflow dance`"),
        ("Choose another id.", "Choose another id."),
    ],
)
def test_the_endpoint_is_put_beside_its_command(text: str, told: str) -> None:
    assert over_http(text) == told
    assert at_a_terminal(told) == text


async def test_callers_of_the_api_read_endpoints_in_refusals_and_in_what_holds_a_run(sqlite_url: str) -> None:
    async with serving(sqlite_url) as api:
        key = await api.key()
        missing = await api.ask("GET", "/runs/none", key)
        assert "`ironflow runs list` (`GET /api/v1/runs`)" in missing.json["hint"]
        # A client raises what an engine does.
        assert error_of(404, missing.json, "there").hint == RunNotFound.advice
        assert await answer(api.store, create("r1")) == APPLIED
        assert (await api.ask("POST", "/runs/r1/pause", key)).status == 200
        held = (await api.ask("GET", "/runs/r1", key)).json["hold"]
        assert "(`POST /api/v1/runs/{run_id}/resume`)" in held["message"]
        assert held in (await api.ask("GET", "/runs/r1/why", key)).json
