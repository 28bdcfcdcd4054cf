"""A child process forked in step or workflow code ends where it comes back to the engine: there is no second engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from tests.recovery.kit import PATIENCE

#: What a child ends with that has come back (`os.EX_SOFTWARE`), and one that ended inside the code that forked it.
CAME_BACK, STAYED = 70, 7


def forker(url: str, name: str) -> tuple[Any, str]:
    """What the program printed, and its log. Its children are ended with it, whatever they do."""
    command = [sys.executable, "-m", "tests.runtime.forker", url, name]
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = program.communicate(timeout=4 * PATIENCE)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert program.returncode == 0, err
    return json.loads(out), err


def test_a_child_that_comes_back_from_a_step_ends_there(sqlite_url: str) -> None:
    (ended, completed, distinct), log = forker(sqlite_url, "in_steps")
    assert ended == [CAME_BACK] * 6 + [STAYED]
    assert completed == distinct == 14
    assert log.count("It ends here, since the runs are that process's") == 6
    assert "from step main/1:in_a_thread of run r" in log
    assert "end a forked child inside the code that forked it, with os._exit(...)" in log


@pytest.mark.parametrize("name", ["in_the_code", "at_its_beginning", "in_plain_code", "at_the_end_of_plain_code"])
def test_a_child_that_comes_back_from_workflow_code_ends_there(name: str, sqlite_url: str) -> None:
    (ended, completed, distinct), log = forker(sqlite_url, name)
    assert ended == CAME_BACK
    assert completed == distinct
    assert "from the code of run r" in log


def test_a_child_that_goes_on_on_the_loop_of_a_worker_ends(sqlite_url: str) -> None:
    ended, log = forker(sqlite_url, "on_a_loop")
    assert ended == [CAME_BACK, True]
    assert "from the event loop of its worker" in log
