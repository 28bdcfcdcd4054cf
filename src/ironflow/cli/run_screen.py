"""A run whole, as a person reads it: its facts, its steps with their tries, what failed, and what it came to.

Promises that nothing here can be taken for news that it is not: what a run that has ended was doing, and a failure that
a later try made good, are told as past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ironflow.cli import output, times
from ironflow.cli.listing import Listing
from ironflow.engine import views
from ironflow.model import journal as j
from ironflow.model import run as states
from ironflow.model import step as step_states
from ironflow.model.fold import StepView
from ironflow.model.journal import Event
from ironflow.model.run import RunRow

if TYPE_CHECKING:
    from rich.console import Console

    from ironflow.runtime.handle import RunView

_ENDED_WELL = (states.COMPLETED, states.WARNING)


def show(screen: Console, view: RunView, told: list[Event], now: int) -> None:
    """Print a run. `told`: its journal, where it warned of something; else nothing of it is needed."""
    _draw(screen, view, [*_warnings(told, view), *_unserved(view)], now)


def _warnings(events: list[Event], view: RunView) -> list[str]:
    """What the run warned of since it was started or restarted."""
    told = [str(event.told().get("message")) for event in events if event.kind == j.WARNING]
    return told[len(told) - view.row.warnings :]


def _unserved(view: RunView) -> list[str]:
    """What keeps a queued run from ever being taken, as far as workers were seen lately."""
    routing = view.worker_routing
    if routing is None or routing["workers_eligible"]:
        return []
    none = f"of the {output.count(routing['workers_seen'], 'worker')} connected none could take it"
    # RUN stands for the id on the first line of the screen: with that, this line would be too long.
    return [f"{none if routing['workers_seen'] else 'no worker is connected'} (see `ironflow why RUN`)"]


def _draw(screen: Console, view: RunView, warnings: list[str], now: int) -> None:
    from rich.table import Table

    row = view.row
    facts = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_header=False)
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(row, view, now):
        facts.add_row(name, value)
    screen.print(facts)
    if view.steps:
        screen.print()
        _steps(list(view.steps.values()), now).print(screen)
    _draw_errors(screen, row, view)
    if warnings:
        screen.print()
    for text in warnings:
        screen.print(f"warning: {text}", style="yellow", soft_wrap=True)
    if row.state in _ENDED_WELL:
        screen.print()
        screen.print("output", style="bold")
        screen.print(output.result_text(view.output), soft_wrap=True)


def _draw_errors(screen: Console, row: RunRow, view: RunView) -> None:
    """Below the table, whole and unwrapped: a column has no room for them, and a cut message is no message."""
    last = output.error_text(view.error)
    for step in view.steps.values():
        texts = _errors(step)
        if not texts or texts == [last]:
            continue
        past = step.state == step_states.COMPLETED
        made_good = f", before it completed in try {step.try_no}" if past else ""
        screen.print()
        screen.print(f"{step.name}  {step.step_id.partition(':')[0]}{made_good}", style="dim" if past else "bold")
        for text in texts:
            screen.print(text, style="dim" if past else "red", soft_wrap=True)
    if row.state == states.PAUSED:
        from ironflow.engine.why import paused_because

        screen.print()
        screen.print(f"paused: {paused_because(view.hold, row.run_id)}", style="yellow", soft_wrap=True)
    if view.error:
        screen.print()
        screen.print(last, style="red", soft_wrap=True)
        trace = str(view.error.get("traceback", "")).rstrip()
        if trace:
            screen.print(trace, style="dim", soft_wrap=True)
    for text in output.undone_lines(view.undo_errors):
        screen.print()
        screen.print(text, style="red", soft_wrap=True)


def _errors(step: StepView) -> list[str]:
    """What the tries of a step failed with, each with its number where there were several."""
    if len(step.tries) > 1:
        return [f"try {one.number}: {output.error_text(one.error)}" for one in step.tries if one.error]
    return [output.error_text(error) for error in [one.error for one in step.tries] or [step.error] if error]


def _facts(row: RunRow, view: RunView, now: int) -> list[tuple[str, Any]]:
    length = output.took(row, now) if row.ended or row.state in states.OWNED else None
    found: list[tuple[str, Any]] = [
        ("run", row.run_id),
        ("workflow", f"{row.workflow} (version {row.version})"),
        ("state", output.state_text(row.state, row.reason or "")),
        ("last status" if row.ended else "status", (row.state not in _ENDED_WELL and row.status_text) or ""),
        ("created", f"{times.ago(row.created_at, now)}, {views.iso(row.created_at)}"),
        ("scheduled", views.iso(row.scheduled_at) or ""),
        ("took" if row.ended else "running for", times.span(length) if length is not None else ""),
        ("input", output.result_text(view.input) if view.input is not None else ""),
        ("attempt", str(row.attempt) if row.attempt > 1 else ""),
        ("recovered", output.count(row.lease_recoveries, "time") if row.lease_recoveries else ""),
        ("priority", str(row.priority) if row.priority else ""),
        ("labels", row.labels or ""),
        ("concurrency key", row.concurrency_key or ""),
        ("parent", row.parent_run_id or ""),
    ]
    return [(name, value) for name, value in found if value]


def _steps(steps: list[StepView], now: int) -> Listing:
    from rich.text import Text

    made = Listing("STEP", "STATE", "TRIES", "STARTED", "TOOK", "", shrink=("", "STEP"))
    for step in steps:
        first = step.tries[0].started_at if step.tries else None
        length = output.took(step.tries[-1], now, since=first) if step.tries else None
        note = f"next {times.ago(step.due_at, now)}" if step.due_at else ""
        made.add_row(
            Text(step.name).append(f"  {step.step_id.partition(':')[0]}", style="dim"),
            output.state_text(step.state),
            str(step.try_no or ""),
            times.ago(first, now),
            times.span(length) if length is not None else "",
            note,
        )
        if len(step.tries) > 1:
            for n, one in enumerate(step.tries):
                # One that was cut off is made again under its number: it does not count as one that failed.
                again = " again" if n and step.tries[n - 1].number == one.number else ""
                made.add_row(
                    f"  try {one.number}{again}",
                    # What the step does after a failed try is the step's state; the try itself has failed.
                    output.state_text(step_states.FAILED if one.state == step_states.RETRYING else one.state),
                    "",
                    times.ago(one.started_at, now),
                    times.span(output.took(one, now) or 0),
                    "",
                    style="dim",
                )
    return made
