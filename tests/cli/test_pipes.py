"""A reader that has seen enough is no failure of the run, and a disk that is full is told without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLOW = """
import ironflow

@ironflow.workflow
async def long(ctx: ironflow.Context) -> str:
    return "x" * 500_000
"""


def test_a_run_whose_reader_leaves_ends_as_one_that_a_pipe_has_ended(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    words = [sys.executable, "-m", "ironflow", "run", "flow.py:long", "--db", f"sqlite:///{tmp_path}/a.db"]
    running = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env={**os.environ, "PYTHONHASHSEED": "0"}
    )
    assert running.stdout is not None
    assert len(running.stdout.read(10)) == 10
    running.stdout.close()
    _, told = running.communicate(timeout=60)
    assert running.returncode == 141
    assert b"completed" in told
    assert b"Traceback" not in told


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["version"], ["--help"], ["runs", "list", "--json"], ["nonsense", "--json"]])
def test_output_that_cannot_be_written_is_said_with_an_exit_code_of_its_own(
    tmp_path: Path, words: list[str], unbuffered: str
) -> None:
    settings = {"PYTHONUNBUFFERED": unbuffered, "IRONFLOW_DATABASE_URL": f"sqlite:///{tmp_path}/a.db"}
    environment = {**os.environ, **settings}
    command = [sys.executable, "-m", "ironflow"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [*command, *words], stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60, cwd=tmp_path
        )
    assert ended.returncode == 74
    assert b"error OUTPUT: the output could not be written: No space left on device" in ended.stderr
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr
