"""A trampoline: become an ordinary user, tie one's life to the parent's, then turn into the given program.

Run as a script, ``python -I -S _exec_as.py MODE PARENT PROGRAM ARGUMENT...``, never imported by the engine.
It is a program of its own, not code between fork and exec of the caller, because the caller has threads:
Python warns of that since 3.12 and may deadlock. Imports little, so it adds about 20 ms. What the modes
mean is told in ``_unprivileged``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import NoReturn

FORBIDDEN = 126
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1


def main(mode: str, parent: int, command: list[str]) -> NoReturn:
    """Never returns: the program runs in this process's place, or the exit code is 126 with a reason."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if mode == "namespace":
            enter_namespace(libc)
        elif mode == "nobody":
            become_nobody()
        # After the change of identity, which clears it. SIGQUIT is PostgreSQL's immediate shutdown.
        if sys.platform == "linux":
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
        if os.getppid() != parent:
            sys.exit(FORBIDDEN)  # it died before the kernel knew of our wish
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(fail(f"{mode}: {error}"))


def enter_namespace(libc: ctypes.CDLL) -> None:
    """Become user 1000 of a new user namespace; outside of it the files written still belong to root."""
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "user namespaces are not allowed here")
    # Only the process itself may write its maps, and the group map only once setgroups is given up.
    for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
        # Not pathlib: importing it would double the time this program takes.
        with open(f"{os.sep}proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text)


def become_nobody() -> None:
    """Give up root for good. Groups first: afterwards one may not."""
    import pwd  # only here: the other modes need no user database

    entry = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


def fail(reason: str) -> int:
    """Tell why on the error stream and return the exit code a shell uses for 'found, but may not run'."""
    sys.stderr.write(reason + "\n")
    return FORBIDDEN


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
