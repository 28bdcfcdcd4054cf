"""The words of a worker's process to its supervisor: a pipe that each child is given, with a line for each.

An exit code does not say how a process ended, because code of its author's can end it with any: a step that calls
`os._exit(0)` has given nothing back. What only the worker itself can know is said here, where no step comes by
accident: under which session it is known to a server, that it has said goodbye there, that it has begun, and that
somebody other than its supervisor asked it to leave.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ironflow.remote.session import Supervised

#: In a child: the descriptor of the end that it writes to.
WORDS_VARIABLE: Final = "IRONFLOW_WORDS_PIPE"
_SESSION, _CLOSED, _BEGAN, _LEFT = "session", "closed", "began", "left"


class Words:
    """A child's end of the pipe; or nobody's, in a process that has no supervisor."""

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    @classmethod
    def of_this_process(cls) -> Words:
        """Take the pipe that the supervisor has left here; processes that an author's step starts do not get it."""
        text = os.environ.pop(WORDS_VARIABLE, "")
        if not text.isdigit():
            return cls(None)
        pipe = int(text)
        os.set_blocking(pipe, False)
        os.set_inheritable(pipe, False)
        return cls(pipe)

    def began(self) -> None:
        """This worker takes runs."""
        self._say(_BEGAN)

    def left(self) -> None:
        """This worker leaves in order because somebody else wished so."""
        self._say(_LEFT)

    def supervised(self) -> Supervised | None:
        """Who supervises this process, and how it tells its sessions. None in one that has no supervisor."""
        from ironflow.remote.session import Supervised

        if self._pipe is None:
            return None
        return Supervised(
            f"{socket.gethostname()}-{os.getppid()}",
            lambda session_id: self._say(f"{_SESSION} {session_id}"),
            lambda session_id: self._say(f"{_CLOSED} {session_id}"),
        )

    def _say(self, word: str) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, f"{word}\n".encode())
        except OSError:  # the supervisor is gone, and this process leaves; or the pipe is full, and a clock will tell
            return


class Heard:
    """The supervisor's end: what one process has said so far. Made in the loop that listens."""

    def __init__(self) -> None:
        self.began = self.left = False
        #: the sessions it opened and has not closed, in their order
        self._sessions: dict[str, None] = {}
        self._rest = b""
        self._read: int | None
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._read, self.listen)

    def started(self) -> None:
        """The process holds its end by now."""
        os.close(self.write)

    def end(self) -> list[str]:
        """The process has ended: hear its last words. Returns the sessions that it left without a goodbye; once."""
        self.listen()
        self._close()
        sessions, self._sessions = list(self._sessions), {}
        return sessions

    def listen(self) -> None:
        """Hear what was said until now."""
        if self._read is None:
            return
        try:
            while part := os.read(self._read, 1 << 16):
                *lines, self._rest = (self._rest + part).split(b"\n")
                for line in lines:
                    self._take(*line.decode("ascii", "replace").partition(" ")[::2])
        except BlockingIOError:  # there is no more for now; or somebody else holds the other end, and says nothing
            return
        self._close()

    def _take(self, word: str, session_id: str) -> None:
        if word == _SESSION:
            self._sessions[session_id] = None
        elif word == _CLOSED:
            self._sessions.pop(session_id, None)
        elif word == _BEGAN:
            self.began = True
        elif word == _LEFT:
            self.left = True

    def _close(self) -> None:
        if self._read is not None:
            self._loop.remove_reader(self._read)
            os.close(self._read)
            self._read = None
