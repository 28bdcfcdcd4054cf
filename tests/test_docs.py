"""The documentation is held to the code: what it prints runs, what it names exists, what is generated is current."""

from __future__ import annotations

import importlib.util
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ironflow
from ironflow import config, errors
from ironflow.cli.app import command as whole_command
from ironflow.client.address import KEY_VARIABLE, SERVER_VARIABLE
from ironflow.model.run import NEEDS_DATABASE
from ironflow.store.reader import RunFilter

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples" / "README.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
#: Pages of the reference that are written by hand.
BY_HAND = {"worker-protocol.md"}
WRITTEN = [page for page in PAGES if page.parent.name != "reference" or page.name in BY_HAND]

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED_TEST = re.compile(r"\[`(test_\w+)`\]\(([^)]+)\)")
CODE = re.compile(r"`([A-Z]+(?:_[A-Z]+)+)`")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def slug(heading: str) -> str:
    """The anchor a heading gets where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_what_the_code_says(generate: ModuleType) -> None:
    stale = [
        page
        for page, text in generate.pages().items()
        if not (generate.FOLDER / page).exists() or (generate.FOLDER / page).read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run `python docs/generate.py`"


def test_no_page_of_the_reference_is_left_over(generate: ModuleType) -> None:
    assert {page.name for page in generate.FOLDER.iterdir()} == set(generate.pages()) | BY_HAND


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(link)
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.M)
            if anchor not in map(slug, headings):
                broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_test_a_promise_names_exists(page: Path) -> None:
    missing = [
        f"{path}::{test}"
        for test, path in NAMED_TEST.findall(page.read_text(encoding="utf-8"))
        if not re.search(rf"def {test}\(", (page.parent / path).read_text(encoding="utf-8"))
    ]
    assert missing == []


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_code_and_variable_exists(page: Path) -> None:
    codes = {setting.env for setting in config.SETTINGS} | {"IRONFLOW_TEST_NO_POSTGRES", "PG_BIN"}
    codes |= {SERVER_VARIABLE, KEY_VARIABLE, "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
    codes |= {error.code for error in vars(errors).values() if hasattr(error, "code")}
    codes |= set(re.findall(r'Hold\(\s*"([A-Z_]+)"', (ROOT / "src/ironflow/engine/why.py").read_text()))
    # What is refused before anybody has read a request has no error of ours.
    codes |= set(re.findall(r'^    "([A-Z_]+)",$', (ROOT / "src/ironflow/server/bounded_http.py").read_text(), re.M))
    codes |= {NEEDS_DATABASE}
    found = set(CODE.findall(page.read_text(encoding="utf-8")))
    assert found - codes == set()


def commands_in(page: Path) -> Iterator[list[str]]:
    """The words of every `ironflow …` that a page tells people to type."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in re.findall(r"^(?: {4,}|\$ )(?:\$ )?ironflow (.*)$", text, re.M):
        yield re.sub(r"'[^']*'", "TEXT", line.split("#")[0]).split()
    for inline in re.findall(r"`ironflow ([^`]+)`", text.replace("\n", " ")):
        yield re.sub(r"'[^']*'", "TEXT", inline).split()


@pytest.mark.parametrize("page", WRITTEN, ids=name)
def test_every_command_can_be_typed(page: Path) -> None:
    unknown = []
    for words in commands_in(page):
        command: Any = whole_command()
        for word in words:
            if hasattr(command, "commands") and not word.startswith("-"):
                if word not in command.commands:
                    unknown.append(" ".join(words))
                    break
                command = command.commands[word]
        options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        unknown += [f"{word} in {words}" for word in words if word.startswith("--") and word not in options]
    assert unknown == []


def first_py(folder: Path) -> Path:
    """The README's example, saved as the README says."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- example:begin -->\n```python\n(.*?)```\n<!-- example:end -->", text, re.S)
    assert found is not None
    file = folder / "first.py"
    file.write_text(found[1], encoding="utf-8")
    return file


def test_the_example_of_the_readme_runs_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    file = first_py(tmp_path)
    first = subprocess.Popen([sys.executable, file.name], cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        with ironflow.open(f"sqlite:///{tmp_path}/ironflow.db", worker=False) as engine:
            deadline = time.monotonic() + 30
            while not (rows := engine.wait(engine.list(RunFilter()))) or rows[0].state != "sleeping":
                assert time.monotonic() < deadline, [row.state for row in rows]
                time.sleep(0.02)
    finally:
        first.kill()
    assert first.wait() == -signal.SIGKILL

    for _ in range(2):  # it goes on; then it has ended, and says the same again
        done = subprocess.run(
            [sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert re.fullmatch(r"\{'first\.py': '[0-9a-f]{64}'\}\n", done.stdout)
    with ironflow.open(f"sqlite:///{tmp_path}/ironflow.db", worker=False) as engine:
        assert [row.run_id for row in engine.wait(engine.list())] == ["first"]
        view = engine.wait(engine.get("first"))
    assert [len(step.tries) for step in view.steps.values()] == [1]


def test_the_example_of_the_readme_is_typed(tmp_path: Path) -> None:
    file = first_py(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path / "cache"),
            str(file),
        ],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_where_the_readme_has_code_saved_neither_git_nor_the_checks_see_it() -> None:
    saved = re.findall(r"[Ss]ave \w+ as\s+`([^`]+\.py)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()  # ruff follows it, too
    assert saved
    assert [path for path in saved if f"/{path.partition('/')[0]}/" not in ignored] == []
