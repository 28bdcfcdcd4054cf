"""Random worlds: live and replayed, cut anywhere, on every Python, the same code asks the same things."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.workflow.worlds import live, replay, without_notes

SCRIPT = Path(__file__).with_name("worlds.py")
WORLDS = 300
PYTHONS = ("3.11", "3.12", "3.13")


def test_replaying_a_random_world_asks_for_exactly_the_same() -> None:
    kinds = set()
    for seed in range(WORLDS):
        journal, asked, ended = live(seed)
        again, replayed = replay(seed, journal, {"new path"})
        assert replayed == ended, seed
        assert without_notes(again) == without_notes(asked), seed
        kinds.update(line.split()[0] for lines in asked for line in lines)
    assert kinds == {"StepCall", "StartTimer", "CancelStep", "CancelTimer", "Note"}


def test_a_world_cut_anywhere_and_continued_ends_the_same() -> None:
    for seed in range(WORLDS // 3):
        journal, asked, ended = live(seed)
        cut = random.Random(seed).randrange(1, len(journal))
        recorded = {"new path"} if any("new path" in line for lines in asked[: cut + 1] for line in lines) else set()
        continued, result = replay(seed, journal, recorded, cut)
        assert result == ended, (seed, cut)
        assert without_notes(continued) == without_notes(asked), (seed, cut)


def interpreter(version: str) -> str | None:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    roots = Path.home() / ".pyenv" / "versions"
    candidates = [found] if found else []
    candidates += [str(path / "bin" / "python") for path in sorted(roots.glob(f"{version}.*"))]
    for candidate in candidates:
        probe = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version_info[:2])"],
            capture_output=True,
            text=True,
            check=False,
        )
        if probe.stdout.strip() == str(tuple(map(int, version.split(".")))):
            return candidate
    return None


def run(python: str, *arguments: str, stdin: str = "") -> str:
    ended = subprocess.run(
        [python, str(SCRIPT), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": str(random.randrange(10_000))},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("recorder", PYTHONS)
@pytest.mark.parametrize("replayer", PYTHONS)
def test_a_journal_recorded_on_one_python_replays_on_every_other(recorder: str, replayer: str) -> None:
    pythons = {version: interpreter(version) for version in (recorder, replayer)}
    missing = [version for version, found in pythons.items() if found is None]
    if missing:
        pytest.skip(f"no Python {' or '.join(missing)} on this machine")
    journals = run(str(pythons[recorder]), "record", "1000", "40")
    assert len(json.loads(journals)) == 40
    assert run(str(pythons[replayer]), "check", stdin=journals) == "all agree\n"
