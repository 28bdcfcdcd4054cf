"""Open files: every connection is one, and the system lets a process have only so many.

Owns how many this process may have, and what of them is kept from connections. Promises that a node has as many as the
system allows, however few its shell was given; and that connections never take the last ones, which the node needs to
reach its database: what comes when only those are left is refused, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from typing import Final

if sys.platform != "win32":
    import resource

log = logging.getLogger("ironflow.server")

#: What a node asks for at most: some systems allow any number, and then count through it in every child process.
MOST: Final = 1 << 20
#: Where the system does not grant what it has said it would (macOS), these are tried.
_LESS: Final = (65_536, 10_240)
#: Open files that are kept from connections.
KEPT: Final = 64
#: How often the log says that connections are refused, seconds.
SAID_S: Final = 10.0
_HOW: Final = "raise the limit of open files (`ulimit -n`, LimitNOFILE= of systemd, --ulimit nofile= of a container)"


def limit() -> int | None:
    """How many files this process may have open; None: any number, or nobody knows."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def raise_limit(streams: int) -> None:
    """Let this process have as many as the system allows, and say so if those are too few.

    Args:
        streams: that one key may hold; 0: any number.
    """
    if sys.platform != "win32":
        _raise()
    most = limit()
    if most is not None and most < streams + KEPT:
        log.warning(
            "this process may have %s files open, and one key %s streams (IRONFLOW_MAX_STREAMS): it can take the node "
            "from all others; %s, or lower that setting",
            f"{most:,}",
            f"{streams:,}",
            _HOW,
        )


def _raise() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (MOST if hard == resource.RLIM_INFINITY else min(hard, MOST), *_LESS):
        if soft == resource.RLIM_INFINITY or wanted <= soft:
            return
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            continue
        return


class Doorkeeper:
    """Says of each new connection whether there is a file for it."""

    def __init__(self) -> None:
        self._said = float("-inf")

    def refuses(self, transport: asyncio.BaseTransport) -> bool:
        """Whether only those are left that are kept. A new file has the lowest free number: it tells how many there
        are, at no cost.
        """
        most = limit()
        connection = transport.get_extra_info("socket")
        if most is None or connection is None or connection.fileno() < most - min(KEPT, most // 4):
            return False
        now = time.monotonic()
        if now - self._said >= SAID_S:
            self._said = now
            said = "connections are refused: of %s files that may be open, the last are left; %s"
            log.warning(said, f"{most:,}", _HOW)
        return True


doorkeeper: Final = Doorkeeper()
