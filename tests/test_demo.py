"""The demo, played for real, and its judgement: it must not be able to claim what is not so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ironflow.cli.main import main as command_line
from ironflow.demo import main, proof
from ironflow.demo.proof import Effect
from ironflow.demo.workers import WorkerProcess
from ironflow.model import journal as j
from ironflow.model.journal import Event

DEAD, ALIVE = 101, 102


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def play(*options: str) -> dict[str, Any]:
    """The demo as a person starts it, in a process of its own."""
    command = [sys.executable, "-m", "ironflow", "demo", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("where", ["a SQLite file", "a PostgreSQL of its own"])
def test_a_killed_worker_is_replaced_and_everything_is_proved(where: str, sqlite_url: str) -> None:
    if where == "a SQLite file":
        told = play("--db", sqlite_url)
    elif os.environ.get("IRONFLOW_TEST_NO_POSTGRES") == "1":
        pytest.skip("IRONFLOW_TEST_NO_POSTGRES=1")
    else:
        told = play("--postgres")

    assert told["ok"]
    assert told["state"] == "completed"
    assert all(check["holds"] for check in told["checks"])
    assert len(told["checks"]) == 5
    counts = {count["name"]: count for count in told["steps"]}
    cut_off = len(told["killed"]["cut_off"])
    files = counts["index_file"]["calls"]
    assert files > 50
    # A body may have been killed before its first line, never after its record.
    assert files <= counts["index_file"]["executed"] <= files + cut_off
    assert counts["publish"]["executed"] == 3
    assert told["summary"]["files"] == files
    # Recovered on proof of the death, not when a lease of 20 s ran out; a busy machine may be slow about it.
    assert told["recovery_ms"] < 15_000
    assert not alive(told["killed"]["pid"])
    assert not alive(told["finished_by"]["pid"])
    assert not Path(told["summary"]["published"]).exists()


def test_a_worker_that_does_not_start_is_reported_with_what_it_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = [sys.executable, "-c", "raise SystemExit('no module named nothing')"]
    monkeypatch.setattr(WorkerProcess, "command", staticmethod(lambda name: broken))

    assert main() == 1

    told = capsys.readouterr().out
    assert "did not start" in told
    assert "no module named nothing" in told


# ---- the judgement -------------------------------------------------------------------------------------------


def history() -> list[Event]:
    """`a` finished before the kill, `b` was cut off and repeated, `c` came later."""
    return [
        Event(1, j.RUN_CREATED, None, '{"input":null}', 1, 10),
        Event(2, j.RUN_STARTED, None, '{"worker":"A"}', 1, 11),
        Event(3, j.STEP_STARTED, "main/1:a", "{}", 1, 11),
        Event(4, j.STEP_COMPLETED, "main/1:a", '{"result":1}', 1, 12),
        Event(5, j.STEP_STARTED, "main/2:b", "{}", 1, 12),
        Event(6, j.RUN_RECOVERED, None, "{}", 2, 20),
        Event(7, j.RUN_RESUMED, None, '{"worker":"B"}', 3, 21),
        Event(8, j.STEP_INTERRUPTED, "main/2:b", "{}", 3, 21),
        Event(9, j.STEP_STARTED, "main/2:b", "{}", 3, 21),
        Event(10, j.STEP_COMPLETED, "main/2:b", '{"result":2}', 3, 22),
        Event(11, j.STEP_STARTED, "main/3:c", "{}", 3, 22),
        Event(12, j.STEP_COMPLETED, "main/3:c", '{"result":3}', 3, 23),
        Event(13, j.RUN_SUCCEEDED, None, '{"output":3}', 3, 23),
    ]


def ran(*steps: tuple[str, int]) -> list[Effect]:
    return [Effect(f"main/{step}", 1, pid, 0, "run") for step, pid in steps]


HONEST = (("1:a", DEAD), ("2:b", DEAD), ("2:b", ALIVE), ("3:c", ALIVE))


@pytest.mark.parametrize(
    ("address", "exit_code", "code"),
    [
        ("foo", 2, "SETTINGS_INVALID"),
        ("sqlite:///{}/missing/x.db", 5, "STORE_UNREACHABLE"),
        ("sqlite:///{}/shop.py", 5, "STORE_CORRUPT"),
    ],
)
def test_a_database_that_cannot_be_used_is_said_as_by_any_other_command(
    address: str, exit_code: int, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shop.py").write_text("# no database\n" * 100)
    words = ["demo", "--db", address.format(tmp_path)]

    assert command_line(words) == exit_code
    assert capsys.readouterr().err.startswith(f"error {code}: ")
    assert command_line([*words, "--json"]) == exit_code
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code


def test_a_postgresql_without_its_driver_is_said_as_by_any_other_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("ironflow.store.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)

    assert command_line(["demo", "--db", "postgresql://127.0.0.1:1/none"]) == 2
    assert "pip install 'ironflow-engine[postgres]'" in capsys.readouterr().err


def test_an_honest_history_holds() -> None:
    events, effects = history(), ran(*HONEST)
    assert proof.ended_well(events, "completed").holds
    assert proof.finished_stay_finished(events, effects, DEAD).holds
    assert proof.executed_as_recorded(events, effects).holds
    assert proof.open_at_recovery(events) == ["main/2:b"]
    assert [(c.name, c.calls, c.executed, c.cut_off) for c in proof.count_steps(events, effects)] == [
        ("a", 1, 1, 0),
        ("b", 1, 2, 1),
        ("c", 1, 1, 0),
    ]


def test_a_body_killed_before_its_first_line_is_no_contradiction() -> None:
    assert proof.executed_as_recorded(history(), ran(("1:a", DEAD), ("2:b", ALIVE), ("3:c", ALIVE))).holds


def test_a_finished_step_that_ran_again_is_caught() -> None:
    effects = ran(*HONEST, ("1:a", ALIVE))
    assert not proof.finished_stay_finished(history(), effects, DEAD).holds
    assert not proof.executed_as_recorded(history(), effects).holds


@pytest.mark.parametrize("index", [0, 3])
def test_a_recorded_step_that_never_ran_is_caught(index: int) -> None:
    effects = ran(*HONEST)
    del effects[index]
    assert not proof.executed_as_recorded(history(), effects).holds


def test_an_execution_without_a_record_is_caught() -> None:
    assert not proof.executed_as_recorded(history(), ran(*HONEST, ("9:ghost", ALIVE))).holds


def test_a_run_that_ended_twice_or_badly_is_caught() -> None:
    twice = [*history(), Event(14, j.RUN_SUCCEEDED, None, '{"output":3}', 3, 24)]
    assert not proof.ended_well(twice, "completed").holds
    assert not proof.ended_well(history(), "failed").holds
    assert not proof.ended_well(history()[:-1], "running").holds


def test_a_wrong_or_missing_row_of_the_index_is_caught(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert proof.index_is_right({"a.py": empty}, tmp_path, 1).holds
    assert not proof.index_is_right({"a.py": empty[::-1]}, tmp_path, 1).holds
    assert not proof.index_is_right({"a.py": empty}, tmp_path, 2).holds


def test_effects_of_other_runs_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "effects.log"
    assert proof.read_effects(log, "r1") == []
    log.write_text("main/1:a\t1\t7\t1000\tr1\nmain/1:a\t1\t8\t1001\tr2\n")
    assert proof.read_effects(log, "r1") == [Effect("main/1:a", 1, 7, 1000, "r1")]
