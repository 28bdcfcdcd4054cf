"""Catching what workflow code must not do: look at a clock, roll dice, touch the outside world.

Such a call would give another answer when the run is replayed. It cannot be made impossible, only noticed: an
audit hook sees files, sockets and processes being opened, and thin wrappers around the usual functions of
`time`, `random`, `uuid` and `os` see the rest. All of them do nothing but one look-up unless
this thread is executing workflow code, so steps and the rest of the program pay some tens of nanoseconds.

What is seen is told once for each line of the author's code and each kind of thing that it does: the place named is the
line in the author's file from which the call came, whichever library made it, because that is the line to change. In
production it is a warning and the run goes on, since stopping a run that has charged a card helps nobody; a `strict`
engine (development, tests) raises.

What is not seen: functions imported by name before the guard was installed, `datetime.now` (a method of a type that
cannot be wrapped; `ctx.now()` takes its place), and C extensions. Imports, tracebacks, warnings and logging open files
for good reasons, and are let through.
"""

from __future__ import annotations

import functools
import logging
import os
import random
import sys
import sysconfig
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from types import FrameType
from typing import Any

from ironflow.engine.handler_thread import HandlerThread
from ironflow.engine.workflow_loop import WorkflowLoop, active_loops
from ironflow.errors import ForbiddenInWorkflow

log = logging.getLogger("ironflow.guard")

_IN_A_STEP = "I/O belongs in a step: await ctx.step(…)"
_NOW = "use ctx.now(), which is the same in every replay"
_RANDOM = "use ctx.random, which gives the same numbers in every replay"

_AUDITED = {
    "open": "opened a file",
    "socket.__new__": "made a socket",
    "socket.connect": "connected a socket",
    "socket.bind": "bound a socket",
    "socket.sendto": "sent to a socket",
    "socket.getaddrinfo": "looked up a host name",
    "socket.gethostbyname": "looked up a host name",
    "subprocess.Popen": "started a process",
    "os.system": "started a process",
    "os.exec": "replaced the process",
    "os.posix_spawn": "started a process",
    "os.fork": "forked the process",
    "os.listdir": "listed a directory",
    "os.scandir": "listed a directory",
    "os.mkdir": "made a directory",
    "os.remove": "removed a file",
    "os.rename": "renamed a file",
    "sqlite3.connect": "opened a database",
}

# Not the monotonic clocks: the real event loop asks one of them several times a step, and a difference of two readings
# seldom decides anything.
_TIME_FUNCTIONS = ("time", "time_ns")
_RANDOM_FUNCTIONS = (
    *("random", "randint", "randrange", "randbytes", "getrandbits", "choice", "choices", "sample", "shuffle"),
    *("uniform", "triangular", "gauss", "normalvariate", "lognormvariate", "expovariate", "betavariate"),
    *("gammavariate", "paretovariate", "vonmisesvariate", "weibullvariate", "seed"),
)
# (owner, attribute, what the offence is called, what to do instead)
_WRAPPED: list[tuple[Any, str, str, str]] = [
    *((time, name, f"called time.{name}()", _NOW) for name in _TIME_FUNCTIONS),
    (time, "sleep", "called time.sleep()", "use `await ctx.sleep(…)`, which also survives a restart"),
    *((random, name, f"called random.{name}()", _RANDOM) for name in _RANDOM_FUNCTIONS),
    (random, "_urandom", "drew from the system's random numbers", _RANDOM),  # SystemRandom, and so `secrets`
    (uuid, "uuid1", "called uuid.uuid1()", "use ctx.uuid4()"),
    (uuid, "uuid4", "called uuid.uuid4()", "use ctx.uuid4()"),
    (os, "urandom", "called os.urandom()", _RANDOM),
    (
        type(os.environ),
        "__getitem__",
        "read an environment variable",
        "read it in a step, or make it part of the input",
    ),
]

_EXCUSED = frozenset(
    {
        *("importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport"),
        *("linecache", "tokenize", "traceback", "warnings", "logging"),
    }
)
_FLOORS = frozenset({WorkflowLoop._drain.__code__, WorkflowLoop._close_all.__code__, HandlerThread._run.__code__})
_REMEMBERED_SITES = 1_000
#: Ironflow's own files, and those of Python and of installed packages: no line in them is the author's.
_OWN = str(Path(__file__).parents[1]) + os.sep
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))

_warned: set[tuple[str, int, str]] = set()
_installed = False


def install() -> None:
    """Start to watch, for as long as the process lives: an audit hook cannot be taken out. Called when the first
    engine opens, not at import: a program that only imports Ironflow, to start runs elsewhere, keeps the standard
    library as it is. Safe to call again.
    """
    global _installed
    if _installed:
        return
    _installed = True
    for owner, name, what, instead in _WRAPPED:
        setattr(owner, name, _watched(getattr(owner, name), what, instead))
    sys.addaudithook(_audit)


def _watched(original: Callable[..., Any], what: str, instead: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def watched(*args: Any, **kwargs: Any) -> Any:
        loop = active_loops.get(get_ident())
        if loop is not None:
            _judge(loop, what, instead, sys._getframe(1))
        return original(*args, **kwargs)

    return watched


#: What is judged already: `uuid.uuid4()` draws from the system's random numbers, and is one offence.
_JUDGED = _watched(id, "", "").__code__


def _audit(event: str, _args: tuple[Any, ...]) -> None:
    what = _AUDITED.get(event)
    if what is None:
        return
    loop = active_loops.get(get_ident())
    if loop is not None:
        _judge(loop, what, _IN_A_STEP, sys._getframe(1))


def _judge(loop: WorkflowLoop, what: str, instead: str, frame: FrameType) -> None:
    if loop.is_closed() or _excused(frame):
        return
    site = _authors_line(frame)
    message = f"workflow code {what} ({site[0]}:{site[1]}, run {loop.run_id})"
    if loop.strict:
        raise ForbiddenInWorkflow(message, hint=f"{instead[0].upper()}{instead[1:]}.")
    if (*site, what) not in _warned and len(_warned) < _REMEMBERED_SITES:
        _warned.add((*site, what))
        log.warning("%s; a replay will see something else: %s", message, instead)


def _authors_line(frame: FrameType) -> tuple[str, int]:
    """File and line of the author's code that led to this call.

    That is the innermost frame which belongs neither to Python nor to an installed package. An author's code may itself
    be installed: then it is the outermost frame of a package, the handler's own.
    """
    found = frame.f_code.co_filename, frame.f_lineno
    at: FrameType | None = frame
    while at is not None and at.f_code not in _FLOORS:
        file = at.f_code.co_filename
        if not file.startswith((_OWN, "<frozen ")):
            if any(part in file for part in _INSTALLED):
                found = file, at.f_lineno
            elif not file.startswith(_STANDARD):
                return file, at.f_lineno
        at = at.f_back
    return found


def _excused(frame: FrameType | None) -> bool:
    """Whether something on the stack, up to the loop, was judged before, or opens files for a reason of its own."""
    while frame is not None and frame.f_code not in _FLOORS:
        if frame.f_code is _JUDGED:
            return True
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _EXCUSED:
            return True
        frame = frame.f_back
    return False
