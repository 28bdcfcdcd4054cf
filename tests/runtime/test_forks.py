"""Threads and loops stay behind in a fork: a child that uses what its parent opened is told, and harms nothing."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import PATIENCE

import ironflow
from ironflow import Engine
from ironflow.client import Client
from ironflow.config import Settings

pytestmark = [
    pytest.mark.usefixtures("folder"),
    # What a fork of a process with threads may meet is said by Python 3.12, too.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def in_child(act: Callable[[], object]) -> str:
    """What came of something in a forked child process: what it raised, or `nothing`."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            said = "nothing"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    try:
        ready, _, _ = select.select([reading], [], [], PATIENCE)
        assert ready, "the child hangs"
        return os.read(reading, 10_000).decode()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(reading)
        os.close(writing)


def test_a_forked_child_that_uses_the_engine_is_told_to_open_its_own(sqlite_url: str) -> None:
    with ironflow.open(sqlite_url, workflows=program.WORKFLOWS) as engine:
        said = in_child(lambda: engine.wait(engine.run(program.short, "child")))
        assert said.startswith(f"RuntimeError: this was opened by process {os.getpid()}, of which this one")
        assert said.endswith("its threads and connections do not work here; open one of its own in this process")
        assert engine.wait(engine.run(program.short, "parent")) == "parent"


def test_a_forked_child_that_leaves_the_block_closes_nothing(sqlite_url: str) -> None:
    with ironflow.open(sqlite_url, workflows=program.WORKFLOWS) as engine:
        assert in_child(lambda: engine.__exit__(None, None, None)) == "nothing"
        assert engine.wait(engine.run(program.short, "parent")) == "parent"


def test_a_client_says_the_same() -> None:
    with Client("http://127.0.0.1:1", "ifk_" + "0" * 40, settings=Settings()) as client:
        assert "is a fork" in in_child(lambda: client.wait(client.get("r")))
        assert in_child(lambda: client.__exit__(None, None, None)) == "nothing"


async def test_one_that_was_opened_with_async_with_says_the_same(sqlite_url: str) -> None:
    async with Engine(sqlite_url, workflows=program.WORKFLOWS) as engine:
        assert "is a fork" in in_child(lambda: engine.store)

        def leaves() -> Any:
            engine.__aexit__(None, None, None).send(None)

        assert in_child(leaves).startswith("StopIteration"), "it did not wait for anything"
        assert await engine.run(program.short, "parent") == "parent"


async def test_a_client_that_was_opened_with_async_with_says_the_same() -> None:
    async with Client("http://127.0.0.1:1", "ifk_" + "0" * 40, settings=Settings()) as client:
        assert "is a fork" in in_child(lambda: client.get("r").send(None))
