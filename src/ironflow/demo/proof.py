"""What the demo may claim, computed from what is on disk. Pure: journal, effects and index in, verdicts out.

The journal says what the engine believes, the effects file what the bodies did. The two are written by
different code in different transactions, and every claim here is a comparison of both.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.fold import StepView, fold
from ironflow.model.journal import Event


@dataclass(slots=True, frozen=True)
class Effect:
    """One line of the effects file: a body began. `at_ms` is its host's clock, ms since 1970."""

    step_id: str
    attempt: int
    pid: int
    at_ms: int
    run_id: str


@dataclass(slots=True)
class StepCount:
    """How often the steps of one name were called and executed.

    `cut_off` counts tries whose worker died under them, `failed` tries that failed and were followed by
    another.
    """

    name: str
    calls: int = 0
    executed: int = 0
    cut_off: int = 0
    failed: int = 0


@dataclass(slots=True, frozen=True)
class Check:
    """One claim, whether it holds, and the figures behind it."""

    claim: str
    holds: bool
    detail: str


def read_effects(file: Path, run_id: str) -> list[Effect]:
    """The effects of one run, in the order in which the bodies began."""
    if not file.exists():
        return []
    lines = (line.split("\t", 4) for line in file.read_text(encoding="utf-8").splitlines())
    found = (Effect(step, int(attempt), int(pid), int(at), run) for step, attempt, pid, at, run in lines)
    return [effect for effect in found if effect.run_id == run_id]


def count_steps(events: Sequence[Event], effects: Sequence[Effect]) -> list[StepCount]:
    """Calls and executions by name of step, in the order in which the names first ran."""
    executed = Counter(effect.step_id for effect in effects)
    counts: dict[str, StepCount] = {}
    for step_id, view in fold(events).steps.items():
        count = counts.setdefault(view.name, StepCount(view.name))
        count.calls += 1
        count.executed += executed[step_id]
        count.cut_off += _tries(view, steps.INTERRUPTED)
        count.failed += _tries(view, steps.RETRYING)
    return list(counts.values())


def open_at_recovery(events: Sequence[Event]) -> list[str]:
    """Ids of the steps that the dead worker had begun and not finished."""
    upto = next((i for i, event in enumerate(events) if event.kind == j.RUN_RECOVERED), len(events))
    views = fold(events[:upto]).steps.values()
    return [view.step_id for view in views if view.state == steps.RUNNING]


def finished_stay_finished(events: Sequence[Event], effects: Sequence[Effect], dead_pid: int) -> Check:
    """No step that was finished before the kill was executed by another process after it."""
    upto = next((i for i, event in enumerate(events) if event.kind == j.RUN_RECOVERED), len(events))
    finished = {event.step_id for event in events[:upto] if event.kind == j.STEP_COMPLETED}
    again = sorted({e.step_id for e in effects if e.step_id in finished and e.pid != dead_pid})
    return Check(
        "no step that was finished before the kill ran again",
        bool(finished) and not again,
        f"{len(finished)} finished, {len(again)} ran again" + (f": {', '.join(again[:5])}" if again else ""),
    )


def executed_as_recorded(events: Sequence[Event], effects: Sequence[Effect]) -> Check:
    """Every body began as often as the journal says, and no body began that the journal does not know.

    A try that was cut off may have died between its record and the first line of its body; only there, one
    execution less than recorded is right.
    """
    executed = Counter(effect.step_id for effect in effects)
    views = fold(events).steps
    wrong = [f"{step_id} is not in the journal" for step_id in executed if step_id not in views]
    for step_id, view in views.items():
        most, least = len(view.tries), len(view.tries) - _tries(view, steps.INTERRUPTED)
        if not least <= executed[step_id] <= most:
            wrong.append(f"{step_id} began {executed[step_id]} times, the journal says {most}")
    return Check(
        "every body began exactly as often as the journal says",
        not wrong,
        "; ".join(wrong[:5]) or _often(views.values(), executed),
    )


def _often(views: Iterable[StepView], executed: Mapping[str, int]) -> str:
    """How many steps ran once, and why others ran more often."""
    reasons = Counter(_reason(view, executed[view.step_id]) for view in views)
    return "; ".join(f"{count} {'step' if count == 1 else 'steps'} {why}" for why, count in reasons.most_common())


def _reason(view: StepView, executed: int) -> str:
    cut_off = _tries(view, steps.INTERRUPTED)
    if executed == 1:
        return "once, as the kill came before its body began" if cut_off else "once"
    often = "twice" if executed == 2 else f"{executed} times"
    why = "cut off by the kill" if cut_off else "tried again after an error"
    return f"{often}, {why}"


def index_is_right(index: dict[str, str], root: Path, files: int) -> Check:
    """The index holds every file once, with the hash that the file has when it is read again."""
    wrong = [path for path, digest in index.items() if hashlib.sha256((root / path).read_bytes()).hexdigest() != digest]
    return Check(
        "the index holds every file once, with the right sha256",
        len(index) == files and not wrong,
        f"{len(index)} rows for {files} files, {len(wrong)} wrong",
    )


def ended_well(events: Sequence[Event], state: str) -> Check:
    """The run ended once, and well; its journal has no gap and claims nothing impossible."""
    folded = fold(events)
    terminal = sum(1 for event in events if event.kind in j.TERMINAL_KINDS)
    broken = [text for _, text in folded.breaches]
    whole = terminal == 1 and folded.state == state and not broken
    return Check(
        "the run ended once, and its journal folds to the run's row",
        whole and state == runs.COMPLETED,
        "; ".join(broken[:3]) or f"{state}, {len(events)} events, {terminal} of them terminal",
    )


def _tries(view: StepView, state: str) -> int:
    return sum(1 for one in view.tries if one.state == state)
