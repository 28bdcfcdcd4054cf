"""The handle of one run, and a run as it stands.

Owns what a caller does with one run. Promises that a handle means the same whether the run's engine is a database that
is open in this process (:class:`~ironflow.runtime.engine.Engine`) or a server (:class:`~ironflow.client.Client`): it
asks for nothing that :class:`Runs` does not say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from ironflow.codec.exceptions import decode_error
from ironflow.codec.values import parse
from ironflow.context.workflows import Workflow
from ironflow.engine.loop_base import text_of
from ironflow.engine.views import worker_routing
from ironflow.engine.why import Hold, paused_because
from ironflow.errors import IronflowError, RunCancelled, RunFailed, RunPaused
from ironflow.model import run as runs
from ironflow.model.fold import StepView, fold
from ironflow.model.journal import Event, name_of
from ironflow.model.run import RunRow
from ironflow.store.base import Store
from ironflow.worker.evidence import living

Out = TypeVar("Out")


@dataclass(slots=True)
class RunView:
    """A run as it stands: its row, and what its journal says."""

    row: RunRow
    steps: dict[str, StepView]
    input: Any
    output: Any
    error: dict[str, Any] | None
    #: the compensations that failed when the run was undone: step id → error
    undo_errors: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: what the run is paused for: the payload of the event that paused it
    hold: dict[str, Any] | None = None
    #: while it is queued: how many workers were seen lately, and how many of them could take it
    worker_routing: dict[str, Any] | None = None

    @property
    def run_id(self) -> str:
        return self.row.run_id

    @property
    def state(self) -> str:
        return self.row.state


async def look(store: Store, row: RunRow) -> RunView:
    """A run of a database as it stands."""
    told = fold(await store.journal(row.run_id))
    sessions = living(await store.sessions()) if row.state in runs.QUEUED else ()
    routing = worker_routing(row, sessions, store.now())
    return RunView(row, told.steps, told.input, told.output, told.error, told.undo_errors, told.hold, routing)


class Runs(Protocol):
    """Where runs are: what a handle asks of it. Each method is described where it is implemented, in `Engine`."""

    async def wait_end(self, run_id: str) -> tuple[str, str | None]: ...
    async def get(self, run_id: str) -> RunView: ...
    async def why(self, run_id: str) -> list[Hold]: ...
    async def journal(self, run_id: str, after: int = 0) -> list[Event]: ...
    async def cancel(self, run_id: str, *, force: bool = False) -> bool: ...
    async def pause(self, run_id: str) -> bool: ...
    async def resume(self, run_id: str) -> bool: ...
    async def retry(self, run_id: str, *, restart: bool = False) -> bool: ...


class Run(Generic[Out]):
    """The handle of one run. Waiting for it never harms it."""

    def __init__(self, engine: Runs, run_id: str, workflow: Workflow[Any, Out] | None, created: bool = True) -> None:
        self.engine = engine
        self.id = run_id
        self.workflow = workflow
        #: False if the run existed already (same id or idempotency key)
        self.created = created

    async def result(self, *, timeout: float | None = None) -> Out:
        """The run's output.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            RunFailed: it failed; raised from the original error.
            RunCancelled, RunPaused: it was cancelled, or is held for a person.
            TimeoutError: it did not end in time. It goes on all the same.
        """
        async with asyncio.timeout(timeout):
            state, payload = await self.engine.wait_end(self.id)
        data = parse(payload) if payload else {}
        if state in (runs.COMPLETED, runs.WARNING):
            output: Any = data.get("output")
            if self.workflow is not None:
                output = self.workflow.spec.output.validate(output)
            return output  # type: ignore[no-any-return]
        if state == runs.FAILED:
            error = decode_error(data["error"])
            message = f"run {self.id} failed: {type(error).__name__}: {text_of(error)}{left_behind(data)}"
            facts = {"failure": data["error"], "undo_errors": data.get("undo_errors"), "undone": await self._undone()}
            failed = RunFailed(message, run_id=self.id, **facts)
            if trace := str(data["error"].get("traceback") or "").rstrip():
                failed.add_note(f"Where it failed:\n{trace}")
            raise failed from error
        if state == runs.CANCELLED:
            raise RunCancelled(f"run {self.id} was cancelled{left_behind(data)}", run_id=self.id)
        hold = (await self.engine.get(self.id)).hold
        raise RunPaused(f"run {self.id} is paused: {paused_because(hold, self.id)}", run_id=self.id, hint="")

    async def _undone(self) -> bool:
        """Whether its compensations ran. Only advice depends on it: where it cannot be asked, the failure is told."""
        try:
            return (await self.engine.get(self.id)).row.compensating_for is not None
        except IronflowError:
            return False

    async def status(self) -> RunView:
        """The run as it stands."""
        return await self.engine.get(self.id)

    async def why(self) -> list[Hold]:
        """Every reason why the run is not executing, with the earliest time at which it can lift."""
        return await self.engine.why(self.id)

    async def journal(self) -> AsyncIterator[Event]:
        """The events so far, in order."""
        for event in await self.engine.journal(self.id):
            yield event

    async def cancel(self, *, force: bool = False) -> bool:
        """End the run; `force` skips its compensations. Returns whether anything changed: not if it was cancelled.

        Raises:
            RunNotFound: there is no such run any more.
            InvalidTransition: it has ended otherwise.
        """
        return await self.engine.cancel(self.id, force=force)

    async def pause(self) -> bool:
        """Hold the run where it is. Returns whether anything changed: not if it is paused already.

        Raises:
            RunNotFound: there is no such run any more.
            InvalidTransition: it has ended, or is being cancelled.
        """
        return await self.engine.pause(self.id)

    async def resume(self) -> bool:
        """Let the paused run go on. Returns True: one that is not paused is refused.

        Raises:
            RunNotFound: there is no such run any more.
            InvalidTransition: it is not paused.
        """
        return await self.engine.resume(self.id)

    async def retry(self, *, restart: bool = False) -> bool:
        """Reopen the failed or cancelled run: finished steps are kept, or with `restart` executed again. Returns True.

        Raises:
            RunNotFound: there is no such run any more.
            InvalidTransition: it is live or ended well, or its compensations ran and it is not to be restarted.
        """
        return await self.engine.retry(self.id, restart=restart)


def left_behind(data: Mapping[str, Any]) -> str:
    """What a run that was undone has left as it was: part of a sentence, from the payload of its terminal event."""
    failed = [
        f"{name_of(step_id)} ({step_id.partition(':')[0]}): {error.get('message') or error.get('type')}"
        for step_id, error in (data.get("undo_errors") or {}).items()
    ]
    return f"; compensations failed: {', '.join(failed)}" if failed else ""
