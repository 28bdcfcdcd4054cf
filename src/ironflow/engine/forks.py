"""What a child process that was forked in step or workflow code may not do: come back into the engine.

A fork copies what its caller was in the middle of: the tasks of the loop, the database's connections, the fence of
every run under way. A child that went on with them would be a second owner of the same runs, on the same sockets and
files. What it does inside the code that forked it is that code's business: it may call another program, open an engine
of its own, or end. Where it comes back from there, it is ended here, with a line in the log that says why.

One that waits for something on its parent's loop is ended at the next turn there. With uvloop that is late: what the
loop waits on belongs to both, and the child may take a wake-up with it that its parent then misses.

Where nobody forks this costs the comparison of two numbers: that of this process is looked up when it changes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from contextlib import suppress
from typing import NoReturn, Protocol
from weakref import WeakSet

log = logging.getLogger("ironflow.forks")


class OnLoop(Protocol):
    """What executes runs on a loop of this process."""

    loop: asyncio.AbstractEventLoop


#: The number of this process.
process = os.getpid()
_executing: WeakSet[OnLoop] = WeakSet()


def watch(what: OnLoop) -> None:
    """From now on a child may not go on on this loop, until `unwatch`."""
    _executing.add(what)


def unwatch(what: OnLoop) -> None:
    _executing.discard(what)


def end(place: str) -> NoReturn:
    """End this process, a child that comes back from `place`."""
    try:
        log.critical(
            "process %d was forked from process %d and comes back from %s. It ends here, since the runs are that "
            "process's: end a forked child inside the code that forked it, with os._exit(...), or start one by "
            "subprocess or multiprocessing",
            process,
            os.getppid(),
            place,
        )
    finally:
        os._exit(os.EX_SOFTWARE)  # not by an exception, which the author's code and the engine's would handle


def _in_child() -> None:
    global process
    process = os.getpid()
    for one in list(_executing):
        with suppress(Exception):  # a loop that has ended, or whose thread is not in this process
            _end_at_next_turn(one.loop)


def _end_at_next_turn(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(end, "the event loop of its worker")
    ready = getattr(loop, "_ready", None)
    if isinstance(ready, deque):  # asyncio's own loops: before whatever else is ready
        ready.rotate(1)


os.register_at_fork(after_in_child=_in_child)
