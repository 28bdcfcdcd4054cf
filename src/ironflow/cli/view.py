"""What a person sees while a run is under way: a live view on a terminal, a line per event elsewhere.

Promises that all of it goes to stderr: stdout belongs to the result, so `ironflow run … > result.json` holds nothing
else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from ironflow.cli import times
from ironflow.cli.follow import Progress
from ironflow.cli.holding import sentence
from ironflow.cli.lines import KIND_WIDTH, Printer, remark
from ironflow.cli.output import screen, state_text
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.fold import StepView
from ironflow.model.journal import Event

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ironflow.engine.why import Hold

#: Open steps that are shown by name; the others are counted.
SHOWN = 8
#: What a person does not ask about while it happens; `runs journal` has it all.
_QUIET = frozenset({j.VALUE_RECORDED, j.TIMER_STARTED, j.OUTPUT_SET, j.RUN_CREATED, j.COMPENSATION_REGISTERED})


class View(Protocol):
    """Where progress is shown."""

    def live(self) -> AbstractContextManager[Any]:
        """Show while this is entered."""
        ...

    def say(self, text: str, style: str = "") -> None:
        """A sentence of its own."""
        ...

    def update(self, progress: Progress, page: Iterable[Event]) -> None:
        """The run has moved."""
        ...

    def held(self, hold: Hold | None) -> None:
        """What keeps the run from executing at the moment; said again and again."""
        ...


class Silent:
    """For `--json`: nothing."""

    def live(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def say(self, text: str, style: str = "") -> None:
        return

    def update(self, progress: Progress, page: Iterable[Event]) -> None:
        return

    def held(self, hold: Hold | None) -> None:
        return


class Lines:
    """For files, pipes and CI: one line per event."""

    def __init__(self) -> None:
        self.console = screen(stderr=True)
        self._printer = Printer(self.console, seq=False, width=KIND_WIDTH, brief=True)
        self._hold: tuple[str, str] | None = None

    def live(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, soft_wrap=True)

    def update(self, progress: Progress, page: Iterable[Event]) -> None:
        for event in page:
            if event.kind not in _QUIET:
                self._printer.show(event)

    def held(self, hold: Hold | None) -> None:
        told = (hold.code, hold.message) if hold is not None else None
        if hold is not None and told != self._hold:
            self.say(f"held: {hold.code}: {sentence(hold, _now_ms())}")
        self._hold = told


class Live:
    """For a terminal: state, counts, what executes and for how long, redrawn in place and gone at the end."""

    def __init__(self, workflow: str) -> None:
        self.console = screen(stderr=True)
        self.workflow = workflow
        self.progress = Progress()
        self._hold: Hold | None = None
        self._spinner: Any = None

    def live(self) -> AbstractContextManager[Any]:
        from rich.live import Live as RichLive

        return RichLive(
            get_renderable=self.render,
            console=self.console,
            refresh_per_second=10,
            transient=True,
        )

    def say(self, text: str, style: str = "") -> None:
        self.console.print(text, style=style, soft_wrap=True)

    def update(self, progress: Progress, page: Iterable[Event]) -> None:
        self.progress = progress
        for event in page:
            if event.kind == j.WARNING:  # it outlives the view: the state says only that there was one
                self.say(f"warning: {remark(event)}", "yellow")

    def held(self, hold: Hold | None) -> None:
        self._hold = hold

    def render(self) -> RenderableType:
        """The view as it is now."""
        from rich.console import Group
        from rich.padding import Padding
        from rich.spinner import Spinner
        from rich.table import Table
        from rich.text import Text

        if self._spinner is None:
            self._spinner = Spinner("dots", style="cyan")
        progress, now = self.progress, _now_ms()
        head = Table.grid(padding=(0, 1, 0, 0))
        head.add_row(
            self._spinner, Text(self.workflow, style="bold"), state_text(progress.state),
            Text(self._counts(now), style="dim"),
        )  # fmt: skip
        parts: list[RenderableType] = [head]
        if self._hold is not None and progress.state in runs.QUEUED | runs.SUSPENDED:
            text = Text(f"held: {self._hold.code}: {sentence(self._hold, now)}", style="yellow", overflow="fold")
            parts.append(Padding(text, (0, 0, 0, 2)))
        if progress.view.status_text:
            parts.append(Text(f"  {progress.view.status_text}", no_wrap=True, overflow="ellipsis"))
        under_way = progress.under_way()
        parts += [self._step(step, now) for step in under_way[:SHOWN]]
        hidden = len(under_way) - SHOWN
        if hidden > 0:
            parts.append(Text(f"  … and {hidden} more", style="dim"))
        return Group(*parts)

    def _counts(self, now: int) -> str:
        view, retries, under_way = self.progress.view, self.progress.retries, len(self.progress.under_way())
        failed = view.tally[steps.FAILED] + view.tally[steps.TIMED_OUT]
        parts = [f"{view.tally[steps.COMPLETED]} done"]
        parts += [f"{under_way} running"] if under_way else []
        parts += [f"{failed} failed"] if failed else []
        parts += [f"{retries} retried"] if retries else []
        parts += [f"{view.lease_recoveries} recovered"] if view.lease_recoveries else []
        if view.due_at and view.state != runs.PAUSED:
            parts.append(f"{'again' if view.state == runs.RETRYING else 'wakes'} {times.ago(view.due_at, now)}")
        parts += [times.span(now - view.created_at)] if view.created_at else []
        return " · ".join(parts)

    def _step(self, step: StepView, now: int) -> RenderableType:
        from rich.text import Text

        text = Text("  ", no_wrap=True, overflow="ellipsis")
        text.append(f"{times.span(now - step.tries[-1].started_at):>7}  ", style="dim")
        text.append(step.name).append(f"  {step.step_id.partition(':')[0]}", style="dim")
        if step.try_no > 1 or step.due_at:
            text.append(f"  try {step.try_no}", style="yellow")
        if step.due_at:
            text.append(f" failed, again {times.ago(step.due_at, now)}", style="yellow")
        return text


def view_for(workflow: str, *, as_json: bool) -> View:
    """The view that fits where stderr goes."""
    if as_json:
        return Silent()
    return Live(workflow) if sys.stderr.isatty() else Lines()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
