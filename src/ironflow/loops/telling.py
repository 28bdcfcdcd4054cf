"""What an engine node makes of the loops it drives: whatever one finds wakes this process, too.

Notifications go to the other processes only; so a loop's own process hears of its findings from here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Final

from ironflow.loops.driver import Loop, Report

#: How often a node reads the sessions again; new ones announce themselves, so this finds what was lost, ms.
LOOK_AROUND_MS: Final = 1_000


class Telling:
    """A loop that tells what it found, and remembers when it last made a pass.

    Args:
        loop: does the work.
        found: told of each pass that found something.
    """

    def __init__(self, loop: Loop, found: Callable[[Report], None]) -> None:
        self.name = loop.name
        #: when the last pass ended (monotonic, seconds); None before the first one
        self.at: float | None = None
        self._loop = loop
        self._found = found

    async def run_once(self) -> Report:
        """One pass of the loop."""
        report = await self._loop.run_once()
        self.at = time.monotonic()
        if report.counts:
            self._found(report)
        return report


class Neighbours:
    """Keeps a node's view of the other sessions current.

    Args:
        look: reads the sessions anew.
    """

    name = "neighbours"

    def __init__(self, look: Callable[[], Awaitable[None]]) -> None:
        self._look = look

    async def run_once(self) -> Report:
        """Look once."""
        await self._look()
        return Report()
