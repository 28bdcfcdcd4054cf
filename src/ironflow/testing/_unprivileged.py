"""Running a program as somebody who is not root, without creating a user and without touching parent folders.

PostgreSQL refuses to run as root, and tests in containers are root. Owns the ways round that, tried in this
order:

* ``plain``: the caller is not root, nothing is needed;
* ``namespace``: the child enters a user namespace in which it is an ordinary user. Its files stay root's on
  the outside, so folders that only root can enter keep working. Needs user namespaces, which some
  containers forbid;
* ``nobody``: the child becomes the system's nobody. Works everywhere, but nobody must be able to read the
  programs and must own the data; the launcher sees to both.

In every mode the child is told by the kernel when its parent dies (on Linux), so a killed test run leaves
no server.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

from ironflow.testing._exec_as import FORBIDDEN as FORBIDDEN

Mode = Literal["plain", "namespace", "nobody"]

_TRAMPOLINE = Path(__file__).with_name("_exec_as.py")


def modes() -> tuple[Mode, ...]:
    """The ways to try for the current user, best first."""
    if os.geteuid() != 0:
        return ("plain",)
    return ("namespace", "nobody") if sys.platform == "linux" else ("nobody",)


def mode_of_owner(path: Path) -> Mode:
    """The way that fits data which already exists: whoever owns it must be the one that opens it again."""
    if os.geteuid() != 0:
        return "plain"
    return "namespace" if path.stat().st_uid == 0 else "nobody"


def give_to_nobody(folder: Path) -> None:
    """Make nobody the owner of a folder and of all in it (of links themselves, not of what they point at)."""
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    for path in folder.rglob("*"):
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


def run(mode: Mode, command: Sequence[Path | str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end in the given way; its exit code is the caller's to judge, 126 is FORBIDDEN."""
    return subprocess.run(
        _wrapped(mode, command),
        env=env,
        cwd=os.sep,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


class Daemon:
    """A long-running child that dies with this process; `process` is its handle.

    The kernel ties the death signal to the *thread* that started the child. A server started from a worker
    thread would die when that thread ends, so each child gets a thread of its own that lives as long as it
    does.
    """

    def __init__(
        self, mode: Mode, command: Sequence[Path | str], env: dict[str, str], log: IO[bytes]
    ) -> None:
        self.process: subprocess.Popen[bytes]
        self._error: OSError | None = None
        self._started = threading.Event()
        arguments = (_wrapped(mode, command), env, log)
        threading.Thread(target=self._own, args=arguments, name="ironflow-postgres", daemon=True).start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    def _own(self, command: list[str], env: dict[str, str], log: IO[bytes]) -> None:
        try:
            # A session of its own: Ctrl-C must reach the caller alone, which stops the server in order.
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=os.sep,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        self.process.wait()


def _wrapped(mode: Mode, command: Sequence[Path | str]) -> list[str]:
    words = [str(word) for word in command]
    return [sys.executable, "-I", "-S", str(_TRAMPOLINE), mode, str(os.getpid()), *words]
