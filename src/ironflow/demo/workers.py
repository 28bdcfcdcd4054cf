"""Worker processes of the demo: the command a person would type, started, watched and killed by pid.

Owns their lives: whatever happens in the demo, none of them outlives it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

TARGET = "ironflow.demo.ingest:ingest"
_STOP_TIMEOUT_S = 5.0


class WorkerProcess:
    """`ironflow worker` as a process of its own.

    Args:
        name: its worker id, shown in the journal.
        url: the database. It travels in the environment, because command lines can be read by every user of the host,
            and an address may hold a password.
        folder: where its output goes, to be shown only if something is wrong with it.
    """

    def __init__(self, name: str, url: str, folder: Path) -> None:
        self.name = name
        self.killed = False
        self._log = folder / f"{name}.log"
        # With the hash seed already fixed, the command line does not start itself a second time to fix it.
        environment = {**os.environ, "IRONFLOW_DATABASE_URL": url, "PYTHONHASHSEED": "0"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(name), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    @staticmethod
    def command(name: str) -> list[str]:
        """What is started; the same as `ironflow worker TARGET --worker-id NAME`."""
        return [sys.executable, "-m", "ironflow", "worker", TARGET, "--worker-id", name]

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether its process has not ended."""
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL: no handler runs, nothing is flushed, nobody is told. Returns when the process is gone."""
        self.killed = True
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not listen."""
        if self.alive:
            self._process.terminate()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def output(self, lines: int = 15) -> str:
        """The end of what it printed."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])
