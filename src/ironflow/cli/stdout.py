"""Stdout, which belongs to the command alone: its result, or its JSON, and nothing that an author's code prints.

`keep` is called before the first line of such code is loaded. From then on all that others write goes to stderr. That
is done on the descriptor: a program that a step starts inherits it, and knows nothing of Python's `sys.stdout`. The
command writes to a duplicate that no program inherits. What is printed has a stream of its own there: in the one of
stderr a line of the command's could come between the text of a `print` and its end of line, which are two writes.

A process that ends leaves it so, since a thread may print until its very end. Who has called `main` with words of its
own goes on, and gets everything back as it was.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

_STDOUT: Final = 1
_STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the command writes to, what an author's code prints to, and what `sys.stdout` was.

    The duplicate is None where that was not descriptor 1.
    """

    own: Any
    others: Any
    before: Any
    duplicate: int | None


_kept: _Kept | None = None


def stream() -> Any:
    """Where the command's own output goes; None in a process that was started without any."""
    return sys.stdout if _kept is None else _kept.own


def descriptor() -> int | None:
    """What a process that prints for this command is given as its stdout; None: it inherits the right one."""
    return None if _kept is None else _kept.duplicate


def flush() -> None:
    """Write out what is left. Raises OSError where that cannot be."""
    own = stream()
    if own is not None:
        own.flush()


def keep(asked: bool = True) -> None:
    """Keep stdout for the command, if that is asked for; more than once is once."""
    global _kept
    before = sys.stdout
    if not asked or _kept is not None or before is None or sys.stderr is None:
        return
    before.flush()
    duplicate = _set_apart(before)
    own, others = before, sys.stderr
    if duplicate is not None:
        own = os.fdopen(duplicate, "w", encoding=before.encoding, errors=before.errors)
        others = _line_by_line(before.encoding)
    _kept = _Kept(own, others, before, duplicate)
    sys.stdout = others


def _line_by_line(encoding: str) -> Any:
    """Descriptor 1 as a stream; what the encoding does not have is escaped, as it is on stderr."""
    return os.fdopen(_STDOUT, "w", buffering=1, encoding=encoding, errors="backslashreplace", closefd=False)


def _set_apart(out: Any) -> int | None:
    """Turn descriptor 1 to where stderr goes, and give a duplicate of what it was.

    None, and nothing done, where `out` writes elsewhere: a test or a program has put another stream there.
    """
    try:
        if out.fileno() != _STDOUT:
            return None
    except (AttributeError, OSError, ValueError):
        return None
    duplicate = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    return duplicate


def give_back() -> None:
    """Undo `keep`."""
    global _kept
    kept, _kept = _kept, None
    if kept is None:
        return
    sys.stdout = kept.before
    if kept.duplicate is None:
        return
    for told in (kept.others, kept.before):  # `before`, too: somebody may have kept it; it still goes to stderr
        with suppress(OSError, ValueError):  # who cares whether it could be written has called `flush`
            told.flush()
    os.dup2(kept.duplicate, _STDOUT)
    with suppress(OSError):
        kept.own.close()
