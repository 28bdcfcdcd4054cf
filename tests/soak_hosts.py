"""The workers of a cluster soak: supervisors with their children, which can be killed and frozen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def ironflow(*words: str, url: str, key: str | None = None, **more: Any) -> subprocess.Popen[str]:
    """Start a command of the command line; what it tells comes through a pipe."""
    environment = {**os.environ, "IRONFLOW_DATABASE_URL": url, "IRONFLOW_LOG_LEVEL": "error"}
    environment |= {"IRONFLOW_API_KEY": key} if key is not None else {}
    return subprocess.Popen(
        [sys.executable, "-m", "ironflow", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
        env=environment | more.pop("env", {}), **more,
    )  # fmt: skip


class Host:
    """One supervisor and its workers.

    Args:
        servers: where they work.
        processes: how many workers.
        start: the words of `ironflow worker` beyond these, and its environment.
    """

    def __init__(self, servers: Sequence[str], processes: int, start: Any) -> None:
        self.processes = processes
        #: pids of workers that are ready, and of all that ever were
        self.ready: set[int] = set()
        self.workers: set[int] = set()
        #: cut off or frozen right now: a death here could not be reported
        self.away = False
        named = [word for server in servers for word in ("--server", server)]
        self._supervisor: subprocess.Popen[str] = start(*named, "--processes", str(processes), "--json")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._supervisor.stdout is not None
        for line in self._supervisor.stdout:
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event.get("event") == "ready":
                    self.workers.add(int(event["pid"]))
                    self.ready.add(int(event["pid"]))

    @property
    def healthy(self) -> set[int]:
        """Workers that take runs now."""
        return set() if self.away else set(self.ready)

    def kill(self, pid: int) -> None:
        """SIGKILL to one worker; its supervisor starts another."""
        self.ready.discard(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def freeze(self) -> set[int]:
        """SIGSTOP to the supervisor and then to all that it and its children have started; returns its workers."""
        self.away = True
        self._send(signal.SIGSTOP)
        return set(self.ready)

    def thaw(self) -> None:
        """SIGCONT to all of them."""
        self._send(signal.SIGCONT)
        self.away = False

    def _send(self, number: int) -> None:
        processes = [self._supervisor.pid]
        for pid in processes:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                os.kill(pid, number)
                processes += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())

    def ask_to_leave(self) -> None:
        """SIGTERM to the supervisor."""
        self._supervisor.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait for it to leave; kill it if it does not. Its workers go with it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(60)
        self._supervisor.kill()
        self._supervisor.wait()
