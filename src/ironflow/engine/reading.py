"""Reading a journal in pieces: what a run has done costs the memory of one piece, whatever the run has computed.

Promises that no more than one large payload is held at a time, and that what is left out of an outline can be had by
its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

from ironflow.model import journal as j
from ironflow.model.fold import Folded, Folder, StepView
from ironflow.model.journal import Event
from ironflow.store.base import Store

#: Events read at once for an outline; none of them is large, but for errors.
PIECE = 500
#: Events looked at together for a page.
_CHUNK = 50


async def outlined(store: Store, run_id: str) -> Folded:
    """What the journal of a run adds up to, without large values: `Folded.apart` and its like say where those stand."""
    folder, after = Folder(), 0
    while True:
        events = await store.outline(run_id, after, PIECE)
        for event in events:
            folder.add(event)
        if len(events) < PIECE:
            return folder.view
        after = events[-1].seq


async def kinds_since(store: Store, run_id: str, execution_seq: int) -> Collection[str]:
    """Which kinds of events later owners than this one have written."""
    found: set[str] = set()
    after = 0
    while True:
        events = await store.outline(run_id, after, PIECE)
        found.update(event.kind for event in events if event.execution_seq > execution_seq)
        if len(events) < PIECE:
            return found
        after = events[-1].seq


async def whole(store: Store, run_id: str, seq: int) -> Event | None:
    """One event with its payload; None where the run is gone."""
    # Telling a large one takes milliseconds, and one that is not is read on the spot: others come in between.
    await asyncio.sleep(0)
    found = await store.journal(run_id, seq - 1, 1)
    return found[0] if found and found[0].seq == seq else None


async def payload_at(store: Store, run_id: str, seq: int) -> dict[str, Any]:
    """The payload of one event; empty where it is gone."""
    found = await whole(store, run_id, seq)
    return {} if found is None else found.told()


async def complete(store: Store, run_id: str, view: Folded, step: StepView) -> int:
    """Give a step of an outline its result, where that was left out; how large it is, in characters."""
    seq = view.apart.get(step.step_id)
    if seq is None:
        return 0
    found = await whole(store, run_id, seq)
    if found is None:
        return 0
    step.result = found.told().get("result")
    return len(found.payload or "")


async def page(store: Store, run_id: str, after: int, limit: int, most: int) -> tuple[list[Event], bool]:
    """The events behind a seq, and whether there are more behind them.

    Args:
        limit: so many at most.
        most: the page ends before its payloads have more characters together; one event is there in any case.
    """
    found: list[Event] = []
    size = 0
    while True:
        chunk = (await store.tail({run_id: after}, _CHUNK))[run_id]
        for event in chunk:
            if len(found) == limit:
                return found, True
            if event.payload == j.APART:
                if found and size >= most:
                    return found, True
                read = await whole(store, run_id, event.seq)
                if read is None:
                    return found, False
                event = read
            size += len(event.payload or "")
            if found and size > most:
                return found, True
            found.append(event)
        if len(chunk) < _CHUNK:
            return found, False
        after = chunk[-1].seq
