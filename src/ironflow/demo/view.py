"""What the demo shows while it runs: a picture on a terminal, lines elsewhere, nothing for scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ironflow.demo.workers import WorkerProcess


@dataclass(slots=True)
class Scene:
    """The state of things, as the demo last saw it."""

    workers: list[WorkerProcess] = field(default_factory=list)
    owner: str | None = None
    state: str = "starting"
    status: str = ""
    total: int = 0
    done: int = 0
    executing: int = 0
    elapsed_s: float = 0.0


class View(Protocol):
    """Where the demo reports to."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None:
        """Something happened."""
        ...

    def update(self, scene: Scene) -> None:
        """Time went on."""
        ...


class Silent:
    """For `--json`: only the result counts."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """Nothing."""

    def update(self, scene: Scene) -> None:
        """Nothing."""


class Lines(Silent):
    """For logs and pipes: what happened, and how far it is every quarter of the way."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._quarter = 0

    def say(self, text: str) -> None:
        """A line."""
        self._console.print(text, highlight=False, soft_wrap=True)

    def update(self, scene: Scene) -> None:
        """A line when a further quarter is done."""
        quarter = 4 * scene.done // scene.total if scene.total else 0
        if quarter > self._quarter:
            self._quarter = quarter
            self.say(f"  {scene.done} of {scene.total} files, on {scene.owner or 'no worker'}")


class Picture(Silent):
    """For terminals: the run, its progress and its workers, redrawn in place below what was said."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=12, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """A line that stays, above the picture."""
        self._live.console.print(text, highlight=False)

    def update(self, scene: Scene) -> None:
        """Draw the scene."""
        self._live.update(_picture(scene))


def make_view(console: Console, *, silent: bool) -> View:
    """The view that fits where the output goes."""
    if silent:
        return Silent()
    return Picture(console) if console.is_terminal else Lines(console)


def _picture(scene: Scene) -> Group:
    head = Table.grid(padding=(0, 2))
    head.add_row(
        Text(scene.state, style="bold"),
        ProgressBar(total=max(1, scene.total), completed=scene.done, width=32),
        f"{scene.done}/{scene.total} files" if scene.total else "",
        f"{scene.elapsed_s:.1f} s",
    )
    workers = Table.grid(padding=(0, 2))
    for worker in scene.workers:
        workers.add_row(*_worker(worker, scene))
    return Group(Text(), head, Text(f"  {scene.status}", style="dim"), workers)


def _worker(worker: WorkerProcess, scene: Scene) -> tuple[Text, Text, Text]:
    name, pid = Text(f"  worker {worker.name}"), Text(f"pid {worker.pid}", style="dim")
    if worker.killed:
        return name, pid, Text("killed with SIGKILL", style="bold red")
    if worker.name == scene.owner:
        return name, pid, Text(f"owns the run, {scene.executing} bodies executing", style="green")
    return name, pid, Text("alive, has nothing to do", style="dim")
