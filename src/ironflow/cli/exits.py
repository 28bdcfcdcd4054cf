"""How a command ends: its exit code, and the one way in which an error is said.

A person gets one line, `error CODE: what happened`, and a second with what to do, on stderr; a traceback
never, because the code is looked up and the sentence is read. With `--json`, stdout holds exactly one
JSON document whatever happens: the answer, or `{"error": {"code", "message", "hint", "details"}}`. The
exit code says which without reading either.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Any

from ironflow.cli import stdout
from ironflow.cli.output import json_text, screen, visible
from ironflow.errors import (
    AccessError,
    IronflowError,
    RunCancelled,
    RunFailed,
    RunNotFound,
    RunPaused,
    ServerError,
    StoreError,
    WorkflowUnknown,
)
from ironflow.model import run as runs

OK = 0
FAILED = 1
USAGE = 2
CANCELLED = 3
NOT_FOUND = 4
STORE = 5
PAUSED = 6
ACCESS = 7
#: How a shell tells of a process that SIGPIPE (13) has ended.
BROKEN_PIPE = 128 + 13
#: EX_IOERR of sysexits.h: what the command did is done, and nobody could be told.
UNPRINTED = 74
#: EX_TEMPFAIL of sysexits.h: nothing is lost, the same command goes on.
INTERRUPTED = 75
#: How a shell tells of a process that SIGINT (2) has ended.
STOPPED = 128 + 2

#: What the exit codes mean, for the help text.
MEANINGS = {
    OK: "done; the run completed (with or without warnings)",
    FAILED: "the run failed, or doctor found something",
    USAGE: "usage, bad input, or refused",
    CANCELLED: "the run was cancelled",
    NOT_FOUND: "no such run or workflow",
    STORE: "the database or the server is unreachable or failed; the database is too new or damaged",
    PAUSED: "the run is paused",
    ACCESS: "the key for the server is missing, wrong or revoked, or may not do this",
    UNPRINTED: "the output could not be written (a full disk, a closed stdout)",
    INTERRUPTED: "interrupted by a signal; run again to resume",
    STOPPED: "Ctrl-C before it had begun",
}

_OF_STATE = {runs.FAILED: FAILED, runs.CANCELLED: CANCELLED, runs.PAUSED: PAUSED}
_OF_ERROR: tuple[tuple[type[IronflowError], int], ...] = (
    (StoreError, STORE),
    (ServerError, STORE),
    (AccessError, ACCESS),
    (RunNotFound, NOT_FOUND),
    (WorkflowUnknown, NOT_FOUND),
    (RunFailed, FAILED),
    (RunCancelled, CANCELLED),
    (RunPaused, PAUSED),
)

#: What writing to stdout fails with. Writing to a database with the same becomes an error of ours.
_UNPRINTABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})


def of_state(state: str) -> int:
    """The exit code of a run that is in this state."""
    return _OF_STATE.get(state, OK)


def of_error(error: IronflowError) -> int:
    """The exit code of an error: every one that has no code of its own was refused because of what was
    asked.
    """
    return next((code for kind, code in _OF_ERROR if isinstance(error, kind)), USAGE)


def say(error: IronflowError, *, as_json: bool) -> int:
    """Report an error and return its exit code."""
    if as_json:
        say_json(error.code, error.message, error.hint, error.details)
    else:
        say_text(error.code, error.message, error.hint)
    return of_error(error)


def give_up_output() -> None:
    """Write no more to stdout: its reader is gone, or its disk is full, and the flush at exit must not complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stdout.stream().fileno())


def say_unprinted(error: OSError) -> int | None:
    """Report that stdout takes no more, and return the exit code; None: the error came from somewhere else.

    That nobody reads it any more (`| head`) is not worth a word.
    """
    if isinstance(error, BrokenPipeError):
        give_up_output()
        return BROKEN_PIPE
    if error.errno not in _UNPRINTABLE or error.filename is not None:
        return None
    give_up_output()
    hint = "Make room there, and ask again; whatever the command has changed stands."
    say_text("OUTPUT", f"the output could not be written: {error.strerror}", hint)
    return UNPRINTED


def say_text(code: str, message: str, hint: str | None = None) -> None:
    """Print an error for a person. Its code is red on a terminal; elsewhere nothing waits for what colours need."""
    if sys.stderr.isatty():
        from rich.text import Text

        told = Text.assemble((f"error {code}", "bold red"), f": {message}")
        screen(stderr=True).print(told, soft_wrap=True)
    else:
        print(visible(f"error {code}: {message}"), file=sys.stderr)
    if hint:
        print(visible(f"  {hint}"), file=sys.stderr)


def say_json(code: str, message: str, hint: str | None = None, details: dict[str, Any] | None = None) -> None:
    """Print the error object of `--json`."""
    error = {"code": code, "message": message, "hint": hint, "details": details or {}}
    print(json_text({"error": error}), file=stdout.stream())
