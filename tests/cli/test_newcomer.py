"""What somebody meets who has never seen Ironflow: slips are answered with the command that works, a run that nobody
executes is told with the next command, and no screen shows the inside of a library.
"""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.conftest import Cli, environment
from tests.cli.test_help import COMMANDS

from ironflow.cli import completing
from ironflow.cli.app import command as whole_command
from ironflow.cli.follow import Progress
from ironflow.cli.logs import configure
from ironflow.cli.main import main
from ironflow.cli.view import Live
from ironflow.config import Settings
from ironflow.errors import InvalidSettings
from ironflow.model.journal import Event
from ironflow.store import connect

FLOWS = """
import logging
from ironflow import Context, NonRetryableError, Retry, step, step_info, workflow

@step(retry=Retry(3, backoff="40ms"))
async def flaky(n: int) -> int:
    logging.getLogger("bank").warning("asked for %s", n)
    if step_info().attempt < 3:
        raise ConnectionError("busy")
    return n

@step
def refund(n: int) -> None: ...

@step
async def bad(n: int) -> int:
    raise NonRetryableError("declined\\nask the bank")

@workflow
async def order(ctx: Context, n: int) -> int:
    ctx.compensate(refund, n)
    ctx.log.info("order %s", n)
    await flaky(n)
    return await bad(n)
"""


def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let stderr pass for a terminal, without colours. (No fixture: capturing changes the stream after those.)"""
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


# ---- slips


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list"], "Did you mean `ironflow runs list`?"),
        (["journal", "x"], "Did you mean `ironflow runs journal`?"),
        (["lsit"], "Did you mean `ironflow runs list`?"),
        (["run", "x.py", "--server", "http://h"], "`ironflow runs create TARGET --server URL`"),
        (["doctor", "--server", "http://h"], "works on a database, which --db names"),
        (["--nonsense"], "See `ironflow --help`."),
    ],
)
def test_a_slip_is_answered_with_the_command_that_works(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err
    assert main([*words, "--json"]) == 2
    assert says in json.loads(capsys.readouterr().out)["error"]["hint"]


@pytest.mark.parametrize("words", [["run", "x.py", "--db"], ["capacity", "queue", "--json", "-n"]])
def test_an_option_without_its_value_is_told_with_the_help_of_its_command(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    path = " ".join(word for word in words if word.isalpha())
    assert f"See `ironflow {path} --help`." in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("foo", "'foo' is not the address"),
        ("mysql://x/y", "'mysql://x/y' is not the address"),
        ("mysql://u:geheim@host/y", "'mysql://u:***@host/y' is not the address"),
        ("u:geheim@host/y", "'***' is not the address"),
        ("pass=geheim", "'***' is not the address"),
    ],
)
def test_what_is_no_address_is_shown_but_for_a_password_with_who_gave_it(
    address: str, says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["runs", "list", "--db", address]) == 2
    assert f"--db: {says}" in capsys.readouterr().err
    monkeypatch.setenv("IRONFLOW_DATABASE_URL", address)
    assert main(["runs", "list"]) == 2
    assert f"IRONFLOW_DATABASE_URL: {says}" in capsys.readouterr().err


async def test_a_program_is_told_the_same_of_an_address() -> None:
    with pytest.raises(InvalidSettings, match="'foo' is not the address"):
        await connect("foo")


# ---- a run that nobody executes


def test_a_run_without_a_worker_is_told_with_the_command_that_starts_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_a_terminal(monkeypatch)
    start = f"ironflow worker {cli.flows}:order --db {cli.url}"
    assert cli("runs", "create", f"{cli.flows}:order", "--input", "1", "--id", "w1") == "w1\n"
    assert start in cli.err
    anywhere = f"ironflow worker FILE --db {cli.url}"
    assert anywhere in cli("why", "w1")
    cli("runs", "pause", "w1")
    assert cli("runs", "resume", "w1") == "w1 pending\n"
    assert anywhere in cli.err
    cli.json("runs", "create", f"{cli.flows}:order", "--input", "2")
    assert cli.err == ""


def test_what_is_piped_gets_no_advice(cli: Cli) -> None:
    assert cli("runs", "create", f"{cli.flows}:order", "--input", "1", "--id", "w1") == "w1\n"
    assert cli.err == ""


def test_a_workflow_that_nobody_registered_is_told_with_the_command_that_registers_it(cli: Cli) -> None:
    cli("runs", "create", "nix", "--input", "1", code=4)
    assert f"Start a worker that has it: `ironflow worker FILE --db {cli.url}`" in cli.err


# ---- what belongs to another command


@pytest.mark.parametrize(
    ("words", "code"),
    [(["doctor"], 5), (["apikey", "list"], 5), (["doctor", "--json"], 5), (["run", "absent-flows.py"], 2)],
)
def test_a_command_that_uses_no_server_says_so_where_the_environment_names_one(
    words: list[str], code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IRONFLOW_DATABASE_URL", "sqlite:///of-the-environment.db")
    line = "works on the database sqlite:///of-the-environment.db, and not on the server of IRONFLOW_SERVER\n"
    assert main(words) == code
    assert line not in capsys.readouterr().err
    monkeypatch.setenv("IRONFLOW_SERVER", "http://127.0.0.1:9")
    assert main(words) == code
    assert (line in capsys.readouterr().err) == (words[0] != "run"), "code that is not there is told first"
    assert main([*words, "--db", "sqlite:///named.db"]) == code
    assert "IRONFLOW_SERVER" not in capsys.readouterr().err, "who names a database means it"


def test_a_run_says_so_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRONFLOW_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("IRONFLOW_DATABASE_URL", cli.url)
    assert main(["run", f"{cli.flows}:order", "-i", "1"]) == 1
    told = cli.capsys.readouterr().err
    assert f"works on the database {cli.url}, and not on the server of IRONFLOW_SERVER\n" in told


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("uvicorn", "server", ["serve"]),
        ("aiohttp", "client", ["runs", "list", "--server", "http://127.0.0.1:9"]),
        ("asyncpg", "postgres", ["runs", "list", "--db", "postgresql://127.0.0.1:1/x"]),
    ],
)
def test_a_missing_extra_is_told_with_one_code_and_how_to_install_it(
    library: str, extra: str, words: list[str], tmp_path: Path
) -> None:
    code = f"import sys; sys.modules[{library!r}] = None; from ironflow.cli.main import main; sys.exit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment()
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error SETTINGS_INVALID: ")
    assert library in done.stderr
    assert f"pip install 'ironflow-engine[{extra}]', or in a clone pip install '.[{extra}]'\n" in done.stderr


# ---- words


def test_a_count_that_is_too_small_is_told_without_a_unit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IRONFLOW_THREADS", "0")
    assert main(["runs", "list"]) == 2
    assert "threads is 0: it must be at least 1\n" in capsys.readouterr().err


def test_a_workflow_is_told_as_what_it_is_and_was(cli: Cli) -> None:
    cli("run", f"{cli.flows}:order", "--input", "7", code=1)
    told = [cli("workflows", verb, "order") for verb in ("pause", "pause", "resume", "resume")]
    assert told == [
        "order is now paused\n",
        "order was already paused\n",
        "order is no longer paused\n",
        "order was not paused\n",
    ]


def test_an_input_that_does_not_fit_is_told_alike_by_code_and_by_name(cli: Cli) -> None:
    cli.flows.write_text(
        "from dataclasses import dataclass\nfrom ironflow import Context, workflow\n"
        "@dataclass\nclass Tea:\n    name: str\n    cups: int = 1\n"
        "@workflow\nasync def brew(ctx: Context, tea: Tea) -> None: ...\n"
    )
    cli("run", f"{cli.flows}:brew", "--input", '{"name": "a"}')
    for target in ("brew", f"{cli.flows}:brew"):
        for given in ([], ["--input", "1"]):
            hint = cli.json("runs", "create", target, *given, code=2)["error"]["hint"]
            assert hint.endswith('Expected: {"name": string, "cups": integer (optional)}')


# ---- ids


def test_an_id_is_copied_from_a_table_with_its_ellipsis(cli: Cli) -> None:
    for run_id in ("aaaa-first", "first-bbbb", "second-aaaa"):
        cli.json("runs", "create", f"{cli.flows}:order", "--input", "1", "--id", run_id)
    assert cli.json("runs", "get", "…-aaaa")["run_id"] == "second-aaaa"
    assert cli.json("runs", "get", "…aaaa")["run_id"] == "second-aaaa"
    assert cli.json("runs", "get", "aaaa…")["run_id"] == "aaaa-first"
    assert "means 2 runs" in cli.json("runs", "get", "aaaa", code=2)["error"]["message"]
    assert cli.json("runs", "get", "…aaa", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert cli.json("runs", "get", "…first", code=0)["run_id"] == "aaaa-first"


# ---- a run that fails


def test_an_error_is_said_whole_once_and_its_frames_behind_it(cli: Cli) -> None:
    cli("run", f"{cli.flows}:order", "--input", "7", "--id", "f1", code=1)
    assert cli.err.count("ask the bank") == 1 + cli.err.count('raise NonRetryableError("')
    assert cli.err.count("NonRetryableError: declined") == 2  # of the step that failed, and of the run
    assert cli.err.index("error RUN_FAILED") < cli.err.index("in bad")


def test_a_journal_keeps_its_columns_and_a_step_its_whole_time(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    cli("run", f"{cli.flows}:order", "--input", "7", "--id", "f1", code=1)
    lines = cli("runs", "journal", "f1").splitlines()
    assert {line.index("main/") - len(name) for line in lines for name in ("flaky  ", "refund  ") if name in line} == {
        len("    1  00:00:00.000  compensation_registered  ")
    }
    steps = next(step for step in cli.json("runs", "get", "f1")["steps"] if step["name"] == "flaky")
    whole = steps["tries"][-1]["ended_at_ms"] - steps["tries"][0]["started_at_ms"]
    row = next(line for line in cli("runs", "get", "f1").splitlines() if line.startswith("flaky  main/1"))
    assert row.endswith(f"{whole}ms")


def test_after_a_restart_no_step_counts_as_done(cli: Cli) -> None:
    cli("run", f"{cli.flows}:order", "--input", "7", "--id", "f1", code=1)
    cli("runs", "retry", "f1", "--restart")
    cli("run", f"{cli.flows}:order", "--id", "f1", code=1)
    assert "goes on; 0 steps done" in cli.err


def test_an_error_has_the_name_under_which_authors_have_it(cli: Cli) -> None:
    cli("run", f"{cli.flows}:order", "--input", "7", "--id", "f1", code=1)
    assert cli.json("runs", "get", "f1")["error"]["type"] == "ironflow.NonRetryableError"


def test_the_live_view_tells_calls_of_one_step_apart() -> None:
    view, progress = Live("many"), Progress()
    for seq in (1, 2):
        progress.feed(Event(seq, "step_started", f"main/{seq}:slow", "{}", 1, 0))
    view.progress, view.console = progress, Console(file=io.StringIO(), width=80)
    view.console.print(view.render())
    shown = view.console.file.getvalue()  # type: ignore[attr-defined]
    assert "slow  main/1\n" in shown
    assert "slow  main/2\n" in shown


# ---- the log


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_of_a_run_names_the_run_and_the_step(form: str, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setenv("IRONFLOW_LOG_FORMAT", form)
    cli("run", f"{cli.flows}:order", "--input", "7", "--id", "0123456789-abcdefghijkl", code=1)
    if form == "text":
        assert "info    …abcdefghijkl: order 7\n" in cli.err
        assert "warning …abcdefghijkl flaky: asked for 7\n" in cli.err
        return
    told = {one["message"]: one for one in map(json.loads, (x for x in cli.err.splitlines() if x.startswith("{")))}
    assert told["order 7"]["run_id"] == told["asked for 7"]["run_id"] == "0123456789-abcdefghijkl"
    assert (told["asked for 7"]["step"], told["asked for 7"]["step_id"]) == ("flaky", "main/1:flaky")


def test_a_record_of_no_run_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    written: list[str] = []
    configure(Settings(), written.append)
    logging.getLogger("ironflow.test").warning("hello")
    assert written[0].endswith("warning hello")


# ---- the help


@pytest.mark.parametrize(("words", "command"), COMMANDS)
def test_the_help_shows_no_type_of_python_and_no_brackets_that_are_not_meant(
    words: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main([*words, "-h"]) == 0
    shown = capsys.readouterr().out
    assert [sign for sign in ("<bool>", "<str>", "<int", "<list", "{", "[[") if sign in shown] == []


def test_the_exit_codes_are_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "\n   3  the run was cancelled" in "\n".join(x.rstrip() for x in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(("option", "name"), [("concurrency", "concurrency"), ("threads", "threads")])
def test_the_help_tells_the_number_that_counts_without_the_option(option: str, name: str) -> None:
    worker = whole_command().commands["worker"]
    told = next(one.help for one in worker.params if one.name == option)
    assert told.endswith(f"without it IRONFLOW_{name.upper()}, or {getattr(Settings(), name)}.")


# ---- the Tab key


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What a shell is told to offer for the last of these words."""
    monkeypatch.setenv("_IRONFLOW_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"ironflow {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" "))))
    with pytest.raises(SystemExit):
        main([])
    out, err = capsys.readouterr()
    assert err == ""
    return out.split()


def test_states_workflows_and_ids_are_completed(
    both: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(completing, "WAIT_S", 30)  # for a machine that is busy; what is tested here is what is offered
    both("run", f"{both.flows}:order", "--input", "7", "--id", "tab-1", code=1)
    both("run", f"{both.flows}:order", "--input", "7", "--id", "tab-2", code=1)
    assert completed("runs list --state awa", monkeypatch, capsys) == ["awaiting_approval"]
    assert completed(f"runs get --db {both.url} tab", monkeypatch, capsys) == ["tab-2", "tab-1"]
    assert completed(f"runs retry --db {both.url} tab-1 tab-2", monkeypatch, capsys) == ["tab-2"]
    assert completed(f"runs list --db {both.url} -w or", monkeypatch, capsys) == ["order"]


@pytest.mark.parametrize(
    "place", ["--db nothing", "--db sqlite:///no/such/file.db", "--db postgresql://127.0.0.1:1/x", "--server http://h"]
)
def test_completing_is_never_an_error(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert completed(f"why {place} 01", monkeypatch, capsys) == []
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket
    import time

    monkeypatch.setattr(completing, "WAIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/x"
        assert completed(f"why --db {url} 01", monkeypatch, capsys) == []
    assert time.monotonic() - began < 5
