"""A change that is too large for one message, in parts.

Each part is a change of its own, and what a worker that died behind it would have left: whole events, in order, and a
row of the run that agrees with them.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.journal import Event
from ironflow.model.telling import TOLD_BY
from ironflow.model.transition import GUARD_OWNER, Transition

#: Columns that hold how many events of their kind there were.
_COUNTED = frozenset({"compensations", "warnings"})


def in_parts(whole: Transition, most_bytes: int) -> list[Transition]:
    """A change in parts that fit each. One whose taking of the run leaves it at once stays whole."""
    if whole.guard != GUARD_OWNER and whole.lease is None:
        return [whole]
    groups: list[list[Event]] = [[]]
    size = 0
    for event in whole.events:
        # Escaped inside the message, a payload takes up to twice its length.
        size += 2 * len(event.payload or "") + 256
        if groups[-1] and size > most_bytes - 4_096:
            groups.append([])
            size = 2 * len(event.payload or "") + 256
        groups[-1].append(event)
    if len(groups) == 1:
        return [whole]
    seq, token = whole.execution_seq, whole.token_hash
    parts: list[Transition] = []
    if whole.guard != GUARD_OWNER:  # taken first; the owner's rest follows
        seq, token = whole.new_execution_seq or 0, whole.new_token_hash
        events, whole.events = whole.events, groups.pop(0)
        parts.append(whole)
        whole = Transition(whole.run_id, GUARD_OWNER, seq, token)
        whole.events = events
    for group in groups[:-1]:
        part = Transition(whole.run_id, GUARD_OWNER, seq, token)
        part.events, part.facts = group, whole.facts
        parts.append(part)
    columns, whole.events = parts[0].changes if parts else None, groups[-1]
    parts.append(whole)
    _share(parts, columns or whole.changes)
    return parts


def _share(parts: list[Transition], columns: dict[str, Any] | None) -> None:
    """Let each part say of the run's row what its own events tell."""
    left = dict(columns or {})
    kinds = [Counter(event.kind for event in part.events) for part in parts]
    begun = any(j.RUN_COMPENSATING in one for one in kinds)
    for part, told in zip(reversed(parts), reversed(kinds), strict=True):
        own: dict[str, Any] = {}
        for name, value in list(left.items()):
            count = told[TOLD_BY[name]]
            if name in _COUNTED and (count or (part is parts[-1] and not value)):  # 0: by the end, which restarts it
                own[name], left[name] = max(value, count) if part is not parts[-1] else value, max(value - count, 0)
            elif count:
                own[name] = left.pop(name)
        part.changes = own or None
        if j.RUN_COMPENSATING in told and not part.release:
            part.state = runs.CANCELLING
        elif begun and part.state == runs.CANCELLING:  # it becomes so with another part
            part.state = runs.RUNNING if part.lease is not None else None
