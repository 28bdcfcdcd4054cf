"""What commands tell of runs and of themselves: past as past, a pause as a pause, and who it is that speaks."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, eventually
from tests.cli.test_looking import created

import ironflow
from ironflow.cli import times
from ironflow.cli.lines import line
from ironflow.cli.logs import configure
from ironflow.cli.main import main
from ironflow.config import Settings
from ironflow.model.journal import Event

FLOWS = """
from ironflow import Context, Lane, Retry, step, step_info, workflow

@step(retry=Retry(3, backoff=0.01))
async def flaky(n: int) -> int:
    if step_info().attempt < 2:
        raise ConnectionError("the bank is busy")
    return n

@workflow
async def at_last(ctx: Context, n: int) -> int:
    ctx.set_status("waiting for second thoughts")
    return await flaky(n)

@workflow
async def in_vain(ctx: Context) -> None:
    ctx.set_status("about to fail")
    raise ValueError("no")

@workflow(lane=Lane(1, key=lambda name: name))
async def each(ctx: Context, name: str) -> str:
    return name

@workflow
async def perhaps(ctx: Context, name: str | None) -> str | None:
    return name
"""


# ---- a run as it stands


def test_what_is_past_is_not_told_as_news(cli: Cli, flows: Path) -> None:
    assert cli.run("at_last", 7, "--id", "good")["state"] == "completed"
    text = cli("runs", "get", "good")
    assert "second thoughts" not in text
    assert "flaky  main/1, before it completed in try 2\ntry 1: ConnectionError: the bank is busy\n" in text
    assert text.endswith("\noutput\n7\n")
    cli.run("in_vain", None, "--id", "bad", code=1)
    assert "last status  about to fail" in cli("runs", "get", "bad")


def test_a_try_that_was_cut_off_does_not_count_as_one_more(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    from ironflow.cli import output
    from ironflow.cli.run_screen import _steps
    from ironflow.model.fold import StepView, Try

    tries = [Try(1, "interrupted", 0, 5, {"message": "interrupted: worker lease lost"}), Try(1, "completed", 9, 12)]
    _steps([StepView("main/1:pay", "pay", state="completed", tries=tries)], 20).print(output.screen())
    head, pay, first, second = (row.split() for row in capsys.readouterr().out.splitlines())
    assert pay[head.index("TRIES") + 1] == "1"  # the step's number is a word of its own
    assert (first[:3], second[:4]) == (["try", "1", "interrupted"], ["try", "1", "again", "completed"])


def test_a_timer_is_told_by_its_end_which_no_outage_changes() -> None:
    asked = 1_800_000_000_000
    due = asked + 2_000
    for late in (0, 1_010, 2_500):
        started = Event(2, "timer_started", "main/t1", f'{{"due": {due}}}', 1, asked + late)
        assert line(started).plain.endswith(f"until {times.clock(due)}")
        asleep = Event(3, "run_suspended", None, f'{{"state": "sleeping", "due": {due}}}', 1, asked + late)
        assert line(asleep).plain.endswith(f"sleeping until {times.clock(due)}")
    next_year = asked + 200 * 86_400_000
    assert times.moment(next_year, asked).startswith("2027-")


def test_a_retry_that_is_overdue_when_it_is_written_is_not_told_as_a_wait_of_nothing() -> None:
    payload = '{"due": 900, "attempt": 1, "of": 3, "error": {"message": "x"}}'
    assert "again at once: x" in line(Event(2, "step_retrying", "main/1:a", payload, 1, 1_000)).plain
    assert "again in 100ms: x" in line(Event(2, "step_retrying", "main/1:a", payload, 1, 800)).plain


# ---- watching


def test_watching_ends_when_the_run_is_paused_and_says_why(cli: Cli, flows: Path) -> None:
    run_id = created(cli, "at_last", 1)
    cli("runs", "pause", run_id)
    lines = cli("runs", "watch", run_id, code=6)
    assert "run_paused" in lines.splitlines()[-1]
    assert cli.err.startswith("paused: PAUSED_BY_OPERATOR by ")
    assert f"`ironflow runs resume {run_id}`" in cli.err
    assert [event["kind"] for event in cli.lines("runs", "watch", run_id, code=6)][-1] == "run_paused"
    assert cli.err == ""


def test_a_pause_that_is_over_ends_no_watching(
    cli: Cli, flows: Path, started: Callable[[list[str]], Popen[str]]
) -> None:
    run_id = created(cli, "at_last", 1)
    for verb in ("pause", "resume"):
        cli("runs", verb, run_id)
    watching = started(["runs", "watch", run_id, "--json", "--db", cli.url])
    assert watching.stdout is not None
    seen = [watching.stdout.readline() for _ in range(3)]
    assert "run_unpaused" in seen[-1]
    assert watching.poll() is None
    cli("runs", "cancel", run_id)
    assert watching.wait(30) == 3


# ---- starting by name


def test_a_missing_input_is_refused_before_anything_is_created(both: Cli, flows: Path) -> None:
    created(both, "each", "a")
    for name, value in (("at_last", 1), ("perhaps", None)):
        both.run(name, value)  # its worker registers it
    before = len(both.json("runs", "list"))
    for words in ([], ["--input", "null"]):
        error = both.json("runs", "create", "at_last", *words, code=2)["error"]
        assert error["message"] == "workflow at_last needs an input, and got none or null"
        assert "integer" in error["hint"]
    assert len(both.json("runs", "list")) == before
    both("runs", "create", "perhaps")


def test_a_lane_that_needs_the_code_says_how_the_command_line_gets_it(cli: Cli, flows: Path) -> None:
    cli.run("each", "a")
    error = cli.json("runs", "create", "each", "-i", '"a"', code=2)["error"]
    assert "`ironflow runs create path/file.py:each`" in error["hint"]
    cli("runs", "create", f"{flows}:each", "-i", '"a"')


# ---- words


def test_a_slip_is_answered_in_the_form_of_the_option(cli: Cli, flows: Path) -> None:
    for text in ("g", "=1", "g=x"):
        error = cli.json("runs", "create", f"{flows}:each", "-i", '"a"', "--limit", text, code=2)["error"]
        assert "GROUP=N" in error["hint"], text
    assert "key=value" in cli.json("runs", "create", f"{flows}:each", "--label", "g", code=2)["error"]["hint"]


@pytest.mark.parametrize("path", ["/api/v1", "/api/v1/", "/v1", "/under/a/prefix/api/v1"])
def test_an_address_with_the_path_of_the_api_is_told_without_it(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--server", f"http://localhost:9{path}"]) == 2
    whole = path.rstrip("/").removesuffix("/v1").removesuffix("/api")
    assert f"use http://localhost:9{whole}\n" in capsys.readouterr().err


def test_the_first_key_makes_the_database(cli: Cli, tmp_path: Path) -> None:
    assert cli("apikey", "create", "first", "--role", "admin").startswith("ifkey_")
    assert str(tmp_path) in cli.err, "where it lies"
    assert len(cli.json("apikey", "list")) == 1


def test_whoever_finds_no_database_is_told_every_command_that_makes_one(cli: Cli) -> None:
    hint = cli.json("runs", "list", code=5)["error"]["hint"]
    for command in ("run", "worker", "serve", "runs create", "apikey create"):
        assert f"{command} …`" in hint


def test_commands_that_print_json_lines_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for words, lines in ((["runs", "journal"], True), (["runs", "watch"], True), (["runs", "get"], False)):
        main([*words, "--help"])
        assert ("one JSON object per line" in capsys.readouterr().out) is lines, words
    main(["runs", "retry", "--help"])
    assert "go on counting" in " ".join(capsys.readouterr().out.split())


def test_every_advice_begins_like_a_sentence() -> None:
    """With a capital letter, or with what is to be typed."""
    root, small = Path(ironflow.__file__).parent, []
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            given = node.value if isinstance(node, ast.keyword) and node.arg == "hint" else None
            if isinstance(given, ast.JoinedStr) and given.values:
                given = given.values[0]
            if isinstance(given, ast.Constant) and isinstance(given.value, str) and given.value[:1].islower():
                small.append(f"{file.relative_to(root)}:{node.lineno} {given.value}")
    assert small == []


# ---- who speaks


def test_a_worker_names_its_tags(cli: Cli, flows: Path, started: Callable[[list[str]], Popen[str]]) -> None:
    running = started(["worker", str(flows), "--worker-id", "w", "--tag", "gpu", "--tag", "eu", "--db", cli.url])
    assert running.stderr is not None
    assert "serves at_last, each, in_vain, perhaps, with tags gpu, eu, on " in running.stderr.readline()
    assert "gpu, eu" in cli("capacity", "sessions")


def test_each_of_several_processes_says_which_it_is(
    cli: Cli, flows: Path, started: Callable[[list[str]], Popen[str]]
) -> None:
    running = started(["worker", str(flows), "--worker-id", "w", "--processes", "2", "--db", cli.url])
    cli.ready()
    eventually(lambda: len(cli.json("capacity", "sessions")) == 2, "two workers")
    for n in range(4):
        created(cli, "at_last", n)
    eventually(lambda: {row["state"] for row in cli.json("runs", "list")} == {"completed"}, "they ended")
    running.terminate()
    _, err = running.communicate(timeout=30)
    ended = [text for text in err.splitlines() if text.endswith(": completed")]
    assert len(ended) == 4
    assert all(" info    w-1: run " in text or " info    w-2: run " in text for text in ended), err


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_names_its_process_only_where_there_are_several(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("w-1", ""):
        said: list[str] = []
        root = logging.Logger("root", logging.INFO)
        with monkeypatch.context() as patched:
            patched.setattr(logging, "getLogger", lambda name=None, root=root: logging.Logger(name) if name else root)
            configure(Settings(log_format=form), said.append, process=name)
        root.warning("hello")
        assert ("w-1" in said[0]) is bool(name)
        if form == "json":
            assert json.loads(said[0]).get("worker_id") == (name or None)
