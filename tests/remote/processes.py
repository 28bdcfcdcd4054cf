"""Worker processes of the command line, seen from a test: `ironflow worker … --server URL`, killed, stopped, thawed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

from tests.recovery.program import ROOT


class Running:
    """One `ironflow worker`, perhaps a supervisor with its children."""

    def __init__(self, servers: list[str], key: str, *words: str, **settings: str) -> None:
        named = [word for server in servers for word in ("--server", server)]
        own = {name: value for name, value in os.environ.items() if not name.startswith("IRONFLOW_")}
        own["IRONFLOW_TEST_FOLDER"] = os.environ["IRONFLOW_TEST_FOLDER"]
        given = {f"IRONFLOW_{name.upper()}": value for name, value in settings.items()}
        self.process = Popen(
            [sys.executable, "-m", "ironflow", "worker", "tests.recovery.program", *named, "--json", *words],
            cwd=ROOT,
            env={**own, **given, "IRONFLOW_API_KEY": key, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"},
            stdin=DEVNULL,
            stdout=PIPE,
            text=True,
        )
        self.pid = self.process.pid

    def event(self, name: str) -> dict[str, Any]:
        """Read what it tells up to the next event of this name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told: dict[str, Any] = json.loads(line)
            if told.get("event") == name:  # a last word about an error is none
                return told
        raise AssertionError(f"the process ended without {name}")

    def send(self, number: int) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Whatever its state, it is gone after this, and so are its children: they leave with their supervisor."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@contextmanager
def running(servers: str | list[str], key: str, *words: str, **settings: str) -> Iterator[Running]:
    """A worker process of these servers."""
    one = Running([servers] if isinstance(servers, str) else servers, key, *words, **settings)
    try:
        yield one
    finally:
        one.end()
