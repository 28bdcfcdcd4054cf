"""What the code notes down besides its steps: status, output, warnings, skipped steps, compensations.

A note is journaled with the commit that follows it, once: its id is as stable as a step's, so that a replayed
one is recognised. What a note holds that cannot be stored ends the run, since the code has gone on already
and cannot be told any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ironflow.codec.values import encode_any
from ironflow.engine import replay
from ironflow.engine.instance import Raised
from ironflow.engine.plan import StepRun
from ironflow.model import journal as j

if TYPE_CHECKING:
    from ironflow.engine.ledger import Ledger
    from ironflow.engine.requests import Note


def take(e: Ledger, note: Note) -> None:
    """Take one note on: remember what it registers, and journal it unless the journal holds it."""
    try:
        payload = _keep(e, note)
    except Exception as error:  # whatever storing it raised
        if e.verdict is None:
            e.verdict = Raised(error)
        return
    if note.kind == j.STEP_SKIPPED:
        replay.check_skip(e, note.id)
    key = (note.kind, note.id)
    if key in e.history.notes:
        return
    e.history.notes.add(key)
    changes = _changes(e, note)
    e.journal(note.kind, note.id, payload)
    if changes:
        e.plan.change(changes)


def _keep(e: Ledger, note: Note) -> str:
    """Everything of a note that has to be encoded, at once; gives the payload of its event."""
    if note.kind == j.OUTPUT_SET:
        e.output = e.spec.output.encode(note.value, path=f"ctx.set_output of {e.spec.name}", limit=e.limit)
        return f'{{"output":{e.output}}}'
    payload = encode_any(note.payload, path=note.kind, limit=e.limit)
    if note.call is not None:
        step = StepRun(note.call)
        step.keep_arguments(e.limit)
        e.compensations[step.id] = step
    return payload


def _changes(e: Ledger, note: Note) -> dict[str, Any] | None:
    """The columns of the run that show a note."""
    if note.kind == j.STATUS_SET:
        # A column of text holds no NUL on PostgreSQL; in the payload it travels escaped.
        return {"status_text": str(note.payload.get("text")).replace("\x00", "\ufffd")}
    if note.kind == j.WARNING:
        e.warnings += 1
        return {"warnings": e.warnings}
    if note.kind == j.COMPENSATION_REGISTERED:
        e.history.compensations.add(note.id)
        return {"compensations": len(e.history.compensations)}
    return None
