"""The command line as a person meets it: in this process for what only translates, as a process where signals,
exit codes and deaths are what counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ironflow.cli.main import main

FLOWS = '''
import os, time
from dataclasses import dataclass
from pathlib import Path
from ironflow import Context, Retry, step, workflow

@dataclass
class Order:
    name: str
    amount: int = 1

@step
async def double(n: int) -> int:
    return n * 2

@step
async def hold(folder: str) -> str:
    """Takes until a file says so; every execution leaves a line."""
    place = Path(folder)
    with (place / "bodies").open("a") as log:
        log.write(f"{os.getpid()}\\n")
    while not (place / "go").exists():
        await __import__("asyncio").sleep(0.01)
    return "held"

@step
def boom(n: int) -> int:
    raise ValueError(f"bad {n}")

@workflow
async def add(ctx: Context, n: int) -> int:
    ctx.set_status("adding")
    return await double(n) + 1

@workflow
async def order(ctx: Context, o: Order) -> dict[str, int]:
    print("printed by the author")
    return {o.name: await double(o.amount)}

@workflow
async def none(ctx: Context) -> str:
    return "nothing taken"

@workflow
async def failing(ctx: Context, n: int) -> int:
    await double(n)
    return await boom(n)

@workflow
async def holding(ctx: Context, folder: str) -> str:
    await double(1)
    return await hold(folder)

@workflow
async def sleeping(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"
'''


class Cli:
    """Runs commands in this process, on one database."""

    def __init__(self, capsys: pytest.CaptureFixture[str], url: str, flows: Path) -> None:
        self.capsys = capsys
        self.url = url
        self.flows = flows
        self.err = ""

    def __call__(self, *words: str, code: int = 0) -> str:
        """stdout of a command that must end with this exit code; `err` keeps stderr."""
        self.capsys.readouterr()
        ended = main([*words, "--db", self.url])
        out, self.err = self.capsys.readouterr()
        assert ended == code, f"exit {ended}\n{out}\n{self.err}"
        return out

    def json(self, *words: str, code: int = 0) -> Any:
        """The one JSON document of a command."""
        return json.loads(self(*words, "--json", code=code))

    def lines(self, *words: str, code: int = 0) -> list[Any]:
        """The JSON lines of a command."""
        return [json.loads(line) for line in self(*words, "--json", code=code).splitlines()]

    def run(self, name: str, value: Any = None, *words: str, code: int = 0) -> Any:
        """What `ironflow run` of one of the flows tells, in this process."""
        return self.json(*self.run_words(name, value, *words), code=code)

    def run_words(self, name: str, value: Any = None, *words: str) -> list[str]:
        """The words of that command, without `--json` and the database."""
        given = [] if value is None else ["--input", json.dumps(value)]
        return ["run", f"{self.flows}:{name}", *given, *words]

    def run_apart(self, name: str, value: Any = None, *words: str, code: int = 0) -> Any:
        """The same in a process of its own, which imports the file anew."""
        done = process([*self.run_words(name, value, *words), "--json", "--db", self.url])
        assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
        return json.loads(done.stdout)

    def ready(self) -> None:
        """Wait until another process has made the database."""
        eventually(lambda: main(["runs", "list", "--json", "--db", self.url]) == 0, "a database", 30)


def environment(seed: str | None = "0") -> dict[str, str]:
    """This process's own, without what a test must not inherit; with a seed, no process starts itself again."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("IRONFLOW_", "PYTHONHASHSEED"))}
    return kept if seed is None else {**kept, "PYTHONHASHSEED": seed}


def process(words: list[str], seed: str | None = "0", **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `ironflow WORDS` to its end."""
    command = [sys.executable, "-m", "ironflow", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment(seed), **options
    )


def eventually(true: Callable[[], Any], what: str, seconds: float = 30) -> Any:
    """Poll until something holds; gives what `true` gave."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"never came true: {what}")


@pytest.fixture(autouse=True)
def _fresh_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test's files are imported anew, although their names are the same."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture
def flows(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with the workflows that the test's module has in `FLOWS`, or with those above."""
    file = tmp_path / "flows_of_test.py"
    file.write_text(getattr(request.module, "FLOWS", FLOWS), encoding="utf-8")
    return file


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], sqlite_url: str, flows: Path) -> Cli:
    return Cli(capsys, sqlite_url, flows)


@pytest.fixture
def both(capsys: pytest.CaptureFixture[str], store_url: str, flows: Path) -> Cli:
    """The same on SQLite and on PostgreSQL."""
    return Cli(capsys, store_url, flows)


@pytest.fixture
def started() -> Iterator[Callable[[list[str]], subprocess.Popen[str]]]:
    """Starts `ironflow WORDS` in the background; what is left at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def start(words: list[str]) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "ironflow", *words]
        pipe = subprocess.PIPE
        running.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()))
        return running[-1]

    yield start
    for one in running:
        if one.poll() is None:
            one.kill()
        one.communicate()
