"""Commands that look: what they print for programs, on both databases, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Cli

from ironflow.cli.main import main


def created(cli: Cli, name: str = "add", value: object = 1, *words: str) -> str:
    """The id of a run that waits in the queue."""
    run_id: str = cli.json("runs", "create", f"{cli.flows}:{name}", "--input", json.dumps(value), *words)["run_id"]
    return run_id


def test_a_created_run_is_listed_shown_queued_and_explained(both: Cli) -> None:
    run_id = created(both, "add", 5, "--priority", "7", "--label", "team=a", "--label", "k=v=w")
    [listed] = both.json("runs", "list")
    assert (listed["run_id"], listed["state"], listed["workflow"]) == (run_id, "pending", "add")
    assert (listed["priority"], listed["labels"]) == (7, {"team": "a", "k": "v=w"})
    assert isinstance(listed["created_at_ms"], int)
    assert listed["created_at"].endswith("Z")
    shown = both.json("runs", "get", run_id)
    assert (shown["input"], shown["output"], shown["steps"]) == (5, None, [])
    [row] = both.json("capacity", "queue")
    assert (row["run_id"], row["status"]) == (run_id, "ready")
    assert row["eligible_at_ms"] <= row["enqueued_at_ms"]
    assert [hold["code"] for hold in both.json("runs", "why", run_id)] == ["NO_WORKER"]
    assert both.json("why", run_id) == both.json("runs", "why", run_id)
    [event] = both.lines("runs", "journal", run_id)
    assert (event["seq"], event["kind"], event["payload"]["input"]) == (1, "run_created", 5)
    stats = both.json("capacity", "stats")
    assert (stats["runs"]["pending"], stats["queued"], stats["workers"]) == (1, 1, 0)
    assert both.json("capacity", "leases") == both.json("capacity", "sessions") == []


def test_nothing_secret_is_printed(both: Cli) -> None:
    run_id = created(both)
    printed = both("runs", "get", run_id, "--json") + both("capacity", "queue", "--json")
    assert "token" not in printed


def test_a_list_is_filtered(cli: Cli) -> None:
    first = created(cli, "add", 1, "--label", "team=a")
    second = created(cli, "none", None, "--label", "team=b")
    cli("runs", "cancel", second)
    ids = [[row["run_id"] for row in cli.json("runs", "list", *words)] for words in (
        ("--state", "pending"), ("--state", "cancelled"), ("--workflow", "add"), ("--label", "team=b"),
        ("--limit", "1"), ("--state", "pending", "--state", "cancelled"),
    )]  # fmt: skip
    assert ids == [[first], [second], [first], [second], [second], [second, first]]
    assert "no state of a run" in cli.json("runs", "list", "--state", "done", code=2)["error"]["message"]
    assert "no label" in cli.json("runs", "list", "--label", "team", code=2)["error"]["message"]


def test_a_run_is_found_by_a_beginning_or_an_end_that_only_it_has(cli: Cli) -> None:
    created(cli, "add", 1, "--id", "order-1234-first")
    created(cli, "add", 1, "--id", "order-1234-second")
    for part in ("order-1234-f", "first", "4-first", "order-1234-first"):
        assert cli.json("runs", "get", part)["run_id"] == "order-1234-first"
    error = cli.json("runs", "get", "order", code=2)["error"]
    assert sorted(error["details"]["run_ids"]) == ["order-1234-first", "order-1234-second"]
    assert cli.json("runs", "get", "rst", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert cli.json("runs", "get", "nobody", code=4)["error"]["code"] == "RUN_NOT_FOUND"


def test_an_id_that_begins_another_id_is_found_as_a_whole(cli: Cli) -> None:
    created(cli, "add", 1, "--id", "batch")
    created(cli, "add", 1, "--id", "batch-2")
    assert cli.json("runs", "get", "batch")["run_id"] == "batch"


def test_looking_creates_no_database(cli: Cli, tmp_path: Path) -> None:
    for words in (["runs", "list"], ["doctor"], ["runs", "cancel", "abcd"], ["capacity", "stats"]):
        assert cli.json(*words, code=5)["error"]["code"] == "STORE_UNREACHABLE"
    assert not list(tmp_path.glob("*.db*"))


def test_a_file_that_is_no_database_and_an_address_of_nothing_are_said_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.db").write_text("no database" * 200)
    assert main(["runs", "list", "--db", f"sqlite:///{tmp_path}/text.db"]) == 5
    assert capsys.readouterr().err.startswith("error STORE_CORRUPT: ")
    assert main(["runs", "list", "--db", "postgresql://me:secret@127.0.0.1:1/none"]) == 5
    err = capsys.readouterr().err
    assert err.startswith("error STORE_UNREACHABLE: ")
    assert "secret" not in err
    assert main(["runs", "list", "--db", "mysql://x"]) == 2
    assert "sqlite:///" in capsys.readouterr().err


AWAY = "postgresql://me@127.0.0.1:1/none"
COMMANDS = [["runs", "list"], ["doctor"], ["apikey", "list"], ["serve", "--port", "0"], ["run", "FILE:add", "-i", "1"],
            ["worker", "FILE"]]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_address_of_nothing_is_told_as_what_gave_it(
    cli: Cli, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(cli.flows.parent)
    words = [word.replace("FILE", str(cli.flows)) for word in words]
    monkeypatch.setenv("IRONFLOW_DATABASE_URL", "sqlite:///another.db")
    assert main([*words, "--db", AWAY]) == 5
    assert "that --db names it" in capsys.readouterr().err
    monkeypatch.setenv("IRONFLOW_DATABASE_URL", AWAY)
    assert main(words) == 5
    assert "that IRONFLOW_DATABASE_URL names it" in capsys.readouterr().err
    monkeypatch.delenv("IRONFLOW_DATABASE_URL")
    Path("ironflow.toml").write_text(f'database_url = "{AWAY}"\n')
    assert main(words) == 5
    assert "that ironflow.toml names it" in capsys.readouterr().err


def test_where_nothing_named_a_database_it_is_told_what_could(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IRONFLOW_DATABASE_URL", raising=False)
    could, did = "--db or IRONFLOW_DATABASE_URL", "--db"
    for words, named in ((["runs", "list"], could), (["doctor", "--db", "sqlite:///no.db"], did)):
        assert main(words) == 5
        assert f"make it; {named} names another one." in capsys.readouterr().err


def test_usage_errors_exit_2_on_stderr_or_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "get"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "error USAGE: Missing argument 'RUN'.")
    assert main(["runs", "lits", "--json"]) == 2
    out, err = capsys.readouterr()
    assert (json.loads(out)["error"]["code"], err) == ("USAGE", "")


def test_errors_are_two_lines_for_people_and_one_object_for_programs(cli: Cli) -> None:
    created(cli)
    cli("runs", "get", "nothing-like-it", code=4)
    first, second = cli.err.splitlines()
    assert first.startswith("error RUN_NOT_FOUND: ")
    assert second.startswith("  ")
    error = cli.json("runs", "get", "nothing-like-it", code=4)["error"]
    assert set(error) == {"code", "message", "hint", "details"}
    assert cli.err == ""


def test_workflows_are_paused_and_resumed_by_name(both: Cli) -> None:
    created(both)
    assert both.json("workflows", "pause", "add", code=4)["error"]["code"] == "WORKFLOW_UNKNOWN"
    assert both.run("add", 1)["state"] == "completed"
    assert both.json("workflows", "pause", "add")["changed"] is True
    assert both.json("workflows", "pause", "add")["changed"] is False
    [seen] = both.json("workflows", "list")
    assert (seen["name"], seen["paused_at_ms"] is None) == ("add", False)
    held = created(both)
    assert "WORKFLOW_PAUSED" in [hold["code"] for hold in both.json("runs", "why", held)]
    resumed = both.json("workflows", "resume", "add")
    assert (resumed["changed"], resumed["paused_at"]) == (True, None)
    assert [row["action"] for row in both.json("audit")] == ["workflow.resume", "workflow.pause"]


def test_lanes_show_who_is_held_back(both: Cli) -> None:
    created(both, "add", 1, "--limit", "gpu=1")
    assert both.json("capacity", "lanes") == []
    assert (
        "whole number"
        in both.json("runs", "create", f"{both.flows}:add", "-i", "1", "--limit", "gpu=x", code=2)["error"]["message"]
    )


def test_the_doctor_is_content_with_a_healthy_database(cli: Cli) -> None:
    created(cli)
    found = cli.json("doctor")
    assert (found["runs"], found["findings"]) == (1, [])
    assert "all invariants hold" in cli("doctor")


def test_the_doctor_exits_1_with_what_it_found(postgres_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The PostgreSQL of the tests runs without fsync, which is a finding."""
    assert main(["doctor", "--db", postgres_url, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {finding["rule"] for finding in found} == {"store"}


def test_screens_fit_80_columns_and_carry_no_colour_where_none_is_wanted(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_id = created(cli, "add", 1, "--label", "team=a")
    screens = [cli("runs", "list"), cli("runs", "get", run_id), cli("runs", "journal", run_id), cli("audit")]
    screens += [cli("capacity", name) for name in ("queue", "leases", "sessions", "lanes", "stats")]
    screens += [cli("runs", "why", run_id), cli("workflows", "list")]
    for screen in screens:
        assert "\x1b" not in screen
        assert max(map(len, screen.splitlines()), default=0) <= 80, screen
    assert run_id in screens[0]


def test_version_says_the_release(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"]
    assert main(["version"]) == 0
    assert capsys.readouterr().out.startswith("ironflow ")
