"""A SQLite file that is deleted or replaced under processes that work on it: each ends with 5 and says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, eventually
from tests.store.test_sqlite_file import Harm, deleted, replaced, without_log

Started = Callable[[list[str]], Popen[str]]
GONE = "iron.db was deleted, moved or replaced"


def ready(running: Popen[str]) -> None:
    assert running.stdout is not None
    assert json.loads(running.stdout.readline())["event"] == "ready"


def assert_it_gives_up(running: Popen[str]) -> None:
    """Within seconds, by itself."""
    out, told = running.communicate(timeout=20)
    assert running.returncode == 5, (out, told)
    assert GONE in told
    assert "STORE_GONE" in out + told
    assert "Traceback" not in told


@pytest.mark.parametrize("harm", [deleted, replaced, without_log])
def test_an_idle_worker_ends(cli: Cli, started: Started, tmp_path: Path, harm: Harm) -> None:
    worker = started(["worker", str(cli.flows), "--db", cli.url, "--json"])
    ready(worker)
    harm(tmp_path / "iron.db")
    assert_it_gives_up(worker)


def test_a_server_and_the_worker_in_it_end(cli: Cli, started: Started, tmp_path: Path) -> None:
    server = started(["serve", "--app", str(cli.flows), "--port", "0", "--db", cli.url, "--json"])
    ready(server)
    deleted(tmp_path / "iron.db")
    assert_it_gives_up(server)


@pytest.mark.parametrize("harm", [deleted, replaced])
def test_a_run_does_not_end_well_and_the_next_process_has_it_alone(
    cli: Cli, started: Started, tmp_path: Path, harm: Harm
) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    words = [*cli.run_words("holding", str(folder), "--id", "R"), "--db", cli.url]
    first = started(words)
    eventually(lambda: (folder / "bodies").exists(), "the body runs")
    harm(tmp_path / "iron.db")
    assert_it_gives_up(first)  # although its body would take for ever
    (folder / "go").touch()
    second = started(words)
    out, told = second.communicate(timeout=30)
    assert (second.returncode, out.strip()) == (0, '"held"'), told
    assert cli.json("runs", "get", "R")["state"] == "completed"
