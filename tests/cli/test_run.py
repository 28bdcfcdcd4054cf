"""`ironflow run` as a process: results, resuming, attaching, signals, exit codes."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, eventually, process

from ironflow.cli import main as entry

Started = Callable[[list[str]], Popen[str]]


def bodies(folder: Path) -> list[str]:
    """The processes that executed the body of `hold`, in order."""
    log = folder / "bodies"
    return log.read_text().split() if log.exists() else []


@pytest.fixture
def held(both: Cli, tmp_path: Path, started: Started) -> tuple[Cli, Path, list[str], Popen[str]]:
    """A run in a process of its own that is in the middle of a step: (cli, folder, words, process)."""
    folder = tmp_path / "held"
    folder.mkdir()
    words = ["run", f"{both.flows}:holding", "--input", json.dumps(str(folder)), "--db", both.url]
    running = started(words)
    eventually(lambda: bodies(folder), "the body runs")
    return both, folder, words, running


def test_the_result_goes_to_stdout_and_the_rest_to_stderr(both: Cli) -> None:
    done = process(["run", f"{both.flows}:add", "--input", "20", "--db", both.url])
    assert (done.returncode, done.stdout) == (0, "41\n")
    assert both.url.split("@")[-1].removeprefix("sqlite:///") in done.stderr
    assert "step_completed" in done.stderr
    assert "completed in" in done.stderr


def test_json_is_one_document_although_the_author_prints(cli: Cli) -> None:
    ended = cli.run("order", {"name": "a"})
    assert (ended["state"], ended["output"], ended["exit"]) == ("completed", {"a": 2}, 0)
    assert ended["ended_at_ms"] >= ended["created_at_ms"]


def test_a_failed_run_exits_1_with_its_error_and_the_authors_line(cli: Cli) -> None:
    done = process(["run", f"{cli.flows}:failing", "--input", "3", "--db", cli.url])
    assert (done.returncode, done.stdout) == (1, "")
    assert 'raise ValueError(f"bad {n}")' in done.stderr
    assert "error RUN_FAILED: run " in done.stderr
    assert "ValueError: bad 3" in done.stderr
    ended = cli.run("failing", 4, code=1)
    assert (ended["state"], ended["error"]["message"]) == ("failed", "bad 4")


def test_killed_and_given_again_it_resumes_without_repeating_a_finished_step(
    held: tuple[Cli, Path, list[str], Popen[str]],
) -> None:
    cli, folder, words, first = held
    first.kill()
    first.wait()
    (folder / "go").touch()
    done = process(words)
    assert (done.returncode, done.stdout) == (0, '"held"\n'), done.stderr
    assert "goes on; 1 step done" in done.stderr
    [run] = cli.json("runs", "list")
    assert (run["lease_recoveries"], run["retry_count"]) == (1, 0)
    shown = cli.json("runs", "get", run["run_id"])
    assert [len(step["tries"]) for step in shown["steps"]] == [1, 2]
    assert len(bodies(folder)) == 2


def test_while_another_process_executes_it_a_second_run_watches_and_takes_over_when_that_one_dies(
    held: tuple[Cli, Path, list[str], Popen[str]], started: Started
) -> None:
    cli, folder, words, first = held
    second = started(words)
    eventually(lambda: len(cli.json("capacity", "sessions")) == 2, "the second is there")
    assert second.stderr is not None
    told = ""
    while "watching" not in told:
        told += second.stderr.readline()
    assert f"pid {first.pid}" in told
    assert bodies(folder) == [str(first.pid)]
    first.kill()
    eventually(lambda: len(bodies(folder)) == 2, "the second took over")
    (folder / "go").touch()
    out, _ = second.communicate(timeout=30)
    assert (second.returncode, out) == (0, '"held"\n')
    assert bodies(folder) == [str(first.pid), str(second.pid)]
    assert len(cli.json("runs", "list")) == 1


def test_of_a_process_that_was_killed_it_is_said_that_it_is_gone(held: tuple[Cli, Path, list[str], Popen[str]]) -> None:
    cli, _, _, first = held
    [run] = cli.json("runs", "list")
    assert "EXECUTING" in cli("why", run["run_id"])
    assert "gone" not in cli("capacity", "sessions")
    first.kill()
    first.wait()
    text = cli("why", run["run_id"])
    assert f"(pid {first.pid} on " in text
    assert "is gone; a worker on that host takes the run back at once, any other after its lease (it ends in " in text
    assert "NO_WORKER" in text
    assert "EXECUTING" not in text
    assert " gone " in cli("capacity", "sessions")
    assert cli.json("capacity", "stats")["workers"] == 0
    assert len(cli.json("capacity", "sessions")) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_give_the_run_back_at_once_and_exit_75(
    held: tuple[Cli, Path, list[str], Popen[str]], number: signal.Signals
) -> None:
    cli, folder, words, first = held
    first.send_signal(number)
    assert first.stderr is not None
    while "once more stops now" not in first.stderr.readline():
        pass
    first.send_signal(number)
    out, err = first.communicate(timeout=20)
    assert (first.returncode, out) == (75, "")
    assert "Run again to resume" in err
    [run] = cli.json("runs", "list")
    assert (run["state"], run["lease_recoveries"]) == ("pending", 0)
    assert cli.json("capacity", "sessions") == []
    (folder / "go").touch()
    assert process(words).returncode == 0


def test_the_first_signal_lets_the_run_finish(held: tuple[Cli, Path, list[str], Popen[str]]) -> None:
    _, folder, _, first = held
    first.send_signal(signal.SIGINT)
    assert first.stderr is not None
    while "once more stops now" not in first.stderr.readline():
        pass
    (folder / "go").touch()
    out, _ = first.communicate(timeout=20)
    assert (first.returncode, out) == (0, '"held"\n')


def test_another_input_new_and_an_id_of_its_own_are_runs_of_their_own(cli: Cli) -> None:
    for value in ("1", "2", "2"):
        cli("runs", "create", f"{cli.flows}:add", "-i", value, "--at", "+1s")
    newest, _, first = (row["run_id"] for row in cli.json("runs", "list"))
    assert cli.run("add", 2)["run_id"] == newest
    assert cli.run("add", 1, "--id", first)["run_id"] == first
    fresh = cli.run("add", 1)["run_id"]
    assert fresh not in (newest, first)
    assert cli.run("add", 1, "--new")["run_id"] != fresh
    assert cli.run("add", 1, "--id", "mine")["run_id"] == "mine"


def test_a_finished_id_prints_its_result_again_and_adds_nothing(cli: Cli) -> None:
    cli.run("add", 1, "--id", "mine")
    before = cli.lines("runs", "journal", "mine")
    assert cli.run("add", None, "--id", "mine")["output"] == 3
    assert cli.run("add", 1, "--id", "mine")["output"] == 3
    assert cli.lines("runs", "journal", "mine") == before
    assert cli.run("add", 2, "--id", "mine", code=2)["error"]["code"] == "IDEMPOTENCY_KEY_CONFLICT"
    assert cli.run("order", None, "--id", "mine", code=2)["error"]["code"] == "INVALID_INPUT"
    assert cli.run("add", 1, "--id", "mine", "--new", code=2)["error"]["code"] == "INVALID_INPUT"


def test_cancelled_and_paused_runs_have_exit_codes_of_their_own(cli: Cli) -> None:
    for name in ("a", "b"):
        cli("runs", "create", f"{cli.flows}:add", "-i", "1", "--id", name)
    cli("runs", "cancel", "a")
    cli("runs", "pause", "b")
    assert cli.run("add", None, "--id", "a", code=3)["state"] == "cancelled"
    assert cli.run("add", None, "--id", "b", code=6)["state"] == "paused"


def test_watch_follows_a_run_to_its_end_and_tells_it_by_the_exit_code(cli: Cli) -> None:
    failed = cli.run("failing", 1, code=1)["run_id"]
    events = cli.lines("runs", "watch", failed, code=1)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["kind"] == "run_failed"
    assert [event["seq"] for event in cli.lines("runs", "watch", failed, "--after", "3", code=1)] == [
        event["seq"] for event in events[3:]
    ]


def test_watching_from_another_process_sees_the_end(
    held: tuple[Cli, Path, list[str], Popen[str]], started: Started
) -> None:
    cli, folder, _, first = held
    [run] = cli.json("runs", "list")
    watcher = started(["runs", "watch", run["run_id"], "--db", cli.url, "--json"])
    assert watcher.stdout is not None
    assert json.loads(watcher.stdout.readline())["kind"] == "run_created"
    (folder / "go").touch()
    out, err = watcher.communicate(timeout=30)
    assert (watcher.returncode, err) == (0, "")
    assert json.loads(out.splitlines()[-1])["kind"] == "run_succeeded"
    first.wait(20)


def test_the_default_database_comes_from_the_environment_or_lies_in_the_current_folder(
    flows: Path, tmp_path: Path
) -> None:
    done = process(["run", f"{flows}:none"], cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, '"nothing taken"\n')
    assert (tmp_path / "ironflow.db").exists()
    assert "ironflow.db" in done.stderr


@pytest.mark.parametrize("writer", ["future", "damage"])
def test_a_database_this_release_cannot_use_exits_5(cli: Cli, writer: str) -> None:
    cli.run("add", 1)
    path = Path(cli.url.removeprefix("sqlite:///"))
    if writer == "future":
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("update ironflow_migrations set version = version + 9999")
    else:
        path.write_bytes(b"no database at all" * 1000)
    error = cli.run("add", 1, code=5)["error"]
    assert error["code"] == ("SCHEMA_TOO_NEW" if writer == "future" else "STORE_CORRUPT")


# ---- the entry ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "again"), [(None, True), ("random", True), ("0", False), ("7", False)])
def test_a_process_that_executes_workflows_fixes_its_hash_seed_once(
    monkeypatch: pytest.MonkeyPatch, seed: str | None, again: bool
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, words: called.append([path, *words]))
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    entry.fix_hash_seed()
    assert bool(called) == again
    if again:
        assert called == [[sys.executable, sys.executable, *sys.orig_argv[1:]]]
        assert os.environ["PYTHONHASHSEED"] == "0"


def test_a_run_has_the_fixed_seed_its_arguments_and_a_module_of_its_stem(cli: Cli) -> None:
    cli.flows.write_text(
        "import os, sys\nfrom ironflow import Context, workflow\nSEEN = [os.environ['PYTHONHASHSEED'], __name__]\n"
        "@workflow\nasync def seen(ctx: Context) -> list[str]: return SEEN\n"
    )
    done = process([*cli.run_words("seen"), "--db", cli.url], seed=None)
    assert json.loads(done.stdout) == ["0", "flows_of_test"]
