"""Signals, counted: the first SIGINT, SIGTERM or SIGHUP asks a process to leave in order, the second to leave now.

Promises that the second one works. A handler of the event loop runs only when the loop gets its turn, and code that
spins gives it none; so these are handlers of the process, which Python calls between any two instructions, and a second
signal that the loop does not hear of within a second ends the process.

SIGHUP, by which a closed terminal is told, differs in three ways. Who starts a process with it ignored (`nohup`) means
it to outlive the terminal, so it stays ignored. It is never the second signal, nor is the first other one behind it: of
one hangup the kernel tells, and the shell, and a supervisor. And what is written to a terminal that is gone fails,
which must not end a drain: it goes nowhere instead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

from ironflow.cli import stdout
from ironflow.cli.exits import INTERRUPTED

if TYPE_CHECKING:
    from ironflow.worker.worker import Worker

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How long a loop may take to hear of a signal, seconds.
HEARS_WITHIN_S: Final = 1.0
_FIRST_WORDS: Final = b"\ncode of a workflow or an async step does not give way yet; the same signal again stops now\n"
_FIRST_WORDS_STARTING: Final = b"\nleaves as soon as what it loads is loaded; the same signal again stops now\n"
_LAST_WORDS_STARTING: Final = b"\nstopped before it had begun\n"
_LAST_WORDS: Final = (
    b"\nstopped in the middle of code that does not give way. Nothing that was recorded is lost; run again to resume.\n"
)


class Signals:
    """Counts the signals while it is entered. Enter it in a running loop, in the main thread.

    Args:
        executes: whether the loop may be kept by code of a workflow; may be changed. If not, it is starting.
    """

    def __init__(self, *, executes: bool = True) -> None:
        self.executes = executes
        self.count = 0
        #: those of them that were no hangup
        self._asked = 0
        self._heard = 0
        self._came = asyncio.Condition()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._before: dict[signal.Signals, Any] = {}
        self._terminals = _terminals()

    def __enter__(self) -> Signals:
        for number in _heeded():
            self._before[number] = signal.signal(number, self._signalled)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._not_heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        """Runs wherever the main thread is: nothing here may wait for a lock that it holds."""
        # Before anything is called: within a call the next signal may be answered.
        self._asked += number != signal.SIGHUP
        again = self.count >= (self._asked or 1)
        self.count += not again
        _leave_terminals(self._terminals)
        if again:
            return
        signal.setitimer(signal.ITIMER_REAL, HEARS_WITHIN_S)
        self._loop.call_soon_threadsafe(self._hear)

    def _not_heard(self, number: int, frame: FrameType | None) -> None:
        count = self.count  # the next signal may come between two lines of this
        if self._heard >= count:
            return
        if count == 1:
            os.write(2, _FIRST_WORDS if self.executes else _FIRST_WORDS_STARTING)
            return
        os.write(2, _LAST_WORDS if self.executes else _LAST_WORDS_STARTING)
        os._exit(INTERRUPTED)

    def add(self) -> None:
        """Count one; a supervisor that is gone counts like a signal."""
        self._asked += 1
        self.count = max(self.count, self._asked)
        self._hear()

    def _hear(self) -> None:
        self._heard = self.count
        task = self._loop.create_task(self._tell())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self, count: int) -> None:
        """Return once so many have come."""
        async with self._came:
            await self._came.wait_for(lambda: self.count >= count)

    async def _tell(self) -> None:
        async with self._came:
            self._came.notify_all()


@contextmanager
def like_ctrl_c() -> Iterator[None]:
    """While this is entered, each of the signals raises KeyboardInterrupt: all that has to be put away is."""
    terminals = _terminals()

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        _leave_terminals(terminals)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in _heeded() if number != signal.SIGINT}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _heeded() -> list[signal.Signals]:
    """The signals that ask this process to leave."""
    hangup_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in _SIGNALS if number != signal.SIGHUP or not hangup_ignored]


def _terminals() -> list[int]:
    """The descriptors of this process's output that are a terminal."""
    own = stdout.descriptor()
    return [number for number in (1, 2, *([] if own is None else [own])) if os.isatty(number)]


def _leave_terminals(terminals: list[int]) -> None:
    """Of these descriptors, let those write nowhere whose terminal is gone: it is no terminal any more."""
    gone = [number for number in terminals if not os.isatty(number)]
    if not gone:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in gone:
        os.dup2(nowhere, number, inheritable=number == 1 or number == 2)
    os.close(nowhere)
    terminals[:] = [number for number in terminals if number not in gone]


async def drain(worker: Worker, signals: Signals, *, now_at: int) -> bool:
    """Stop a worker in order, until a signal ends the patience.

    Args:
        worker: the worker.
        signals: what has come and what comes.
        now_at: the number of the signal that means "now". The caller says it, and not the count at this moment: the
            second signal may have come since somebody saw the first.

    Returns:
        True if everything that executed ended or was given back in time, False if a signal cut it short. Even
        then the runs are released, so that another worker need not first find out that this one is gone.
    """
    stopping = asyncio.ensure_future(worker.stop())
    enough = asyncio.ensure_future(signals.wait(now_at))
    await asyncio.wait({stopping, enough}, return_when=asyncio.FIRST_COMPLETED)
    if stopping.done():
        enough.cancel()
        await stopping
        return True
    stopping.cancel()
    await asyncio.gather(stopping, return_exceptions=True)
    await worker.stop(drain_ms=0)
    return False


def leave(code: int) -> None:
    """End the process at once if a step still runs in a thread: Python would wait for it, for as long as it takes.

    Its result is dropped anyway, and the step executes again where the run goes on.
    """
    if any(thread.name.startswith("ironflow-step") for thread in threading.enumerate()):
        _end(code)


def _end(code: int) -> NoReturn:
    stdout.flush()
    sys.stderr.flush()
    os._exit(code)
