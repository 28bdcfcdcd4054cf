"""A terminal that is closed, or an ssh session that ends, in the middle of a step: what executes is let finish."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, environment, eventually

from ironflow.cli.stopping import Signals

#: Makes the terminal that is its stdin its own, as a login does, and becomes the command behind it.
IN_TERMINAL = """
import os, sys
os.open(os.ttyname(0), os.O_RDWR)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""

InTerminal = Callable[[list[str]], tuple["Popen[bytes]", Callable[[], None]]]


@pytest.fixture
def in_terminal() -> Iterator[InTerminal]:
    """Starts `ironflow WORDS` as the leader of a session; gives the process, and what closes its terminal."""
    with ExitStack() as stack:

        def start(words: list[str]) -> tuple[Popen[bytes], Callable[[], None]]:
            terminal, end = pty.openpty()
            command = [sys.executable, "-c", IN_TERMINAL, "-m", "ironflow", *words]
            running = Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True, env=environment())
            stack.callback(running.wait)
            stack.callback(running.kill)
            os.close(end)
            closing = stack.enter_context(ExitStack())
            closing.callback(os.close, terminal)
            return running, closing.close

        yield start


LASTING = [["worker"], ["worker", "--processes", "1"]]


@pytest.mark.parametrize("words", [["run"], *LASTING, ["serve", "--port", "0"]], ids=" ".join)
def test_a_closed_terminal_lets_the_step_under_way_finish(
    cli: Cli, tmp_path: Path, in_terminal: InTerminal, words: list[str]
) -> None:
    target, given = f"{cli.flows}:holding", ["--input", json.dumps(str(tmp_path))]
    if words == ["run"]:
        words = ["run", target, *given]
    else:
        cli("runs", "create", target, *given)
        words = [*words, *(["--app"] if "serve" in words else []), str(cli.flows)]
    running, close_terminal = in_terminal([*words, "--db", cli.url])
    eventually(lambda: (tmp_path / "bodies").exists(), "the step executes")
    close_terminal()
    running.send_signal(signal.SIGHUP)  # as the shell does, besides the kernel
    eventually(lambda: cli.json("capacity", "sessions")[0]["draining"], "it leaves")
    (tmp_path / "go").touch()
    assert running.wait(30) in (0, 75)
    [run] = cli.json("runs", "list")
    events = cli.lines("runs", "journal", run["run_id"])
    assert [event["kind"] for event in events if "hold" in (event["step_id"] or "")] == [
        "step_started",
        "step_completed",
    ]


@pytest.mark.parametrize("words", LASTING, ids=" ".join)
def test_what_was_started_to_outlive_its_terminal_hears_of_no_hangup(
    cli: Cli, tmp_path: Path, words: list[str]
) -> None:
    cli("runs", "create", f"{cli.flows}:holding", "--input", json.dumps(str(tmp_path)))
    command = [sys.executable, "-m", "ironflow", *words, str(cli.flows), "--db", cli.url]
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *command]
    with Popen(ignoring, stderr=subprocess.DEVNULL, env=environment()) as running:
        try:
            eventually(lambda: (tmp_path / "bodies").exists(), "the step executes")
            for pid in {running.pid, int((tmp_path / "bodies").read_text())}:
                os.kill(pid, signal.SIGHUP)
            (tmp_path / "go").touch()
            run_id = cli("runs", "create", f"{cli.flows}:add", "--input", "1").strip()
            eventually(lambda: cli.json("runs", "get", run_id)["state"] == "completed", "it takes another run")
            running.terminate()
            assert running.wait(30) == 0
        finally:
            running.kill()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_demo_that_is_told_to_leave_puts_its_things_away(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "ironflow", "demo", "--json"]
    with Popen(command, stderr=subprocess.PIPE, env={**environment(), "TMPDIR": str(tmp_path)}, text=True) as running:
        try:
            eventually(lambda: list(tmp_path.glob("ironflow-demo-*/*.log")), "it plays")
            running.send_signal(number)
            _, told = running.communicate(timeout=30)
        finally:
            running.kill()
    assert (running.returncode, told.strip()) == (130, "stopped; its processes and files are gone")
    assert not list(tmp_path.glob("ironflow-demo-*"))


async def test_what_a_supervisor_passes_on_of_a_hangup_is_no_second_signal() -> None:
    with Signals() as signals:
        for number, count in (
            (signal.SIGHUP, 1),
            (signal.SIGHUP, 1),
            (signal.SIGTERM, 1),
            (signal.SIGTERM, 2),
            (signal.SIGHUP, 2),
            (signal.SIGINT, 3),
        ):
            signal.raise_signal(number)
            assert signals.count == count, number
