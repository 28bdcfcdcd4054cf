"""Stdout holds the result alone, or JSON alone, whatever an author's code prints, and by whichever way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, environment, eventually, process

from ironflow.cli import stdout
from ironflow.cli.main import main

FLOWS = """
import os, subprocess, sys
from ironflow import Context, step, workflow

print("told while loading")

@step
def tell(n: int) -> int:
    print("told by print")
    print("told by another stream", file=sys.__stdout__, flush=True)
    os.write(1, b"told to the descriptor\\n")
    subprocess.run(["echo", "told by a child"], check=True)
    return n

@workflow
async def telling(ctx: Context, n: int) -> int:
    return await tell(n)
"""

TOLD = {
    "told while loading",
    "told by print",
    "told by another stream",
    "told to the descriptor",
    "told by a child",
}

Started = Callable[[list[str]], Popen[str]]


def told(err: str) -> set[str]:
    """What the author's code has printed, as far as it is in a text."""
    return {line for line in err.splitlines() if line.startswith("told ")}


def test_a_run_prints_its_result_alone(cli: Cli) -> None:
    done = process([*cli.run_words("telling", 7), "--db", cli.url])
    assert (done.returncode, done.stdout) == (0, "7\n")
    assert told(done.stderr) == TOLD


def test_a_run_prints_one_json_document_alone(cli: Cli) -> None:
    done = process([*cli.run_words("telling", 7), "--json", "--db", cli.url])
    assert json.loads(done.stdout)["output"] == 7
    assert told(done.stderr) == TOLD


def test_creating_a_run_prints_its_id_alone(cli: Cli) -> None:
    done = process(["runs", "create", f"{cli.flows}:telling", "-i", "1", "--id", "r1", "--db", cli.url])
    assert done.stdout == "r1\n"
    assert told(done.stderr) == {"told while loading"}


@pytest.mark.parametrize("more", [[], ["--processes", "1"]])
def test_a_worker_prints_json_lines_alone(cli: Cli, started: Started, more: list[str]) -> None:
    process(["runs", "create", f"{cli.flows}:telling", "-i", "1", "--id", "r1", "--db", cli.url])
    worker = started(["worker", str(cli.flows), "--json", *more, "--db", cli.url])
    eventually(lambda: cli.json("runs", "get", "r1")["state"] == "completed", "it has executed")
    worker.send_signal(signal.SIGINT)
    out, err = worker.communicate(timeout=60)
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["ready", "draining", "stopped"]
    assert told(err) == TOLD


def test_a_node_that_executes_prints_json_lines_alone(cli: Cli, started: Started) -> None:
    process(["runs", "create", f"{cli.flows}:telling", "-i", "1", "--id", "r1", "--db", cli.url])
    node = started(["serve", "--app", str(cli.flows), "--json", "--port", "0", "--db", cli.url])
    eventually(lambda: cli.json("runs", "get", "r1")["state"] == "completed", "it has executed")
    node.send_signal(signal.SIGINT)
    out, err = node.communicate(timeout=60)
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["ready", "stopping", "stopped"]
    assert told(err) == TOLD


def test_a_thread_that_prints_after_the_result_does_not_print_behind_it(cli: Cli) -> None:
    cli.flows.write_text(
        FLOWS + "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(3), os.write(1, b'told late\\n'))).start()\n"
    )
    done = process([*cli.run_words("telling", 7), "--db", cli.url])
    assert done.stdout == "7\n"
    assert "told late" in told(done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full is Linux's")
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_result_that_cannot_be_written_has_the_exit_code_of_that(cli: Cli, more: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        words = [sys.executable, "-m", "ironflow", *cli.run_words("telling", 7), *more, "--db", cli.url]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, env=environment(), timeout=60, check=False)
    assert done.returncode == 74
    assert b"error OUTPUT: the output could not be written: No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_who_calls_the_command_gets_its_streams_back(cli: Cli) -> None:
    before = sys.stdout
    assert main([*cli.run_words("telling", 7), "--db", cli.url]) == 0
    assert sys.stdout is before
    assert stdout.stream() is before
    print("after it")
    assert cli.capsys.readouterr().out == "7\nafter it\n"


def test_the_descriptor_itself_is_given_back(cli: Cli) -> None:
    """In a process of its own, whose `sys.stdout` is what descriptor 1 leads to."""
    words = [*cli.run_words("telling", 7), "--db", cli.url]
    code = f"import os; from ironflow.cli.main import main; main({words!r}); os.write(1, b'after it')"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60, check=False
    )
    assert done.stdout == "7\nafter it"
    assert told(done.stderr) == TOLD


def test_a_line_of_the_commands_never_comes_into_one_that_is_being_printed() -> None:
    """`print` writes its text and the end of its line apart, and a step prints in a thread of its own."""
    code = (
        "import sys; from ironflow.cli import stdout; stdout.keep(); "
        "sys.stdout.write('told by print'); print('run r1', file=sys.stderr); sys.stdout.write('\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.stdout, done.stderr) == ("", "run r1\ntold by print\n")


def test_what_stderr_cannot_encode_is_printed_escaped() -> None:
    code = "from ironflow.cli import stdout; stdout.keep(); print('\\u2713')"
    env = {**environment(), "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    assert (done.stdout, done.stderr) == ("", "\\u2713\n")
