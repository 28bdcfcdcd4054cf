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


#: What a shell does with a command whose stdin, stdout or stderr was closed: `<&-`, `>&-`, `2>&-`.
CLOSED = """
import os, sys
os.close(int(sys.argv[1]))
os.execv(sys.executable, [sys.executable, "-m", "ironflow", *sys.argv[2:]])
"""


def closed(number: int, folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run `ironflow WORDS` without one of the three."""
    command = [sys.executable, "-c", CLOSED, str(number), *words, "--db", f"sqlite:///{folder}/a.db"]
    return subprocess.run(
        command, capture_output=True, timeout=60, cwd=folder, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False
    )


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("command", [("run",), ("runs", "create")])
def test_a_command_needs_no_stdin_and_no_stderr(tmp_path: Path, number: int, command: tuple[str, ...]) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    done = closed(number, tmp_path, *command, "flow.py:long", "--id", "a")
    assert done.returncode == 0
    assert done.stdout.strip() == (b"a" if command == ("runs", "create") else b'"%b"' % (b"x" * 500_000))
    listed = closed(number, tmp_path, "runs", "list")
    assert (listed.returncode, listed.stdout.split()[5]) == (0, b"a"), "a table is shown"


@pytest.mark.parametrize("words", [("runs", "create", "flow.py:long"), ("runs", "list"), ("runs", "list", "--json")])
def test_a_closed_stdout_is_told_as_a_full_one_is(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    closed(0, tmp_path, "runs", "create", "flow.py:long")
    done = closed(1, tmp_path, *words)
    assert done.returncode == 74
    assert b"error OUTPUT: the output could not be written" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_list_whose_reader_leaves_ends_as_one_that_a_pipe_has_ended(tmp_path: Path, form: tuple[str, ...]) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    closed(0, tmp_path, "runs", "create", "flow.py:long")
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "ironflow", "runs", "list", "--db", f"sqlite:///{tmp_path}/a.db", *form]
    done = subprocess.run(words, stdout=write, stderr=subprocess.PIPE, timeout=60, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
