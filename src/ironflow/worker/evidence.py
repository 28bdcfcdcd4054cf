"""Evidence of death on one host: a POSIX lock that a process holds for as long as it lives.

Each session locks a file of its own. The kernel drops the lock when the process ends, however it ends, so a peer whose
thread is blocked on that lock learns of a SIGKILL in about a millisecond. That is proof, not suspicion.

POSIX record locks and never `flock`: a child inherits a `flock`, and a dead worker with a living child would look
alive. A POSIX lock has a trap of its own: closing *any* descriptor of the file in the owning process drops it. So this
module alone opens these files, each once, and never one that this process holds.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from ironflow.model.capacity import SessionRow

_lock = threading.Lock()
#: Files held by this process, by path; never opened again while they are here.
_held: dict[str, int] = {}
#: Second descriptors of held files, by path; see `_seen_by_others`.
_questions: dict[str, int] = {}
#: Files being watched, by session; one thread each, whoever asks.
_watched: dict[str, list[Callable[[str], None]]] = {}

#: Filesystems on which record locks of another process cannot be relied on.
_UNRELIABLE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph"})


def host_name() -> str:
    """This host, as sessions store it."""
    return socket.gethostname()


def boot_id() -> str:
    """This boot of this host: a lock says something only to processes of the same one."""
    try:
        return Path(os.sep, "proc", "sys", "kernel", "random", "boot_id").read_text().strip()
    except OSError:
        return ""


class SessionLock:
    """The lock of one session of this process, held until `release` or the process's end."""

    def __init__(self, path: Path, device: int, inode: int) -> None:
        self.path = path
        self.device = device
        self.inode = inode

    @classmethod
    def acquire(cls, folder: Path, session_id: str) -> SessionLock | None:
        """Create and lock the file of a session, and test that the lock holds.

        Returns None where a lock proves nothing (a network filesystem, no such folder, a failed self-test): then only
        the clocks speak.
        """
        path = folder / f"{session_id}.lock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _filesystem(folder) in _UNRELIABLE:
                return None
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        with _lock:
            _held[str(path)] = fd
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _seen_by_others(path):
                raise OSError("the lock is not seen by other processes")
        except OSError:
            cls(path, 0, 0).release()
            return None
        stat = os.fstat(fd)
        return cls(path, stat.st_dev, stat.st_ino)

    def release(self) -> None:
        """Unlock and remove the file. Peers that watch it see the end of the session."""
        with _lock:
            fds = [_held.pop(str(self.path), None), _questions.pop(str(self.path), None)]
        if fds[0] is not None:
            self.path.unlink(missing_ok=True)
        for fd in fds:
            if fd is not None:
                os.close(fd)


def watchable(session: SessionRow, host: str, boot: str, process_id: str) -> bool:
    """Whether this process can prove that session's death: same boot of the same host, another process, a lock."""
    return bool(
        session.lock_path
        and boot
        and session.host == host
        and session.boot_id == boot
        and session.process_id != process_id
        and session.lock_path not in _held
    )


def watch_once(session: SessionRow, died: Callable[[str], None]) -> None:
    """Call `died(session_id)` once, from a thread, when the process of that session is gone. Asking again is free.

    One daemon thread per watched session, blocked in the kernel; it costs nothing until then. A file that is missing,
    or is another one than the session locked, proves nothing, and nothing is called.
    """
    with _lock:
        waiting = _watched.get(session.session_id)
        if waiting is not None:
            if died not in waiting:
                waiting.append(died)
            return
        _watched[session.session_id] = [died]
    threading.Thread(
        target=_watch, args=(session,), name=f"ironflow-watch-{session.session_id[:8]}", daemon=True
    ).start()


def unwatch(died: Callable[[str], None]) -> None:
    """Forget a callback wherever it waits; its threads stay blocked and then find nobody to tell."""
    with _lock:
        for waiting in _watched.values():
            while died in waiting:
                waiting.remove(died)


def _watch(session: SessionRow) -> None:
    proven = False
    try:
        fd = os.open(session.lock_path or "", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        fd = -1
    if fd >= 0:
        try:
            stat = os.fstat(fd)
            if (stat.st_dev, stat.st_ino) == (session.lock_device, session.lock_inode):
                fcntl.lockf(fd, fcntl.LOCK_SH)
                proven = True
        except OSError:
            pass
        finally:
            os.close(fd)
    with _lock:
        waiting = _watched.pop(session.session_id, [])
    if proven:
        for died in waiting:
            died(session.session_id)


def _seen_by_others(path: Path) -> bool:
    """Whether the lock of this process conflicts as it should, asked through an open-file-description lock.

    Such a lock belongs to the descriptor, not the process, so it meets the process's own record lock as a foreign one
    would. The second descriptor stays open: closing it would drop the very lock it asks about.
    """
    query = getattr(fcntl, "F_OFD_GETLK", None)
    if query is None:  # macOS has no such question; its local filesystems keep record locks properly
        return True
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with _lock:
        _questions[str(path)] = fd
    asked = struct.pack("hhlli", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    found: int = struct.unpack("hhlli", fcntl.fcntl(fd, query, asked))[0]
    return found != fcntl.F_UNLCK


def _filesystem(folder: Path) -> str:
    """The type of the filesystem a folder lies on ("" where it cannot be told)."""
    best, kind = "", ""
    try:
        mounts = Path(os.sep, "proc", "mounts").read_text().splitlines()
    except OSError:
        return ""
    target = str(folder.resolve())
    for line in mounts:
        parts = line.split(" ")
        if (
            len(parts) > 2
            and len(parts[1]) >= len(best)
            and (target + "/").startswith(parts[1].rstrip("/") + "/")
        ):
            best, kind = parts[1], parts[2]
    return kind
