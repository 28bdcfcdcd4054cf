"""What the demo says at the end: what happened when, how often each body ran, which claims hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ironflow.demo.proof import Check, StepCount, count_steps, open_at_recovery
from ironflow.demo.stage import Evidence
from ironflow.model import journal as j
from ironflow.model.journal import Event, name_of

#: Proof of a death takes milliseconds; a recovery later than this came from a clock.
CLOCK_MS = 10_000


def timeline(evidence: Evidence) -> list[tuple[int, str]]:
    """What happened, with ms since the run was created, in order."""
    start = evidence.events[0].at
    entries = [(event.at, text) for event in evidence.events if (text := _told(event))]
    done = sum(1 for event in evidence.events if event.kind == j.STEP_COMPLETED and event.at <= evidence.killed_at)
    cut = open_at_recovery(evidence.events)
    where = f"in the middle of {len(cut)} others" if cut else "between two steps: none was cut off"
    entries.append((evidence.killed_at, f"kill -9 of {evidence.killed}, {done} steps finished, {where}"))
    took = evidence.recovery_ms
    if took is not None:
        entries.append(
            (
                evidence.killed_at + took,
                f"{evidence.survivor} executes the first body, {took} ms after the kill",
            )
        )
    return sorted(((at - start, text) for at, text in entries), key=lambda entry: entry[0])


def as_json(evidence: Evidence, checks: Sequence[Check], elapsed_s: float) -> dict[str, Any]:
    """The same as one object; durations in ms."""
    return {
        "ok": all(check.holds for check in checks),
        "store": evidence.store,
        "run_id": evidence.run_id,
        "state": evidence.state,
        "killed": {
            "worker": evidence.killed,
            "pid": evidence.killed_pid,
            "cut_off": open_at_recovery(evidence.events),
        },
        "finished_by": {"worker": evidence.survivor, "pid": evidence.survivor_pid},
        "recovery_ms": evidence.recovery_ms,
        "timeline": [{"at_ms": at, "what": text} for at, text in timeline(evidence)],
        "steps": [asdict(count) for count in count_steps(evidence.events, evidence.effects)],
        "checks": [asdict(check) for check in checks],
        "summary": asdict(evidence.summary),
        "elapsed_ms": round(elapsed_s * 1000),
    }


def show(console: Console, evidence: Evidence, checks: Sequence[Check], elapsed_s: float) -> None:
    """Print it for people."""
    console.print()
    console.print(Text("What happened", style="bold"))
    for at, text in timeline(evidence):
        style = "red" if text.startswith("kill") else ""
        _say(console, Text(f"  {at / 1000:7.3f} s  ", style=style), Text(text, style=style))
    console.print()
    console.print(_table(count_steps(evidence.events, evidence.effects)))
    console.print()
    for check in checks:
        mark = Text("  ok    ", style="green") if check.holds else Text("  WRONG ", style="bold red")
        _say(console, mark, Text(check.claim) + Text(f" ({check.detail})", style="dim"))
    console.print()
    _say(console, Text(), _verdict(evidence, checks, elapsed_s))


def _say(console: Console, mark: Text, text: Text) -> None:
    """A line. On a terminal that is too narrow for it, it goes on under itself, and is cut between words."""
    if not console.is_terminal:
        console.print(mark + text, soft_wrap=True)
        return
    line = Table.grid()
    line.add_column(no_wrap=True)
    line.add_column(overflow="fold")
    line.add_row(mark, text)
    console.print(line)


def _table(counts: Sequence[StepCount]) -> Table:
    table = Table(box=SIMPLE, title="Side effects: bodies that began, counted in the file each appends to")
    table.add_column("step")
    for name in ("calls", "bodies", "cut off by the kill", "failed, tried again"):
        table.add_column(name, justify="right", no_wrap=True)
    for count in counts:
        figures = (count.calls, count.executed, count.cut_off, count.failed)
        table.add_row(count.name, *(str(figure) if figure else "-" for figure in figures))
    return table


def _verdict(evidence: Evidence, checks: Sequence[Check], elapsed_s: float) -> Text:
    wrong = sum(1 for check in checks if not check.holds)
    if wrong:
        return Text(f"{wrong} of {len(checks)} claims do not hold on {evidence.store}.", style="bold red")
    took = evidence.recovery_ms
    after = "" if took is None else f" {took} ms after its worker was killed"
    if took is not None and took > CLOCK_MS:
        after += ", when its lease ran out: nothing proved the death here,"
    return Text(
        f"The run went on{after} and finished. All {len(checks)} claims hold on {evidence.store}; "
        f"{elapsed_s:.1f} s in all.",
        style="bold green",
    )


def _told(event: Event) -> str | None:
    """An event as a line of the timeline; None for those that would only fill it."""
    data = event.told()
    if event.kind in (j.RUN_STARTED, j.RUN_RESUMED):
        verb = "starts" if event.kind == j.RUN_STARTED else "resumes"
        return f"the run {verb} on {data.get('worker')} (fence {event.execution_seq})"
    if event.kind == j.RUN_RECOVERED:
        return f"the lease is taken back and the run queued again (fence {event.execution_seq})"
    if event.kind == j.RUN_SUSPENDED:
        return "the run sleeps and holds no worker"
    if event.kind == j.STEP_RETRYING:
        error = data.get("error") or {}
        return f"{name_of(event.step_id or '')} failed ({error.get('message')}) and is tried again"
    return {j.RUN_CREATED: "the run is created", j.RUN_SUCCEEDED: "the run succeeds"}.get(event.kind)
