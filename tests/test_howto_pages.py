"""The how-to guides do what they say: their commands are taken from the pages and typed, and answer as printed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ironflow.cli.main import main
from ironflow.model.ids import route_of
from ironflow.model.routing import Served, Serves
from ironflow.model.scope import DEFAULT
from ironflow.server.schemas import RunStart

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "how-to"
ROUTING = (PAGES / "route-and-limit.md").read_text(encoding="utf-8")
SERVER = (PAGES / "use-a-server.md").read_text(encoding="utf-8")
CLUSTER = (PAGES / "run-a-cluster.md").read_text(encoding="utf-8")

#: An indented block of commands with what the last of them prints, where the page shows it.
BLOCK = re.compile(r"((?:^    [^\n]*\n)+)(?:\n```(?:text|json)\n(.*?)```)?", re.M | re.S)


def section(page: str, title: str) -> str:
    """What stands below a heading, up to the next one of its level."""
    level = title.split()[0]
    return re.split(rf"^{level} ", page.partition(f"\n{title}\n")[2], flags=re.M)[0]


def blocks(text: str) -> list[tuple[str, str | None]]:
    """The blocks of commands of a text, each with what is printed below it."""
    text = re.sub(r"```python\n.*?```", "", text, flags=re.S)
    return [(re.sub("^    ", "", given, flags=re.M), shown or None) for given, shown in BLOCK.findall(text)]


def printed(shown: str, told: str) -> bool:
    """Whether a command told what the page shows: `…` is anything, and columns may be of any width."""
    wanted = r"\s+".join(re.escape(word).replace("…", ".*?") for word in shown.split())
    return re.fullmatch(wanted, told.strip(), re.S) is not None


def environment(**given: str) -> dict[str, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("IRONFLOW_")}
    here = f"{Path(sys.executable).parent}{os.pathsep}{clean.get('PATH', '')}"
    return {**clean, "PATH": here, "PYTHONHASHSEED": "0", "COLUMNS": "200", "NO_COLOR": "1", **given}


@contextmanager
def running(words: list[str], folder: Path, **given: str) -> Iterator[subprocess.Popen[str]]:
    """A process that stays, and has said its first line; it is killed at the end."""
    process = subprocess.Popen(
        words, cwd=folder, env=environment(**given), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


# ---- route and limit


def save_bank(folder: Path) -> None:
    found = re.search(r"<!-- bank:begin -->\n```python\n(.*?)```\n<!-- bank:end -->", ROUTING, re.S)
    assert found is not None
    (folder / "bank.py").write_text(found[1], encoding="utf-8")


class Shell:
    """Types `ironflow` commands in a folder: in this process, but for a worker, which stays."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], stack: ExitStack) -> None:
        self.folder, self._capsys, self._stack = folder, capsys, stack

    def type(self, words: list[str]) -> str:
        """What the command prints."""
        if words[0] == "worker":
            worker = running([sys.executable, "-m", "ironflow", *words], self.folder)
            assert " serves " in first_line(self._stack.enter_context(worker))
            return ""
        self._capsys.readouterr()
        main(words)
        return "".join(self._capsys.readouterr())

    def shows(self, words: list[str], shown: str) -> None:
        """It prints this. One that only looks may be asked again, until what it looks at has come about."""
        deadline = time.monotonic() + 30
        while not printed(shown, told := self.type(words)):
            assert words[0] in ("why", "capacity"), f"{words}\n{told}"
            assert time.monotonic() < deadline, f"{words}\n{told}"
            time.sleep(0.05)


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in [name for name in os.environ if name.startswith("IRONFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    with ExitStack() as stack:
        yield Shell(tmp_path, capsys, stack)
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def test_priorities_tags_lanes_groups_and_keys_do_what_their_page_shows(shell: Shell) -> None:
    save_bank(shell.folder)
    seen = 0
    for commands, shown in blocks(ROUTING):
        *before, last = [shlex.split(command)[1:] for command in commands.splitlines()]
        for words in before:
            shell.type(words)
        if shown is None:
            shell.type(last)
        else:
            shell.shows(last, shown)
            seen += 1
    assert seen == ROUTING.count("```text") > 5


def test_the_table_of_tags_is_what_routing_decides() -> None:
    lines = section(ROUTING, "## Tags").partition("| worker |")[2].splitlines()
    runs = [cell.strip(" `").split(" --worker-tag ") for cell in lines[0].strip("|").split("|")]
    own = {"charge": (), "render": ("gpu",)}
    routes = [route_of(name, "1", (*own[name], *tags), DEFAULT) for name, *tags in runs]
    rows = [line.strip("|").split("|") for line in lines[2:6]]
    assert len(rows) == len(routes) == 4
    for worker, *answers in rows:
        tags = tuple(re.findall(r"--tag (\w+)", worker))
        serves = Serves(DEFAULT, tags, {name: Served(("1",), asked) for name, asked in own.items()})
        assert [serves.can_take(route) for route in routes] == [cell.strip() == "yes" for cell in answers], worker


def test_the_workflows_of_the_page_are_typed(tmp_path: Path) -> None:
    save_bank(tmp_path)
    words = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), "bank.py"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *words], cwd=tmp_path, env={"MYPYPATH": str(ROOT / "src"), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


# ---- use a server

#: The workflow that the page speaks of, in the file it imports it from.
FLOWS = """
from dataclasses import dataclass
from ironflow import Context, step, workflow

@dataclass
class Order:
    name: str

@step
async def pack(name: str) -> str:
    return f"packed {name}"

@workflow
async def order(ctx: Context, order: Order) -> str:
    return await pack(order.name)
"""


@contextmanager
def server(folder: Path) -> Iterator[dict[str, str]]:
    """`ironflow serve --dev` with the page's workflow; gives what it tells a shell."""
    (folder / "flows.py").write_text(FLOWS, encoding="utf-8")
    words = ["serve", "--dev", "--json", "--port", "0", "--app", "flows.py", "--db", f"sqlite:///{folder}/iron.db"]
    with running([sys.executable, "-m", "ironflow", *words], folder) as process:
        ready = json.loads(first_line(process))
        yield {"IRONFLOW_SERVER": ready["url"], "IRONFLOW_API_KEY": ready["admin_key"]}


def typed(commands: str, folder: Path, given: dict[str, str]) -> str:
    """What a shell prints of these lines."""
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=folder, env=environment(**given), text=True, timeout=60, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{commands}{done.stdout}"
    return done.stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_every_request_of_the_page_is_answered_as_it_shows(tmp_path: Path) -> None:
    first, *asked = blocks(section(SERVER, "## With curl")) + blocks(section(SERVER, "## Many starts at once"))
    told = []
    with server(tmp_path) as given:
        for commands, shown in asked:
            answer = typed(first[0] + commands, tmp_path, given)
            # Two requests in one block answer in two lines without a break between them; the page shows the last.
            told.append(answer[answer.rfind("}{") + 1 :])
            assert shown is None or printed(shown, told[-1]), f"{commands}{answer}"
    assert (tmp_path / "headers").stat().st_mode & 0o077 == 0
    assert any(text.startswith("retry: 1000\n\nid: 4\n") for text in told), "a stream goes on where it was"


def test_the_table_of_a_start_names_every_field_of_one() -> None:
    rows = section(SERVER, "## With curl").partition("| field |")[2].splitlines()[2:]
    told = {name for row in rows if row.startswith("|") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert told == RunStart.model_fields.keys()


# ---- run a cluster


def test_the_database_to_try_it_with_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    if os.environ.get("IRONFLOW_TEST_NO_POSTGRES") == "1":
        pytest.skip("IRONFLOW_TEST_NO_POSTGRES=1")
    [(command, _)] = blocks(CLUSTER.partition("<!-- try:begin -->")[2].partition("<!-- try:end -->")[0])
    _, *words = shlex.split(command)
    with running([sys.executable, *words], tmp_path) as server:
        url = first_line(server).strip()
        with running([sys.executable, "-m", "ironflow", "serve", "--port", "0", "--db", url], tmp_path) as node:
            assert first_line(node).startswith("serving postgresql://")
            node.terminate()
            assert node.wait(20) == 0
        server.send_signal(signal.SIGINT)
        assert server.wait(20) == 0
        assert server.stdout is not None
        assert server.stdout.read() == ""
    assert (tmp_path / "try-pg" / "PG_VERSION").exists()
