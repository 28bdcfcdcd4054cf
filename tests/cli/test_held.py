"""A run that does not execute says why, where somebody waits for it; and what a new run has passed over is named."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from rich.console import Console
from tests.cli.conftest import Cli, eventually

from ironflow.cli import holding
from ironflow.cli.choice import passed_over
from ironflow.cli.follow import Progress
from ironflow.cli.view import Lines, Live
from ironflow.engine.why import CODES, Hold
from ironflow.errors import StoreUnreachable
from ironflow.model.journal import Event

Started = Callable[[list[str]], Popen[str]]

PAUSED = Hold("WORKFLOW_PAUSED", "workflow add is paused, its runs stay queued; `ironflow workflows resume add`")


def read_until(process: Popen[str], text: str) -> str:
    """The first line of stderr that has this text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"never told: {text}")


def test_a_run_of_a_paused_workflow_says_so_and_goes_on_when_that_is_resumed(both: Cli, started: Started) -> None:
    both.run("add", 1)
    both("workflows", "pause", "add")
    running = started([*both.run_words("add", 2), "--db", both.url])
    line = read_until(running, "held: ")
    assert line.startswith("held: WORKFLOW_PAUSED: workflow add is paused")
    assert "`ironflow workflows resume add`" in line
    both("workflows", "resume", "add")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (0, "5\n"), err


def test_a_run_that_is_not_due_says_when_it_is(cli: Cli, started: Started) -> None:
    cli.json("runs", "create", f"{cli.flows}:add", "-i", "1", "--id", "later", "--at", "+10m")
    running = started(["run", f"{cli.flows}:add", "--id", "later", "--db", cli.url])
    assert read_until(running, "held: ").startswith("held: SCHEDULED: does not start before then (in 10m, ")
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 75


def test_the_live_view_shows_a_hold_until_the_run_moves() -> None:
    view, progress = Live("add"), Progress()
    view.console = Console(file=io.StringIO(), width=60)

    def shown() -> str:
        view.console = Console(file=io.StringIO(), width=60)
        view.console.print(view.render())
        return " ".join(view.console.file.getvalue().split())  # type: ignore[attr-defined]

    progress.feed(Event(1, "run_created", None, "{}", 1, 0))
    view.update(progress, [])
    assert "held" not in shown()
    view.held(PAUSED)
    assert f"held: WORKFLOW_PAUSED: {PAUSED.message}" in shown(), "whole, however narrow the terminal"
    progress.feed(Event(2, "run_started", None, "{}", 1, 0))
    assert "held" not in shown()


def test_in_a_file_a_hold_is_a_line_each_time_it_changes() -> None:
    view = Lines()
    view.console = Console(file=io.StringIO(), width=200)
    full = Hold("LANE_FULL", "lane a is full")
    for hold in (None, PAUSED, PAUSED, full, full, None, full):
        view.held(hold)
    lines = view.console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split(": ")[1] for line in lines] == ["WORKFLOW_PAUSED", "LANE_FULL", "LANE_FULL"]


def test_what_is_seen_anyway_is_not_called_a_hold() -> None:
    assert CODES.keys() >= holding._SEEN
    seen = [Hold(code, "") for code in sorted(holding._SEEN)]
    assert holding.first(seen) is None
    assert holding.first([*seen, PAUSED]) is PAUSED


async def test_a_database_that_is_away_does_not_end_the_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holding, "LOOK_S", 0.001)
    answers = iter([StoreUnreachable("away"), [PAUSED]])
    found: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()

    async def look() -> list[Hold]:
        answer = next(answers, [PAUSED])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def tell(hold: Hold | None) -> None:
        if hold is not None and not found.done():
            found.set_result(hold)

    progress = Progress()
    progress.feed(Event(1, "run_created", None, "{}", 1, 0))
    task = asyncio.ensure_future(holding.watch(look, progress, tell))
    assert await asyncio.wait_for(found, 10) is PAUSED
    task.cancel()


# ---- what was passed over


def test_a_new_run_names_the_unfinished_ones_of_other_inputs(cli: Cli) -> None:
    ids = [f"waits-{n}" for n in range(5)]
    for n, run_id in enumerate(ids):
        cli("runs", "create", f"{cli.flows}:add", "-i", str(n), "--id", run_id, "--at", "+1h")
    assert cli(*cli.run_words("add", 99)) == "199\n"
    [line] = [line for line in cli.err.splitlines() if "unfinished" in line]
    told = "5 runs of add with other inputs are unfinished: waits-4, waits-3, waits-2 and 2 more"
    assert line == f"{told}; to go on with one: --id ID"
    for words in (["--new"], ["--id", "mine"]):  # then it was chosen
        cli(*cli.run_words("add", 98, *words))
        assert "unfinished" not in cli.err
    cli(*cli.run_words("none"))
    assert "unfinished" not in cli.err, "those are of another workflow"


def test_a_single_one_is_named_with_the_option_that_goes_on_with_it(cli: Cli) -> None:
    cli("runs", "create", f"{cli.flows}:add", "-i", "1", "--id", "waits", "--at", "+1h")
    cli(*cli.run_words("add", 2))
    assert "a run of add with another input is unfinished: waits; to go on with it: --id waits\n" in cli.err


def test_so_many_that_not_all_were_compared_are_told_as_that() -> None:
    assert passed_over("w", [str(n) for n in range(1_000)]).startswith("1,000 or more runs of w ")


# ---- a paused run in JSON


def test_the_json_of_a_paused_run_has_its_hold(cli: Cli, started: Started, tmp_path: Path) -> None:
    folder = tmp_path / "held"
    folder.mkdir()
    running = started([*cli.run_words("holding", str(folder), "--id", "p1"), "--json", "--db", cli.url])
    eventually(lambda: (folder / "bodies").exists(), "it executes")
    cli("runs", "pause", "p1")
    out, _ = running.communicate(timeout=60)
    ended = json.loads(out)
    assert (running.returncode, ended["state"]) == (6, "paused")
    assert ended["hold"] == cli.json("runs", "get", "p1")["hold"]
    assert "`ironflow runs resume p1`" in ended["hold"]["message"]
    assert cli.run("add", 1)["hold"] is None
