"""The authors' API under a strict type checker: results are inferred, wrong arguments reported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

SAMPLE = Path(__file__).with_name("sample.py")
ROOT = Path(__file__).parents[2]


def test_mypy_infers_every_result_and_reports_exactly_the_planted_mistakes() -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", str(SAMPLE)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {
        (int(line), code) for line, code in re.findall(r"sample\.py:(\d+): error: .*\[([a-z-]+)\]", checked.stdout)
    }
    planted = {
        (number, match[1])
        for number, text in enumerate(SAMPLE.read_text().splitlines(), 1)
        if (match := re.search(r"# error: ([a-z-]+)$", text))
    }
    assert len(planted) > 10
    assert found == planted, checked.stdout + checked.stderr
