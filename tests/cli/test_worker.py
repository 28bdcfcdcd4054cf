"""`ironflow worker`, alone and under a supervisor: takes runs, drains, is replaced when it dies."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import Any

import pytest
from tests.cli.conftest import Cli, eventually, process
from tests.cli.test_looking import created
from tests.cli.test_run import bodies

from ironflow.cli import exits, supervisor

Started = Callable[[list[str]], Popen[str]]


def sessions(cli: Cli) -> dict[str, int]:
    """The live workers: name to pid."""
    return {row["worker_id"]: row["pid"] for row in cli.json("capacity", "sessions")}


def event(running: Popen[str], name: str) -> Any:
    """Read a worker's JSON lines up to the next event of this name."""
    assert running.stdout is not None
    for line in running.stdout:
        told = json.loads(line)
        if told["event"] == name:
            return told
    raise AssertionError(f"the process ended without {name}")


@pytest.fixture
def worker(both: Cli, started: Started) -> Popen[str]:
    running = started(["worker", str(both.flows), "--worker-id", "w", "--db", both.url, "--json"])
    ready = event(running, "ready")
    assert ready["worker_id"] == "w"
    assert set(ready["workflows"]) >= {"add", "order", "holding"}
    return running


def test_a_worker_executes_what_was_queued_before_and_after_it_came(
    both: Cli, worker: Popen[str], started: Started
) -> None:
    run_id = created(both, "add", 20)
    eventually(lambda: both.json("runs", "get", run_id)["state"] == "completed", "it was executed")
    assert both.json("runs", "get", run_id)["output"] == 41
    assert sessions(both) == {"w": worker.pid}


def test_a_signal_to_an_idle_worker_ends_it_at_once_with_0(both: Cli, worker: Popen[str]) -> None:
    worker.send_signal(signal.SIGTERM)
    assert event(worker, "stopped")["orderly"] is True
    assert worker.wait(20) == 0
    assert sessions(both) == {}


def test_a_worker_that_drains_takes_nothing_new_and_a_second_signal_gives_the_rest_back(
    both: Cli, worker: Popen[str], tmp_path: Path
) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    run_id = created(both, "holding", str(folder))
    eventually(lambda: bodies(folder), "the body runs")
    worker.send_signal(signal.SIGTERM)
    assert event(worker, "draining")["held"] == 1
    later = created(both, "add", 1)
    worker.send_signal(signal.SIGTERM)
    assert event(worker, "stopped")["orderly"] is False
    assert worker.wait(20) == 75
    shown = both.json("runs", "get", run_id)
    assert (shown["state"], shown["lease_recoveries"]) == ("pending", 0)
    assert both.json("runs", "get", later)["state"] == "pending"


def test_bad_targets_and_bad_settings_are_refused_before_anything_starts(cli: Cli) -> None:
    for words, code, says in (
        (["worker", "absent.py"], 2, "no file"),
        (["worker", str(cli.flows), "--processes", "0"], 2, "--processes"),
        (["worker", "absent_module", "--processes", "2"], 2, "no module"),
    ):
        done = process([*words, "--db", cli.url])
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert says in done.stderr
        assert "Traceback" not in done.stderr


def test_a_supervisor_replaces_a_dead_worker_and_passes_signals_on(cli: Cli, started: Started) -> None:
    words = ["worker", str(cli.flows), "--worker-id", "w", "--processes", "2", "--db", cli.url, "--json"]
    supervisor = started(words)
    cli.ready()
    first = eventually(lambda: s if len(s := sessions(cli)) == 2 else None, "two workers")
    assert set(first) == {"w-1", "w-2"}
    os.kill(first["w-1"], signal.SIGKILL)
    died = event(supervisor, "died")
    assert (died["pid"], died["code"]) == (first["w-1"], -signal.SIGKILL)
    second = eventually(
        lambda: s if len(s := sessions(cli)) == 2 and s.get("w-1") != first["w-1"] else None, "a new w-1"
    )
    assert second["w-2"] == first["w-2"]
    supervisor.send_signal(signal.SIGTERM)
    supervisor.communicate(timeout=30)
    assert supervisor.returncode == 0
    assert sessions(cli) == {}


def test_workers_leave_in_order_when_their_supervisor_is_killed(cli: Cli, started: Started) -> None:
    words = ["worker", str(cli.flows), "--processes", "1", "--db", cli.url]
    supervisor = started(words)
    cli.ready()
    eventually(lambda: len(sessions(cli)) == 1, "one worker")
    supervisor.kill()
    eventually(lambda: not sessions(cli), "it said goodbye")
    assert cli.json("audit") == []


async def test_a_supervisor_replaces_a_worker_whose_key_file_was_half_written_and_none_that_never_had_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child that finds no key ends as one that is refused; while a key is being replaced, that is no refusal."""
    now: list[str | None] = ["old"]
    told: list[str] = []
    obituary: Any = SimpleNamespace(key=lambda: now[0], report=lambda session_id: None)
    child = supervisor._Child([], 1, None, 0, as_json=False, obituary=obituary)
    monkeypatch.setattr(child, "_tell", lambda event, text, **facts: told.append(event))
    child.heard = supervisor.Heard()
    child.heard.started()

    def ended(key_at_start: str | None, key_now: str | None) -> bool:
        child._key, now[0] = key_at_start, key_now
        return child._is_final(exits.ACCESS)

    assert ended("old", "old"), "refused, and there is no other key"
    assert not ended("old", "new")
    assert ended(None, None), "it never had one, and has never begun"
    child._ever_began = True
    assert not ended(None, None), "it has worked before: its key file is being written"
    assert ended("old", None)
    assert told == ["refused"] * 3
    child.heard.end()
