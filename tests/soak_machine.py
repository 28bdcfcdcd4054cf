"""How much of the machine a soak had: nobody takes over quickly where every processor is at work for somebody else."""

from __future__ import annotations

import asyncio
import bisect
import os
import resource
import time
from pathlib import Path

_PRESSURE = Path("/proc/pressure/cpu")
#: Between two looks at the pressure, seconds.
_EVERY_S = 0.1


def busy_seconds() -> float:
    """Seconds for which the processors of this machine have worked, for whomever, since it was started."""
    user, nice, system, _idle, _wait, *interrupts = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


class Machine:
    """Watches the machine while `watch` runs; on one that does not tell its pressure, only the load is known."""

    def __init__(self) -> None:
        self._began, self._busy = time.monotonic(), busy_seconds()
        #: when it was looked, and for how many seconds until then somebody had waited for a processor
        self._times: list[float] = []
        self._waited: list[float] = []

    async def watch(self) -> None:
        """Look again and again."""
        while _PRESSURE.exists():
            self._waited.append(int(_PRESSURE.read_text().partition("total=")[2].split()[0]) / 1e6)
            self._times.append(time.time())
            await asyncio.sleep(_EVERY_S)

    def pressure(self, until: float) -> float:
        """For which share of the second before this time somebody waited for a processor; 0 where that is unknown."""
        end = bisect.bisect_right(self._times, until) - 1
        begin = bisect.bisect_right(self._times, until - 1) - 1
        if begin < 0 or end <= begin:
            return 0.0
        return (self._waited[end] - self._waited[begin]) / (self._times[end] - self._times[begin])

    def told(self) -> str:
        """The load since this was made; call it when all children have ended."""
        seconds, count = time.monotonic() - self._began, os.cpu_count() or 1
        own = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        share = (busy_seconds() - self._busy) / seconds / count
        return f"{count} processors were busy for {share:.0%} of the time, {own / seconds / count:.0%} with this soak"
