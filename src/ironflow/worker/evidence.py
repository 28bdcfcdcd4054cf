"""Evidence of death on one host: a POSIX lock that a process holds for as long as it lives.

Each session locks a file of its own. The kernel drops the lock when the process ends, however it ends, so a peer whose
thread is blocked on that lock learns of a SIGKILL in about a millisecond. That is proof, not suspicion.

The owner's lock is a POSIX record lock and never `flock`: a child inherits a `flock`, and a dead worker with a living
child would look alive. A record lock has a trap of its own: closing *any* descriptor of the file in the owning process
drops it. So this module alone opens these files, each once, and never one that this process holds. A watcher waits with
an open-file-description lock where there is one: two processes that watch each other with record locks are a deadlock
to the kernel, which would refuse one of the two.

The file also serves as a black box: what the process was about to replay when it died, which no database row says yet.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ironflow.model.capacity import SessionRow

#: The run (id, execution_seq) that a dead process was opening, if any.
Opening = tuple[str, int]
#: Told of a death, from a thread: the session id, and what it was opening.
Died = Callable[[str, "Opening | None"], None]

_lock = threading.Lock()
#: Files held by this process, by path; never opened again while they are here.
_held: dict[str, int] = {}
#: Second descriptors of held files, by path; see `_seen_by_others`.
_questions: dict[str, int] = {}
#: Files being watched, by session; one thread each, whoever asks.
_watched: dict[str, list[Died]] = {}
#: Folders whose old files were removed by this process.
_swept: set[str] = set()

#: Filesystems on which record locks of another process cannot be relied on.
_UNRELIABLE = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph"})
#: Left by processes whose database was never opened again; every clock in it has long spoken by then. Seconds.
_OLD_S = 30 * 24 * 3600
#: How often a lock is asked for where waiting for it is refused, seconds.
_ASK_S = 0.05
#: Bytes of a file that are read for what its process was opening.
_BLACK_BOX = 4_096
_LINUX = sys.platform == "linux"


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

    def __init__(self, path: Path, fd: int) -> None:
        stat = os.fstat(fd)
        self.path = path
        self.device = stat.st_dev
        self.inode = stat.st_ino
        self._fd = fd

    @classmethod
    def acquire(cls, folder: Path, session_id: str) -> SessionLock | None:
        """Create and lock the file of a session, and test that the lock holds.

        Returns None where a lock proves nothing (a network filesystem, no such folder, a folder of somebody else's, a
        failed self-test): then only the clocks speak.
        """
        path = folder / f"{session_id}.lock"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if folder.stat().st_uid != os.getuid() or _filesystem(folder) in _UNRELIABLE:
                return None
            _sweep(folder)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return None
        with _lock:
            _held[str(path)] = fd
        lock = cls(path, fd)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _seen_by_others(path):
                raise OSError("the lock is not seen by other processes")
        except OSError:
            lock.release()
            return None
        return lock

    def opening(self, run_id: str, execution_seq: int) -> None:
        """Note which run is about to be replayed, before any of its code executes."""
        self._write(json.dumps([run_id, execution_seq]).encode() + b"\n")

    def opened(self) -> None:
        """Nothing is being replayed any more."""
        self._write(b"\n")

    def _write(self, line: bytes) -> None:
        try:
            os.pwrite(self._fd, line, 0)
        except OSError:  # a full disk; the note is an extra
            pass

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


def already_dead(session: SessionRow) -> tuple[bool, Opening | None]:
    """Whether that session's process is gone right now, and what it was opening when it died. Does not wait.

    For the sessions a worker finds when it comes: it must know of their deaths before it takes what they held.
    """
    fd = _open(session)
    if fd < 0:
        return False, None
    try:
        if _LINUX:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_RDLCK))
        else:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return True, _read_opening(fd)
    except OSError:  # held: it lives
        return False, None
    finally:
        os.close(fd)


def living(sessions: Iterable[SessionRow]) -> list[SessionRow]:
    """These sessions, but for those whose processes are proven to be gone.

    For who reads and is no worker: until its clock is over, the row of a dead session looks like that of a live one.
    The question changes nothing: a watcher that waits for the same lock gets it as it would, and nobody is told.
    """
    host, boot = host_name(), boot_id()
    # Those of this process itself are told by the locks that it holds.
    return [one for one in sessions if not (watchable(one, host, boot, "") and already_dead(one)[0])]


def watch_once(session: SessionRow, died: Died) -> None:
    """Call `died` once, from a thread, when the process of that session is gone. Asking again is free.

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
    name = f"ironflow-watch-{session.session_id[:8]}"
    try:
        threading.Thread(target=_watch, args=(session,), name=name, daemon=True).start()
    except RuntimeError:  # no thread is to be had: until one is, the clocks decide
        with _lock:
            _watched.pop(session.session_id, None)


def unwatch(died: Died) -> None:
    """Forget a callback wherever it waits; its threads stay blocked and then find nobody to tell."""
    with _lock:
        for waiting in _watched.values():
            while died in waiting:
                waiting.remove(died)


def discard(session: SessionRow) -> None:
    """Remove the file of a dead session. Only after the session left the database: the file is its evidence."""
    path = session.lock_path
    if path is None or path in _held:
        return
    try:
        stat = Path(path).stat()
        if (stat.st_dev, stat.st_ino) == (session.lock_device, session.lock_inode):
            Path(path).unlink(missing_ok=True)
    except OSError:
        return


def last_words(folder: Path, session_id: str) -> Opening | None:
    """What a session of a dead child process was opening when it died. The file is removed."""
    path = folder / f"{session_id}.lock"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return _read_opening(fd)
    finally:
        os.close(fd)
        path.unlink(missing_ok=True)


def _watch(session: SessionRow) -> None:
    proven, opening = False, None
    fd = _open(session)
    if fd >= 0:
        try:
            _wait_for(fd)
            proven, opening = True, _read_opening(fd)
        except OSError:
            pass
        finally:
            os.close(fd)
    with _lock:
        waiting = _watched.pop(session.session_id, [])
    if proven:
        for died in waiting:
            died(session.session_id, opening)


def _open(session: SessionRow) -> int:
    """The file that the session locked, or -1 where it is missing or another one."""
    try:
        fd = os.open(session.lock_path or "", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return -1
    stat = os.fstat(fd)
    if (stat.st_dev, stat.st_ino) == (session.lock_device, session.lock_inode):
        return fd
    os.close(fd)
    return -1


def _wait_for(fd: int) -> None:
    """Return once nobody holds the file's lock."""
    if _LINUX:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW, _whole_file(fcntl.F_RDLCK))
        return
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH)
            return
        except OSError as error:
            if error.errno != errno.EDEADLK:
                raise
        time.sleep(_ASK_S)  # the other process waits for ours: ask from time to time


def _read_opening(fd: int) -> Opening | None:
    line = os.pread(fd, _BLACK_BOX, 0).partition(b"\n")[0]
    try:
        run_id, execution_seq = json.loads(line)
    except ValueError:  # empty: it was not opening anything
        return None
    return str(run_id), int(execution_seq)


def _seen_by_others(path: Path) -> bool:
    """Whether the lock of this process conflicts as it should, asked through an open-file-description lock.

    Such a lock belongs to the descriptor, not the process, so it meets the process's own record lock as a foreign one
    would. The second descriptor stays open: closing it would drop the very lock it asks about.
    """
    if not _LINUX:  # macOS lays the question out differently; its local filesystems keep record locks properly
        return True
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    with _lock:
        _questions[str(path)] = fd
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    found: int = struct.unpack(_FLOCK, answer)[0]
    return found != fcntl.F_UNLCK


#: `struct flock` on Linux: type, whence, start, length, pid.
_FLOCK = "hhqqi"


def _whole_file(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _sweep(folder: Path) -> None:
    """Remove what processes left behind whose databases nobody opened again; once per process."""
    if str(folder) in _swept:
        return
    _swept.add(str(folder))
    oldest = time.time() - _OLD_S
    for path in folder.glob("*.lock"):
        try:
            if str(path) in _held or path.stat().st_mtime > oldest:
                continue
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
            finally:
                os.close(fd)
        except OSError:  # held: its process is alive
            continue


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
        if len(parts) > 2 and len(parts[1]) >= len(best) and (target + "/").startswith(parts[1].rstrip("/") + "/"):
            best, kind = parts[1], parts[2]
    return kind
