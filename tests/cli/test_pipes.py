"""A reader that has seen enough is no failure of the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
