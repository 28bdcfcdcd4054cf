"""What the system knows of a server's processes and memory after the server itself can no longer tell.

Owns the reading of ``/proc`` and the clean-up behind a SIGKILL. Where a system has no ``/proc`` the answers
are the harmless ones: no children known, nothing to stop.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_PROC = Path(os.sep, "proc")
_IPC_RMID = 0


def children(pid: int) -> list[int]:
    """The ids of the direct children of a process."""
    try:
        listed = (_PROC / str(pid) / "task" / str(pid) / "children").read_text()
    except OSError:
        return []
    return [int(child) for child in listed.split()]


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that ended and was never reaped, as under a container's init, does not."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # the name before it may hold blanks and brackets


def stop_orphan(data: Path) -> None:
    """Stop the server that still runs on a data folder whose owner is dead; nothing when there is none.

    The pid file may be old and its number used again by an innocent process, so its command line must
    name this folder.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().split("\n", 1)[0])
        command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return
    if os.fsencode(data) in command:
        os.kill(pid, signal.SIGQUIT)


def free_shared_memory(pid_file: Sequence[str]) -> None:
    """Remove the small System V segment that a killed server leaves; its pid file, left too, tells the id.

    `pid_file` is the file's lines. A server that shut down in order has removed both already.
    """
    words = pid_file[6].split() if len(pid_file) > 6 else []
    if sys.platform == "linux" and len(words) == 2:
        ctypes.CDLL(None).shmctl(int(words[1]), _IPC_RMID, None)
