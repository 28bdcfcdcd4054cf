"""Whose turn it is to write to a SQLite file: one writer at a time, of all threads of all processes.

SQLite's own waiting (`busy_timeout`) polls and sleeps: beside a busy writer another process starves for
seconds and then fails. A POSIX lock on a file of its own (`<database>-turn`) queues instead. Two rules of
POSIX locks shape this module. A lock belongs to the process, so a second thread would be let in: a mutex
stands in front of it. And closing any descriptor of the file drops the lock, so a process opens it once,
however many stores it has on that database.

It promises that `acquire` ends within its timeout even if the holder is frozen, and that a lock that comes
late is given back. (F_SETLKW cannot time out, so a helper thread does the waiting, and only when there is
something to wait for.)
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from ironflow.errors import StoreReadOnly, StoreUnreachable

#: How long a writer waits for its turn, in seconds. One turn is one transaction, so this is hundreds of turns.
PATIENCE_S = 5.0

#: Seconds after which a lock that the kernel refused to wait for is asked for again.
_AGAIN_S = 0.01

#: What the file of the turn has after the name of the database.
_SUFFIX = "-turn"

_FREE, _ASKED, _HELD = "free", "asked", "held"


class Turnstile:
    """The right to write to one database file. Use :func:`turnstile_of`, never the class."""

    __slots__ = ("_fd", "_guard", "_mutex", "_state", "_taken", "_wanted", "path", "users")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.users = 0
        self._mutex = threading.Lock()
        # Protects _state and _wanted between an acquirer (who holds the mutex) and the waiting helper.
        self._guard = threading.Lock()
        self._taken = threading.Event()
        self._state = _FREE
        self._wanted = False
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            kind = StoreReadOnly if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else StoreUnreachable
            raise kind(
                f"{self.database} cannot be written to: {error.strerror} ({path.name}, which lies beside it)",
                hint="Its folder must exist, and this user must be able to write there.",
            ) from error

    def try_acquire(self) -> bool:
        """Take the turn if nobody has it. Never waits, so an event loop may call it."""
        if not self._mutex.acquire(blocking=False):
            return False
        if self._try_file():
            return True
        self._mutex.release()
        return False

    def acquire(self, timeout: float = PATIENCE_S) -> None:
        """Wait for the turn.

        Raises:
            StoreUnreachable: it did not come within `timeout` seconds.
        """
        until = time.monotonic() + timeout
        if not self._mutex.acquire(timeout=timeout):
            raise StoreUnreachable(
                f"another thread of this process has been writing to {self.database} for over {timeout:g} s",
                hint="Nothing was written; look for a disk that does not answer",
            )
        if self._try_file() or self._wait_file(max(0.0, until - time.monotonic())):
            return
        self._mutex.release()
        raise StoreUnreachable(
            f"another process has been writing to {self.database} for over {timeout:g} s",
            hint="Nothing was written; find the process that is stopped or stuck with that file open",
        )

    def release(self) -> None:
        """Give the turn up."""
        with self._guard:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
            self._state = _FREE
        self._mutex.release()

    @contextlib.contextmanager
    def turn(self, timeout: float = PATIENCE_S) -> Iterator[None]:
        """`acquire` and `release` around a block."""
        self.acquire(timeout)
        try:
            yield
        finally:
            self.release()

    @property
    def database(self) -> str:
        """The file this turn is for."""
        return str(self.path)[: -len(_SUFFIX)]

    def _try_file(self) -> bool:
        with self._guard:
            if self._state != _FREE:
                return False  # the helper of an earlier acquirer still waits for it
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            self._state = _HELD
            return True

    def _wait_file(self, timeout: float) -> bool:
        with self._guard:
            self._wanted = True
            self._taken.clear()
            if self._state == _FREE:
                self._state = _ASKED
                try:
                    threading.Thread(target=self._help, name="ironflow-turn", daemon=True).start()
                except RuntimeError:  # no thread is to be had
                    self._state, self._wanted = _FREE, False
        if not self._wanted:
            return self._ask_again(time.monotonic() + timeout)
        self._taken.wait(timeout)
        with self._guard:
            self._wanted = False
            return self._state == _HELD

    def _ask_again(self, until: float) -> bool:
        """Wait without a helper: later than the others, but a process out of threads must still be able to write."""
        while not self._try_file():
            if time.monotonic() > until:
                return False
            time.sleep(_AGAIN_S)
        return True

    def _help(self) -> None:
        while True:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX)
                break
            except OSError:
                # The kernel sees processes, not threads: two of them that each write to one file while another of their
                # threads waits for the other's looks like a deadlock to it. It passes, so this asks again.
                with self._guard:
                    if not self._wanted:
                        self._state = _FREE
                        return
                time.sleep(_AGAIN_S)
        with self._guard:
            if self._wanted:
                self._state = _HELD
                self._taken.set()
            else:
                # Nobody waits any more: keeping it would shut every other process out.
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
                self._state = _FREE

    def close(self) -> None:
        """Close the descriptor. Only :func:`give_back` calls it, after the last user."""
        os.close(self._fd)


_turnstiles: dict[str, Turnstile] = {}
_registry = threading.Lock()


def has_turn(database: Path) -> bool:
    """Whether somebody has written to this database, or is about to: then its turnstile's file lies beside it."""
    return Path(os.path.realpath(database) + _SUFFIX).exists()


def turnstile_of(database: Path) -> Turnstile:
    """The one turnstile of this process for a database file; give it back with :func:`give_back`."""
    key = os.path.realpath(database)
    with _registry:
        turnstile = _turnstiles.get(key)
        if turnstile is None:
            turnstile = _turnstiles[key] = Turnstile(Path(key + _SUFFIX))
        turnstile.users += 1
        return turnstile


def give_back(turnstile: Turnstile) -> None:
    """The other half of :func:`turnstile_of`."""
    with _registry:
        turnstile.users -= 1
        if turnstile.users == 0:
            for key, known in list(_turnstiles.items()):
                if known is turnstile:
                    del _turnstiles[key]
            turnstile.close()


def _forget_after_fork() -> None:
    """A child inherits neither locks nor the threads that would give them back: it starts with none."""
    global _registry
    _registry = threading.Lock()
    _turnstiles.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
