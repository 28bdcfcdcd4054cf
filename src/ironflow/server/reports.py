"""What workers report: their changes to runs, taken in, applied together, and passed on.

All changes of one request are submitted in one tick of the loop, so that they share a commit with whatever other
requests bring in that moment. Each has its own answer; one that is malformed or refused is none of the others' affair.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from ironflow.errors import InvalidInput, IronflowError, StoreError
from ironflow.model import transition as tr
from ironflow.model import wire
from ironflow.model.journal import Event
from ironflow.model.transition import Transition
from ironflow.server.node import Node

log = logging.getLogger("ironflow.server")

Verdict = str | dict[str, Any]


class Reports:
    """See the module's docstring."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.store
        self._under_way = 0

    async def take(self, session_id: str, known: bool, items: Sequence[object]) -> list[Verdict]:
        """Apply the changes of one request; an answer for each, in their order.

        Args:
            session_id: who asks.
            known: whether that session is registered; one that is not takes no runs, but ends what it owns.
            items: parsed JSON.

        Raises:
            StoreError: nothing could be applied, so the whole request may be repeated.
        """
        changes = [await self._change_of(item, session_id, known) for item in items]
        for index, change in enumerate(changes):
            # Before it is tried: an owner's events that are there already would not be refused by their guard.
            if isinstance(change, Transition) and _again(items[index]) and await self._there(change):
                changes[index] = tr.APPLIED
        answers = await self._apply([one for one in changes if isinstance(one, Transition)])
        verdicts: list[Verdict] = []
        applied: list[Transition] = []
        for item, change in zip(items, changes, strict=True):
            if not isinstance(change, Transition):
                verdicts.append(change if isinstance(change, str) else _error(change))
                continue
            answer = next(answers)
            # And behind it: the first one may have been under way still.
            if answer != tr.APPLIED and _again(item) and await self._there(change):
                answer = tr.APPLIED
            if answer == tr.APPLIED:
                applied.append(change)
            verdicts.append(answer if isinstance(answer, str) else _error(answer))
        self._pass_on(applied)
        return verdicts

    async def _change_of(self, item: object, session_id: str, known: bool) -> Transition | str | Exception:
        """The change, or what stands in its way."""
        try:
            change = wire.change_of(item, session_id, self._node.settings.lease_ttl_ms)
        except InvalidInput as error:
            return error
        if change.lease is not None and not known:
            return tr.LOST
        if change.enqueue is not None:
            # Where it queues and how urgent it is are the run's, whatever its worker may believe.
            row = await self._store.run(change.run_id)
            if row is None:
                return tr.STALE if change.guard == tr.GUARD_OWNER else tr.LOST
            change.enqueue.route, change.enqueue.priority = row.route, row.priority
        return change

    async def _apply(self, changes: Sequence[Transition]) -> Any:
        store = self._store
        self._under_way += len(changes)
        # What a committer is to know: a lone writer gains nothing from waiting for company, many do.
        store.live_segments = self._under_way
        answers: list[str | Exception] = []
        try:
            submitted = [_submit(store.submit, change) for change in changes]
            for one in submitted:
                try:
                    answers.append(one if isinstance(one, str | Exception) else await one)
                except Exception as error:
                    answers.append(error)
        finally:
            self._under_way -= len(changes)
            store.live_segments = self._under_way
        failures = [answer for answer in answers if isinstance(answer, StoreError)]
        if failures and len(failures) == len(answers):
            raise failures[0]
        return iter(answers)

    async def _there(self, change: Transition) -> bool:
        """Whether a change that is asked for again was applied the first time.

        The one who took the run knows its new token; the owner's events stand under numbers of their own.
        """
        if change.new_token_hash is not None:
            row = await self._store.run(change.run_id)
            return row is not None and row.lease_token_hash == change.new_token_hash
        wanted = change.events
        if not wanted or not wanted[0].seq:
            return False
        found = await self._store.journal(change.run_id, wanted[0].seq - 1, len(wanted))
        return [_told(event) for event in found] == [_told(event) for event in wanted]

    def _pass_on(self, applied: Sequence[Transition]) -> None:
        """Tell whoever waits for what was just written."""
        if not applied:
            return
        node, now, queued = self._node, self._store.now(), False
        for change in applied:
            if change.enqueue is not None:
                if change.enqueue.eligible_at > now:
                    node.due(change.enqueue.eligible_at)
                else:
                    queued = True
            for wait in change.waits:
                if wait.due_at is not None:
                    node.due(wait.due_at)
            if change.release or (change.lease is None and change.guard == tr.GUARD_QUEUED):
                node.left(change.run_id)
        if queued:
            node.queued()
        node.touched([change.run_id for change in applied])


def _again(item: object) -> bool:
    """Whether a worker asks for this once more, because no answer came."""
    return isinstance(item, dict) and item.get("again") is True


def _told(event: Event) -> tuple[Any, ...]:
    return event.seq, event.kind, event.step_id, event.payload, event.execution_seq


def _submit(submit: Any, change: Transition) -> Any:
    """The answer, or an awaitable of it; what a lone commit raises is its answer, too."""
    try:
        return submit(change)
    except Exception as error:
        return error


def _error(error: BaseException) -> dict[str, Any]:
    if isinstance(error, IronflowError):
        return {"error": {"code": error.code, "message": error.message, "details": error.details}}
    log.error("a change could not be applied", exc_info=error)
    return {"error": {"code": "INTERNAL_ERROR", "message": "the server failed to apply this change; its log says why"}}
