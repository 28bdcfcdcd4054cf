"""What a person reads who knows nothing yet: the help, whole; and messages that lead to the next command."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Cli, environment, eventually

from ironflow.cli.app import command as whole_command
from ironflow.cli.follow import Progress
from ironflow.cli.lines import line
from ironflow.cli.main import main
from ironflow.cli.view import Live
from ironflow.model.journal import Event

FLOWS = """
from ironflow import Context, step, workflow

@step
async def one(n: int) -> int:
    return n

@step
async def bad(n: int) -> int:
    raise ValueError("no luck")

@workflow
async def undone(ctx: Context) -> int:
    ctx.compensate(one, 1)
    return await bad(1)

@workflow
async def warns(ctx: Context) -> int:
    ctx.warn("the mail may have been sent")
    return await one(1)

@workflow
async def waits(ctx: Context) -> None:
    await ctx.sleep("1h")

if __name__ == "__main__":
    import ironflow, sys
    print(ironflow.run({"bad": undone, "waits": waits}[sys.argv[1]]))
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "newcomer.py"
    path.write_text(FLOWS)
    return str(path)


def commands(words: tuple[str, ...] = (), command: Any = None) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or whole_command()
    yield words, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands((*words, name), below)


def words_of(text: str) -> str:
    """Text without the frames, the colours and the places where it was broken."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", " ", text).split())


COMMANDS = [pytest.param(words, command, id=" ".join(words) or "ironflow") for words, command in commands()]


@pytest.mark.parametrize(("words", "command"), COMMANDS)
def test_nothing_of_the_help_is_swallowed(
    words: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # wide enough that no sentence is broken across two cells
    assert main([*words, "--help"]) == 0
    shown = words_of(capsys.readouterr().out)
    sentences = [part for part in command.help.split("\n\n") if part]
    sentences += [parameter.help for parameter in command.params if getattr(parameter, "help", None)]
    assert [text for text in sentences if words_of(text) not in shown] == []


@pytest.mark.parametrize("columns", ["40", "60", "72", "80"])
@pytest.mark.parametrize(("words", "command"), COMMANDS)
def test_the_help_cuts_no_name_however_narrow_the_terminal(
    words: tuple[str, ...],
    command: Any,
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main([*words, "--help"]) == 0
    shown = capsys.readouterr().out
    if columns == "40":  # names are broken there, but nothing of them is lost
        assert getattr(command, "commands", None) or not re.search(r"[A-Z]…|--[\w-]*…", shown)
        return
    for option in [name for parameter in command.params for name in parameter.opts if name.startswith("-")]:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", shown), option
    wanted = set(re.findall(r"IRONFLOW_\w+", " ".join(getattr(one, "help", None) or "" for one in command.params)))
    assert {name for name in wanted if name not in shown} == set()


@pytest.mark.parametrize(("words", "command"), COMMANDS)
def test_what_stands_for_a_value_is_one_word(words: tuple[str, ...], command: Any) -> None:
    assert not [parameter.metavar for parameter in command.params if "_" in (parameter.metavar or "")]


def test_paragraphs_of_the_help_fill_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith(" The result goes to stdout"))
    first, second = lines[start], lines[start + 1]
    assert len(f"{first} {second.split()[0]}") > 79  # broken because the next word did not fit


def test_a_run_that_was_undone_is_told_with_the_command_that_works(cli: Cli, file: str) -> None:
    cli("run", f"{file}:undone", "--id", "u1", code=1)
    told = "ironflow runs retry u1 --restart"
    assert told in cli.err
    assert told in cli("why", "u1")
    cli("runs", "retry", "u1", code=2)
    cli("runs", "retry", "u1", "--restart")


def test_a_file_given_as_a_database_is_told_how_to_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--db", "data/orders.db"]) == 2
    assert "write sqlite:///data/orders.db" in capsys.readouterr().err
    assert main(["runs", "list", "--db", "me:geheim@host/x.db"]) == 2
    assert "geheim" not in capsys.readouterr().err


def test_warnings_are_read_where_the_run_is(cli: Cli, file: str) -> None:
    cli("run", f"{file}:warns", "--id", "w1")
    assert "\nwarning: the mail may have been sent\n" in cli("runs", "get", "w1")


def test_the_live_view_leaves_a_warning_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    view, progress = Live("mail"), Progress()
    view.console = Console(file=io.StringIO(), width=80)
    event = Event(1, "warning", None, '{"message": "sent twice?"}', 1, 0)
    view.update(progress, [event])
    assert view.console.file.getvalue() == "warning: sent twice?\n"  # type: ignore[attr-defined]


def test_the_live_view_tells_a_short_wait_in_milliseconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ironflow.cli.view._now_ms", lambda: 1_000)
    live, progress = Live("mail"), Progress()
    progress.feed(Event(1, "step_started", "main/1:send", "{}", 1, 900))
    progress.feed(Event(2, "step_retrying", "main/1:send", '{"due": 1300, "attempt": 1, "of": 3}', 1, 990))
    live.progress, live.console = progress, Console(file=io.StringIO(), width=80)
    live.console.print(live.render())
    assert "again in 300ms" in live.console.file.getvalue()  # type: ignore[attr-defined]


def test_a_line_has_nothing_behind_its_last_word_and_rounds_what_was_planned() -> None:
    bare = Event(1, "timer_fired", "main/t1", "{}", 1, 0)
    retry = Event(2, "run_retrying", None, '{"due": 10999, "attempt": 1, "of": 2}', 1, 10_000)
    assert line(bare).plain.endswith("timer_fired")
    assert "again in 1.0s" in line(retry).plain


def script(file: str, name: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, file, name],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_script_whose_run_fails_says_in_which_line(file: str, tmp_path: Path) -> None:
    _, err = script(file, "bad", tmp_path).communicate(timeout=60)
    assert re.search(r"Where it failed:\n.*newcomer\.py\", line \d+, in undone\n", err)
    assert 'raise ValueError("no luck")' in err.split("Where it failed:")[1]


def test_ctrl_c_ends_a_script_without_debris_and_leaves_the_run(file: str, tmp_path: Path, cli: Cli) -> None:
    cli.url = f"sqlite:///{tmp_path}/ironflow.db"
    with script(file, "waits", tmp_path) as going:
        try:
            cli.ready()
            eventually(lambda: [run["state"] for run in cli.json("runs", "list")] == ["sleeping"], "asleep")
            going.send_signal(signal.SIGINT)
            _, err = going.communicate(timeout=60)
        finally:
            going.kill()
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert "was destroyed" not in err
    assert [run["state"] for run in cli.json("runs", "list")] == ["sleeping"]


def test_the_demo_says_on_which_database_it_plays(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    told = " ".join(re.sub("[│─]", " ", capsys.readouterr().out).split())
    assert "without it a SQLite file that is gone afterwards" in told
    assert "IRONFLOW_DATABASE_URL" not in told
