"""Which run `ironflow run` means: the one of an id, the newest unfinished one of the same input, or a new one.

Promises that nothing is changed here, and that what this code would not continue is refused before it is touched.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ironflow.cli.inputs import MISSING, typed_input
from ironflow.errors import HandlerVersionMismatch, IdempotencyKeyConflict, InvalidInput
from ironflow.model import run as states
from ironflow.model.ids import split_route
from ironflow.model.run import RunRow
from ironflow.store.reader import RunFilter

if TYPE_CHECKING:
    from ironflow.context.workflows import Workflow
    from ironflow.runtime import Engine

#: Unfinished runs that are compared with the input, newest first.
COMPARED = 1_000
_PAGE = 100
#: Unfinished runs of other inputs that are named.
_NAMED = 3


class Asked:
    """What the person asked for."""

    def __init__(self, workflow: Workflow[Any, Any], given: Any, id: str | None, new: bool) -> None:
        self.workflow = workflow
        self.given = given
        self.id = id
        self.new = new

    def input(self) -> Any:
        return typed_input(self.workflow.spec, self.given)

    def stored(self) -> Any:
        """The input as the journal holds it."""
        spec = self.workflow.spec
        value = self.input()
        return json.loads(spec.input.encode(value, path="input")) if spec.has_input else None


async def chosen(engine: Engine, asked: Asked) -> tuple[RunRow | None, list[str]]:
    """The run to go on with, or None: start one. And the unfinished runs that were passed over, for their input is
    another one: none where the choice was not left to this.

    Raises:
        InvalidInput, IdempotencyKeyConflict: the run of this id is another workflow's, or was started with another
            input: the same as `starting.taken_by` raises of a start.
    """
    if asked.new:
        return None, []
    name = asked.workflow.name
    if asked.id is None:
        return await _unfinished(engine, name, asked.stored())
    row = await engine.store.run(asked.id)
    if row is None:
        return None, []
    if row.workflow != name:
        raise InvalidInput(
            f"run {row.run_id} is a run of {row.workflow}, not of {name}",
            hint="Name the workflow it belongs to, or choose another id.",
        )
    if asked.given is not MISSING and await _input_of(engine, row.run_id) != asked.stored():
        raise IdempotencyKeyConflict(
            f"run {row.run_id} was started with another input",
            hint="Leave --input out, or choose another id.",
            details={"run_id": row.run_id},
        )
    return row, []


async def _unfinished(engine: Engine, workflow: str, stored: Any) -> tuple[RunRow | None, list[str]]:
    live = sorted(states.STATES - states.TERMINAL)
    before: tuple[int, str] | None = None
    others: list[str] = []
    for _ in range(COMPARED // _PAGE):
        page = await engine.store.runs(RunFilter(states=live, workflow=workflow, before=before, limit=_PAGE))
        for row in page:
            if await _input_of(engine, row.run_id) == stored:
                return row, others
            others.append(row.run_id)
        if len(page) < _PAGE:
            break
        before = (page[-1].created_at, page[-1].run_id)
    return None, others


async def _input_of(engine: Engine, run_id: str) -> Any:
    first = await engine.store.journal(run_id, limit=1)
    return first[0].told().get("input") if first else None


def passed_over(workflow: str, others: list[str]) -> str:
    """The sentence about unfinished runs of other inputs. A default that was changed makes the same command mean
    another run, and the one that was meant would lie there for ever.
    """
    shown = ", ".join(others[:_NAMED])
    if len(others) == 1:
        return f"a run of {workflow} with another input is unfinished: {shown}; to go on with it: --id {shown}"
    count = f"{len(others):,}{' or more' if len(others) >= COMPARED else ''}"
    more = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
    return f"{count} runs of {workflow} with other inputs are unfinished: {shown}{more}; to go on with one: --id ID"


def check_fit(engine: Engine, workflow: Workflow[Any, Any], row: RunRow) -> None:
    """Refuse a run that this code would not continue; a worker that does can still have it."""
    assert engine.worker is not None
    if engine.worker.session.can_take(row.route):
        return
    spec, route = workflow.spec, split_route(row.route)
    if route.version in (spec.version, *spec.compatible):
        raise InvalidInput(
            f"run {row.run_id} asks for a worker with tags {', '.join(sorted(route.tags))}",
            hint="`ironflow worker FILE --tag …` on a host that has them executes it",
        )
    raise HandlerVersionMismatch(
        f"run {row.run_id} was created by version {route.version} of {spec.name}, and this code is version "
        f"{spec.version}; nothing of the run was changed",
        hint=f"Declare compatible=({route.version!r},) if this code can continue it, or add --new for another run",
    )
