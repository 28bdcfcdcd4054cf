"""Drives loops: call `run_once`, count, survive, wait for the interval or a kick.

A pass that fails is logged and counted and does not end its loop; a pass that was full is followed by the next at once.
A database that is away is one line when it goes and one when it is back: a traceback per pass tells nobody more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final, Protocol

from ironflow.errors import OUTAGES, IronflowError
from ironflow.model.transition import Decisions, Transition
from ironflow.tasks import Standing

log = logging.getLogger("ironflow.loops")

#: How long the pass under way of a loop that is stopped may take, seconds.
LAST_PASS_S: Final = 0.3


@dataclass(slots=True)
class Report:
    """What one pass did. `more` asks for the next pass at once: the batch was full."""

    counts: dict[str, int] = field(default_factory=dict)
    more: bool = False
    run_ids: list[str] = field(default_factory=list)

    def add(self, name: str, count: int) -> None:
        """Count something, leaving zeros out."""
        if count:
            self.counts[name] = self.counts.get(name, 0) + count


def applied(decisions: Decisions, report: Report) -> dict[str, Transition]:
    """What `Store.decide` applied. What failed is one run's: it is logged and counted, and the others go on."""
    done: dict[str, Transition] = {}
    for run_id, result in decisions.items():
        if isinstance(result, Transition):
            done[run_id] = result
        elif isinstance(result, Exception):
            log.error("run %s was passed over: %s", run_id, result, exc_info=_defect(result))
            report.add("errors", 1)
    return done


def _defect(error: Exception) -> Exception | None:
    """An error that nobody meant to raise: its traceback says where it is to be mended."""
    return None if isinstance(error, IronflowError) else error


class Loop(Protocol):
    """One loop. `run_once` does a bounded amount of work and may be called at any time, on any node."""

    name: str

    async def run_once(self) -> Report: ...


class Outage:
    """Tells of a database that cannot be reached: once when it went away, and once when it is back.

    Args:
        log: where to tell it.
        what: what fails meanwhile, e.g. `a look for work`.
    """

    __slots__ = ("_log", "_what", "lasts")

    def __init__(self, log: logging.Logger, what: str) -> None:
        self._log = log
        self._what = what
        self.lasts = False

    def met(self, error: IronflowError) -> None:
        """It was away."""
        if not self.lasts:
            self.lasts = True
            self._log.warning("%s failed, and is tried until it succeeds: %s", self._what, error.message)

    def over(self) -> None:
        """It answered."""
        if self.lasts:
            self.lasts = False
            self._log.info("%s succeeds again", self._what)


class Driver:
    """Runs one loop every `interval_ms`, and at once when kicked."""

    def __init__(self, loop: Loop, interval_ms: int) -> None:
        self.loop = loop
        self.interval_s = interval_ms / 1000
        self.failures = 0
        self.counts: dict[str, int] = {}
        self._outage = Outage(log, f"a pass of {loop.name}")
        self._kick = asyncio.Event()
        self._standing = Standing(self._drive, f"ironflow-{loop.name}", log)

    def start(self) -> None:
        """Begin driving, in a task of the running loop."""
        self._standing.start()

    def kick(self) -> None:
        """Ask for a pass now."""
        self._kick.set()

    async def stop(self) -> None:
        """End the loop. A pass under way may end first, within `LAST_PASS_S`.

        Cancelling it would be sound, but not kind: what a waker has claimed and not handed on yet would sleep until the
        sweep of stale claims finds it.
        """
        self._standing.dismiss()
        self._kick.set()
        await self._standing.stop(LAST_PASS_S)

    async def _drive(self) -> None:
        while self._standing.wanted:
            self._kick.clear()
            more = False
            try:
                report = await self.loop.run_once()
                more = report.more
                for name, count in report.counts.items():
                    self.counts[name] = self.counts.get(name, 0) + count
                self._outage.over()
            except OUTAGES as error:
                self.failures += 1
                self._outage.met(error)
            except Exception:
                self.failures += 1
                log.exception("a pass of %s failed; the next one follows in %s s", self.loop.name, self.interval_s)
            if not more and self._standing.wanted:
                try:
                    await asyncio.wait_for(self._kick.wait(), self.interval_s)
                except TimeoutError:
                    continue
