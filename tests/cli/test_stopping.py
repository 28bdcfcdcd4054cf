"""Signals against code that does not give way: the second one ends the process whatever the code does."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, eventually

from ironflow.cli import stopping

Started = Callable[[list[str]], Popen[str]]

SPINNING = '''
import time
from pathlib import Path
from ironflow import Context, step, workflow

@step
async def first() -> None:
    pass

@workflow
async def spinning(ctx: Context, folder: str) -> None:
    """What an author's slip looks like: a loop that never awaits."""
    await first()
    Path(folder, "spins").touch()
    while True:
        pass

@step
async def blocking(folder: str) -> None:
    Path(folder, "spins").touch()
    time.sleep(1_000)

@workflow
async def blocked(ctx: Context, folder: str) -> None:
    await blocking(folder)
'''


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["spinning", "blocked"])
@pytest.mark.parametrize("command", ["run", "worker"])
def test_a_second_signal_ends_a_process_whose_workflow_never_gives_way(
    cli: Cli, tmp_path: Path, started: Started, command: str, name: str, number: signal.Signals
) -> None:
    file = tmp_path / "spinning_flows.py"
    file.write_text(SPINNING, encoding="utf-8")
    words = ["run", f"{file}:{name}", "--input", json.dumps(str(tmp_path)), "--db", cli.url]
    if command == "worker":
        cli("runs", "create", f"{file}:{name}", "--input", json.dumps(str(tmp_path)))
        words = ["worker", str(file), "--db", cli.url]
    running = started(words)
    eventually(lambda: (tmp_path / "spins").exists(), "it spins")
    running.send_signal(number)
    assert running.stderr is not None
    while "does not give way yet" not in (line := running.stderr.readline()):
        assert line, "the process ended without a word"
    running.send_signal(number)
    err = running.stderr.read()
    assert running.wait(20) == 75, err
    assert err.strip().splitlines()[-1].startswith("stopped in the middle of code that does not give way.")
    assert cli.json("runs", "list")[0]["state"] in ("running", "pending")


@pytest.mark.parametrize("executes", [True, False])
async def test_a_loop_that_is_still_loading_is_not_said_to_execute_code_of_workflows(
    executes: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    with stopping.Signals(executes=executes):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stopping.HEARS_WITHIN_S + 0.2)  # what keeps the loop
    assert ("code of a workflow" in capfd.readouterr().err) is executes
