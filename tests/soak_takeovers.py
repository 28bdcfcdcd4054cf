"""What happened to workers in a soak, and how long each interrupted step was nowhere.

A step counts where its body had begun, its end was never journaled, and its next body began under a later fence. It is
measured from the fault of the process that executed it to the first line of that next body, whatever came in between:
the report, the recovery, the queue, the replay, and any second fault. A step that was taken from a worker to which
nothing had happened is an error of the engine.

Told apart are steps that met a second fault on their way, and runs that were charged with two losses in a row: such a
run is a suspect, and is executed by a process of its own, which takes as long to start as a process takes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ironflow.config import Settings
from ironflow.model import journal as j
from ironflow.model.journal import Event

_DEFAULTS = Settings()
#: A worker process was killed and its supervisor saw it; only its connections broke; its host stood still.
KILLED, CUT, FROZEN = "killed, seen by its supervisor", "cut off", "frozen with its host"
#: The most that p99 of each may be, ms.
LIMITS = {
    KILLED: 200,
    CUT: (_DEFAULTS.suspect_after_ms or 0) + 1_000,
    FROZEN: _DEFAULTS.lease_ttl_ms + 2_000,
}
#: Processors are short where somebody waited for one for such a share of the second before a fault.
SHORT = 0.7
#: A body may begin while the signal that ends its process is on its way, seconds.
_ON_ITS_WAY_S = 0.05

#: As a body wrote it: (run, step, try, fence, pid, time).
Effect = Sequence[Any]


@dataclass(slots=True)
class Fault:
    """What was done to some workers; times in seconds since 1970. `until` is open while it lasts."""

    kind: str
    pids: Collection[int]
    at: float
    until: float = float("inf")


@dataclass(slots=True)
class Faults:
    """All that was done."""

    all: list[Fault] = field(default_factory=list)
    #: when servers were killed
    servers: list[float] = field(default_factory=list)

    def add(self, fault: Fault) -> Fault:
        """Note one."""
        self.all.append(fault)
        return fault

    def behind(self, pid: int, began: float, again: float) -> Fault | None:
        """Why a body of this process came to nothing: the last fault between its beginning and the next one's."""
        found = [f for f in self.all if pid in f.pids and f.at < again and f.until + _ON_ITS_WAY_S >= began]
        return max(found, key=lambda fault: fault.at, default=None)

    def another(self, first: Fault, before: float) -> bool:
        """Whether something else happened to anybody until then."""
        times = [*self.servers, *(fault.at for fault in self.all if fault is not first)]
        return any(first.at < at < before for at in times)


@dataclass(slots=True)
class Takeovers:
    """Milliseconds from fault to body. `pressure`: how short of processors the machine was then, see `SHORT`."""

    pressure: Callable[[float], float]
    found: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in LIMITS})
    #: of the killed, those that met a second fault; and those that did not, while processors were not short
    twice: list[float] = field(default_factory=list)
    at_leisure: list[float] = field(default_factory=list)
    #: suspects, whatever was done to whom
    alone: list[float] = field(default_factory=list)
    #: steps that were taken from a worker to which nothing had happened
    causeless: list[str] = field(default_factory=list)

    def report(self, faults: Faults) -> list[str]:
        """Print a line for each kind; returns what is wrong."""
        wrong = [f"taken from a worker to which nothing had happened: {step}" for step in self.causeless]
        for kind, limit in LIMITS.items():
            count, times = sum(fault.kind == kind for fault in faults.all), sorted(self.found[kind])
            if not times:
                wrong.append(f"no step was taken from a worker that was {kind}, so nothing was tried")
                continue
            print(f"  {kind}, {count} times: {_told(times)}; limit {limit:,} ms")
            if kind == KILLED:
                print(f"    of these while processors were not short: {_told(sorted(self.at_leisure))}")
                print(f"    besides, with a second fault on their way: {_told(sorted(self.twice))}")
            if (p99 := _at(times, 0.99)) > limit:
                wrong.append(f"{kind}: p99 is {p99:,.0f} ms; {limit:,} is the most")
        if self.alone:
            print(f"  besides, suspects, which need a new process: {_told(sorted(self.alone))}")
        return wrong


def ended_in(events: Iterable[Event]) -> set[tuple[str, int, int]]:
    """The tries (step, number, fence) whose end is journaled."""
    number: dict[str, int] = {}
    ended = set()
    for event in events:
        step = event.step_id or ""
        if event.kind == j.STEP_STARTED:
            number[step] = event.data().get("try", 1)
        elif event.kind in (j.STEP_COMPLETED, j.STEP_FAILED, j.STEP_RETRYING):
            ended.add((step, number[step], event.execution_seq))
    return ended


@dataclass(slots=True)
class Run:
    """One run of a soak: its journal, and what its bodies wrote."""

    events: Sequence[Event]
    effects: Sequence[Effect]

    def interrupted(self) -> Iterator[tuple[Effect, Effect]]:
        """Each body whose end was never journaled, with the next one of its step under a later fence."""
        ended = ended_in(self.events)
        bodies: dict[str, list[Effect]] = defaultdict(list)
        for effect in self.effects:
            bodies[effect[1]].append(effect)
        for step, tries in bodies.items():
            tries.sort(key=lambda effect: (effect[3], effect[5]))
            for one, later in pairwise(tries):
                if later[3] > one[3] and (step, one[2], one[3]) not in ended:
                    yield one, later


def measure(into: Takeovers, run: Run, faults: Faults, workers: Collection[int]) -> None:
    """Add the takeovers of one run. `workers`: their pids; what others executed, a process of a suspect did."""
    for (run_id, step, number, fence, pid, began), (*_, other, again) in run.interrupted():
        if pid not in workers:
            continue  # a suspect's process: it went with its parent, or stayed alone
        fault = faults.behind(pid, began, again)
        if fault is None:
            into.causeless.append(f"{step} of {run_id}, try {number} in segment {fence}")
            continue
        took = (again - fault.at) * 1_000
        if other not in workers:
            into.alone.append(took)
        elif fault.kind == KILLED and faults.another(fault, again):
            into.twice.append(took)
        else:
            into.found[fault.kind].append(took)
            if fault.kind == KILLED and into.pressure(fault.at) < SHORT:
                into.at_leisure.append(took)


def _at(times: Sequence[float], share: float) -> float:
    return times[int(len(times) * share)]


def _told(times: Sequence[float]) -> str:
    if not times:
        return "none"
    return f"{len(times)} steps, p50 {_at(times, 0.5):,.0f}, p99 {_at(times, 0.99):,.0f}, max {times[-1]:,.0f} ms"
