"""Wake-ups between processes that share a SQLite file: a datagram says that there is something to look at.

One socket per session, in a folder that only this user may enter; its address stands in the session's row.
A datagram carries a topic and nothing else, so a lost, repeated or forged one costs a look at the database
and no more. Where no socket can be made there is no address, and polling finds what a wake-up would have
told. A process that is killed leaves its socket's file behind; whoever listens next clears such files away.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ironflow.model.capacity import SessionRow

#: The longest address the kernels we run on take (macOS: 104 bytes with the closing zero).
_LONGEST = 103
_TOPIC = 512
#: Datagrams read at once; more are announced by the loop again.
_AT_ONCE = 64
#: Files that one listener looks at, and the age (seconds) below which one may belong to a socket that is being made.
_LOOKED_AT = 256
_AGE_S = 60.0


class WakeSocket:
    """One listening socket at most, and one to send from. Once it is closed it makes no other."""

    def __init__(self) -> None:
        self.address: str | None = None
        self._listening: socket.socket | None = None
        self._sending: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def listen(self, wake: Callable[[str], None], name: str = "") -> str | None:
        """Call `wake(topic)` in the running loop for every datagram. Returns the address, if there is one.

        Args:
            wake: is told.
            name: of the socket, by which others see that this process is there; without one it is a random one.
        """
        if self._listening is not None or self._closed:
            return self.address
        loop = asyncio.get_running_loop()
        listening: socket.socket | None = None
        try:
            folder = _folder()
            address = str(folder / (name or secrets.token_hex(8))) if folder is not None else ""
            if folder is None or len(os.fsencode(address)) > _LONGEST:
                return None
            _clear(folder)
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            listening.setblocking(False)
            listening.bind(address)
            loop.add_reader(listening, self._read, listening, wake)
        except (OSError, AttributeError, NotImplementedError):
            # No unix sockets here, or a loop that cannot watch one.
            if listening is not None:
                listening.close()
            return None
        self._listening, self._loop, self.address = listening, loop, address
        return address

    def notify(self, topic: str, sessions: Sequence[SessionRow]) -> None:
        """Send a topic to sessions, without waiting and without complaint."""
        if self._closed:
            return  # what ends last may still tell of it; a socket made now would be nobody's to close
        for session in sessions:
            address = session.wake_address
            if not address or address == self.address:
                continue
            try:
                if self._sending is None:
                    self._sending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                    self._sending.setblocking(False)
                self._sending.sendto(topic.encode()[:_TOPIC], address)
            except (OSError, AttributeError):
                pass  # gone, or its buffer is full: then it has enough to wake up for

    def gone(self, names: Iterable[str]) -> frozenset[str]:
        """Under which of these names nobody listens; none where this process could make no socket itself."""
        if self.address is None:
            return frozenset()
        gone, folder = set(), Path(self.address).parent
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
            for name in names:
                try:
                    asking.connect(str(folder / name))
                except (ConnectionRefusedError, FileNotFoundError):
                    gone.add(name)
                except (OSError, ValueError):
                    continue  # no name of a socket at all: not ours to judge
        return frozenset(gone)

    @staticmethod
    def _read(listening: socket.socket, wake: Callable[[str], None]) -> None:
        for _ in range(_AT_ONCE):
            try:
                topic = listening.recv(_TOPIC)
            except OSError:
                return
            wake(topic.decode(errors="replace"))

    def close(self) -> None:
        """Stop listening, and remove the socket's file."""
        self._closed = True
        if self._listening is not None and self._loop is not None and self.address is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._listening)
            self._listening.close()
            Path(self.address).unlink(missing_ok=True)
        if self._sending is not None:
            self._sending.close()
        self._listening = self._sending = self.address = None


def _clear(folder: Path) -> None:
    """Remove files whose socket is gone: nobody listens there, and nobody will again, since names are random."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking, os.scandir(folder) as entries:
        asking.setblocking(False)
        for entry in itertools.islice(entries, _LOOKED_AT):
            try:
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISSOCK(found.st_mode) and time.time() - found.st_mtime > _AGE_S:
                    asking.connect(entry.path)
            except ConnectionRefusedError:
                Path(entry.path).unlink(missing_ok=True)
            except OSError:
                continue  # it went by itself, or its owner is busy: not ours to judge


def _folder() -> Path | None:
    """The folder of this user's sockets; None where somebody else made one of its name."""
    ours = Path(tempfile.gettempdir()) / f"ironflow-{os.getuid()}"
    folder = ours / "wake"
    for made in (ours, folder):
        made.mkdir(mode=0o700, exist_ok=True)
        found = made.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
            return None
    return folder
