"""`ironflow runs delete`: on a database here; `test_server` has it on a server."""

from __future__ import annotations

import sys

import pytest
from tests.cli.conftest import Cli
from tests.cli.test_looking import created


def ended(cli: Cli, run_id: str) -> str:
    cli.run("add", 1, "--id", run_id)
    return run_id


def at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    """Let stdin pass for a terminal at which this is typed."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", lambda text, **_: (print(text, file=sys.stderr), answer == "y")[1])


def test_runs_are_deleted_with_their_journals(both: Cli) -> None:
    for run_id in ("first", "second", "third"):
        ended(both, run_id)
    assert both("runs", "delete", "first", "--yes") == "first deleted\n"
    assert both.json("runs", "delete", "second", "thir", "-y") == [
        {"run_id": "second", "changed": True, "state": None},
        {"run_id": "third", "changed": True, "state": None},
    ]
    assert both.json("runs", "list") == []
    assert both.json("runs", "get", "first", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert both.json("runs", "delete", "first", "--yes", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert [row["action"] for row in both.json("audit")] == ["run.delete"] * 3


def test_nothing_is_deleted_where_nobody_can_be_asked(cli: Cli) -> None:
    ended(cli, "kept")
    assert cli("runs", "delete", "kept", code=2) == ""
    assert "error INVALID_INPUT: 1 run would be deleted" in cli.err
    assert "Add --yes" in cli.err
    assert cli.json("runs", "delete", "kept", code=2)["error"]["hint"] == "Add --yes to delete."
    assert cli.json("runs", "delete", "kept", "nobody", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert [row["run_id"] for row in cli.json("runs", "list")] == ["kept"]


def test_a_person_is_shown_the_runs_and_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(cli, "one-run")
    at_a_terminal(monkeypatch, "n")
    assert cli("runs", "delete", "one-run", code=2) == ""
    assert "one-run  completed  add" in cli.err
    assert "Delete this run with its journal, and all runs below?" in cli.err
    assert "nothing was deleted" in cli.err
    assert len(cli.json("runs", "list")) == 1
    at_a_terminal(monkeypatch, "y")
    assert cli("runs", "delete", "one-run") == "one-run deleted\n"
    assert cli.json("runs", "list") == []


def test_a_live_run_is_refused_and_keeps_no_other_from_being_deleted(cli: Cli) -> None:
    live = created(cli)
    ended(cli, "over")
    assert cli.json("runs", "delete", live, "--yes", code=2)["error"]["code"] == "INVALID_TRANSITION"
    done = cli.json("runs", "delete", live, "over", "--yes", code=2)
    assert [one["changed"] for one in done] == [False, True]
    assert [row["run_id"] for row in cli.json("runs", "list")] == [live]


def test_a_slip_in_one_id_deletes_nothing(cli: Cli) -> None:
    ended(cli, "over")
    assert cli.json("runs", "delete", "over", "nobody-at-all", "--yes", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert len(cli.json("runs", "list")) == 1
