"""The guard: clocks, dice and I/O in workflow code are noticed, and only there."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.driving import Driver, work

from ironflow.context import Context
from ironflow.engine import guard
from ironflow.errors import ForbiddenInWorkflow


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    guard.install()
    monkeypatch.setattr(guard, "_warned", set())


OFFENCES: dict[str, Callable[[], Any]] = {
    "opened a file": lambda: Path(__file__).read_text(),
    "made a socket": lambda: socket.socket(),
    "looked up a host name": lambda: socket.getaddrinfo("localhost", 1),
    "started a process": lambda: subprocess.run(["true"], check=True),
    "time.time()": lambda: time.time(),
    "time.sleep()": lambda: time.sleep(0),
    "random.random()": lambda: random.random(),
    "random.shuffle()": lambda: random.shuffle([1, 2]),
    "random numbers": lambda: secrets.token_hex(),
    "uuid.uuid4()": lambda: uuid.uuid4(),
    "os.urandom()": lambda: os.urandom(4),
    "environment variable": lambda: os.environ["PATH"],
}


@pytest.mark.parametrize("what", OFFENCES)
def test_an_offence_is_an_error_under_strict_rules_that_says_where_and_what_instead(what: str) -> None:
    async def flow(ctx: Context) -> None:
        OFFENCES[what]()

    with Driver(flow, strict=True) as d:
        assert isinstance(d.error, ForbiddenInWorkflow)
        assert what in str(d.error)
        # The author's own line, whichever library made the call.
        assert f"({__file__}:{OFFENCES[what].__code__.co_firstlineno}, run" in str(d.error)
        assert "ctx." in str(d.error) or "step" in str(d.error)


@pytest.mark.parametrize("what", OFFENCES)
def test_the_same_is_fine_outside_workflow_code(what: str) -> None:
    made = OFFENCES[what]()
    if isinstance(made, socket.socket):
        made.close()


def test_without_strict_rules_it_works_and_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> float:
        for _ in range(3):
            now = time.time()
        return now

    for _ in range(2):
        with Driver(flow) as d:
            assert d.value > 1e9
    (record,) = caplog.records
    assert "time.time()" in record.getMessage()
    assert "ctx.now()" in record.getMessage()


@pytest.mark.parametrize("what", OFFENCES)
def test_one_call_is_warned_about_once_whatever_it_calls_in_turn(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> None:
        made = OFFENCES[what]()
        if isinstance(made, socket.socket):
            made.close()

    with Driver(flow):
        named = [record.getMessage() for record in caplog.records if what in record.getMessage()]
        assert len(named) == 1
        if what.endswith("()") or what == "random numbers":
            assert len(caplog.records) == 1


def test_a_line_is_warned_about_once_for_each_kind_of_thing_it_does(caplog: pytest.LogCaptureFixture) -> None:
    async def flow(ctx: Context) -> Any:
        return [(os.environ.get("PATH"), Path(__file__).read_text(), time.time()) for _ in range(2)]

    with Driver(flow) as d:
        assert d.value
    told = [record.getMessage() for record in caplog.records]
    for text, what in zip(told, ("read an environment variable", "opened a file", "called time.time()"), strict=True):
        assert text.startswith(f"workflow code {what} ({__file__}:{flow.__code__.co_firstlineno + 1}, run")


def test_a_request_over_the_network_is_named_though_the_library_reads_the_environment_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def flow(ctx: Context) -> str:
        try:
            urllib.request.urlopen("http://127.0.0.1:1/")
        except OSError:
            return "nobody there"
        return "answered"

    with Driver(flow) as d:
        assert d.value == "nobody there"
    told = " ".join(record.getMessage() for record in caplog.records)
    assert f"workflow code connected a socket ({__file__}:{flow.__code__.co_firstlineno + 2}, run" in told


def test_of_a_workflow_that_is_itself_an_installed_package_its_own_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "installed_flow.py").write_text(
        "import secrets\nasync def flow(ctx):\n    return helper()\ndef helper():\n    return secrets.token_hex()\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    import installed_flow  # type: ignore[import-not-found]

    with Driver(installed_flow.flow, strict=True) as d:
        assert "installed_flow.py:3," in str(d.error)
    del sys.modules["installed_flow"]


def test_imports_tracebacks_warnings_and_logging_may_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_inside.py").write_text("import time, os\nmoment = time.time(), os.environ['PATH']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    handler = logging.FileHandler(tmp_path / "log", delay=True)
    logger = logging.getLogger("tests.guard")
    logger.addHandler(handler)

    async def flow(ctx: Context) -> Any:
        import imported_inside  # type: ignore[import-not-found]

        logger.warning("a line")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.warn("a warning", stacklevel=1)
        return len(imported_inside.moment), len(caught)

    with Driver(flow, strict=True) as d:
        assert d.value == (2, 1)
    handler.close()
    logger.removeHandler(handler)
    del sys.modules["imported_inside"]


def test_the_thread_of_a_synchronous_handler_is_watched_as_well() -> None:
    def flow(ctx: Context) -> None:
        ctx.wait(work())
        time.time()

    with Driver(flow, strict=True) as d:
        d.complete()
        assert isinstance(d.error, ForbiddenInWorkflow)


async def test_a_step_s_body_on_the_worker_s_loop_is_not_watched() -> None:
    async def flow(ctx: Context) -> Any:
        return await work()

    with Driver(flow, strict=True) as d:
        await asyncio.to_thread(time.time)
        d.complete(time.time())
        assert d.value > 1e9


def test_installing_twice_watches_once() -> None:
    watched = time.time, os.urandom
    guard.install()
    assert (time.time, os.urandom) == watched


def test_a_program_that_only_imports_ironflow_keeps_the_library_as_it_is() -> None:
    program = "import time, ironflow; print(hasattr(time.time, '__wrapped__'))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
