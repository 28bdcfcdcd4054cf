"""Short-lived folders that a dead owner cannot leave behind for long.

Owns the naming, the mark of ownership and the sweep. A process that is killed with SIGKILL cleans nothing
up, so each folder holds a file that its owner keeps locked; whoever makes the next folder removes those
whose lock is free. The lock is the kernel's: it ends with the owner, which no process id in a file can
promise.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO

from ironflow.testing._processes import stop_orphan

PREFIX = "ironflow-pg-"
_MARK = "owner"
# A folder this young may belong to a process that has not locked its mark yet.
_YOUNG_S = 30.0
# Leaves room for a socket's name below it: a socket's path may have 107 bytes on Linux, 103 on macOS.
_LONGEST = 70
_ROOM_BYTES = 1 << 30


class ScratchFolder:
    """A temporary folder with a locked mark; `path` is short enough to hold a socket.

    Args:
        base: the folder to make it in; None takes the system's folder for temporary files.
    """

    def __init__(self, base: Path | None = None) -> None:
        base = base or _temporary()
        sweep(base)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
        self._mark: IO[bytes] = (self.path / _MARK).open("wb")
        fcntl.flock(self._mark, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Delete the folder with all that is in it, then release the mark. May be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._mark.close()


def sweep(base: Path) -> int:
    """Remove the folders under `base` whose owners are dead, and stop what still runs in them.

    Returns how many were removed. Folders of other users are left alone, as are those whose mark is locked.
    """
    removed = 0
    for folder in base.glob(PREFIX + "*"):
        try:
            if time.time() - folder.stat().st_mtime < _YOUNG_S:
                continue
            with (folder / _MARK).open("rb") as mark:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                stop_orphan(folder / "data")
                shutil.rmtree(folder)
                removed += 1
        except OSError:
            continue  # somebody else's, alive, or being removed by another sweep at this moment
    return removed


def memory_folder() -> Path | None:
    """A folder that lives in memory and has room for some databases, or None when there is none.

    PostgreSQL makes 300 files per database: a third of a second on a slow disk, a hundredth in memory.
    """
    base = Path(os.sep, "dev", "shm")
    try:
        return base if os.access(base, os.W_OK) and shutil.disk_usage(base).free > _ROOM_BYTES else None
    except OSError:
        return None


def _temporary() -> Path:
    base = Path(tempfile.gettempdir())
    short = len(os.fsencode(base)) <= _LONGEST
    return base if short and _enterable_by_all(base) else Path(os.sep, "tmp")


def _enterable_by_all(base: Path) -> bool:
    """Whether nobody, too, could reach a folder below this one; only root ever has to ask."""
    if os.geteuid() != 0:
        return True
    return all(folder.stat().st_mode & 0o001 for folder in (base, *base.parents))
