"""What workers report: their changes to runs, taken in, applied together, and passed on.

All changes of one request are submitted in one tick of the loop, so that they share a commit with whatever other
requests bring in that moment. Each has its own answer; one that is malformed or refused is none of the others' affair.

A change that is asked for again is `applied` only while that is still the last word, because its worker executes what
it began. Where somebody else has taken the run since, what stands in the journal is no leave to go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ironflow.errors import InvalidInput, IronflowError, StoreError, StoreUnreachable
from ironflow.model import transition as tr
from ironflow.model import wire
from ironflow.model.capacity import QueueRow
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Transition
from ironflow.server import problems
from ironflow.server.access import Caller
from ironflow.server.node import Node

log = logging.getLogger("ironflow.server")

Verdict = str | dict[str, Any]


class Reports:
    """See the module's docstring."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.store
        self._under_way = 0

    async def take(self, caller: Caller, session_id: str, known: bool, items: Sequence[object]) -> list[Verdict]:
        """Apply the changes of one request; an answer for each, in their order.

        Args:
            caller: who asks. A run that its key does not reach is to it as if it were not there.
            session_id: as which session.
            known: whether that session is registered; one that is not takes no runs, but ends what it owns.
            items: parsed JSON.

        Raises:
            StoreError: nothing could be applied, so the whole request may be repeated.
        """
        answers: list[str | Exception] = [""] * len(items)
        changes: dict[int, Transition] = {}
        for index, item in enumerate(items):
            change = self._change_of(item, session_id, known)
            if isinstance(change, Transition):
                changes[index] = change
            else:
                answers[index] = change
        await self._keep_out(caller, changes, answers)
        await self._place(changes, answers)
        repeated = {index for index in changes if _again(items[index])}
        # Before they are tried: an owner's events that are there already would not be refused by their guard.
        for index in await self._found(changes, repeated):
            answers[index] = tr.APPLIED
            del changes[index]
        applying = await self._apply(list(changes.values()))
        answers_of = dict(zip(changes, applying, strict=True))
        # And behind it: the first one may have been under way still.
        refused = {index for index in changes if answers_of[index] != tr.APPLIED}
        if not all(isinstance(answers_of[index], StoreUnreachable) for index in refused):  # else it cannot be asked
            answers_of |= dict.fromkeys(await self._found(changes, repeated & refused), tr.APPLIED)
            await self._explain(changes, answers_of)
        failures = [answer for answer in answers_of.values() if isinstance(answer, StoreError)]
        if failures and len(failures) == len(answers_of):
            raise failures[0]
        self._pass_on([change for index, change in changes.items() if answers_of[index] == tr.APPLIED])
        for index, answer in answers_of.items():
            answers[index] = answer
        return [answer if isinstance(answer, str) else _error(answer) for answer in answers]

    async def _found(self, changes: Mapping[int, Transition], among: Collection[int]) -> list[int]:
        """Which of these changes were applied the first time, when their answer was lost.

        Asked for all at once: a node that takes over from a dead one is asked for everything that was under way there.
        """
        there = await asyncio.gather(*(self._there(changes[index]) for index in among))
        return [index for index, found in zip(among, there, strict=True) if found]

    def _change_of(self, item: object, session_id: str, known: bool) -> Transition | str | Exception:
        """The change, or what stands in its way."""
        try:
            change = wire.change_of(item, session_id, self._node.settings.lease_ttl_ms)
        except InvalidInput as error:
            return error
        if change.lease is not None and not known:
            return tr.LOST
        return change

    async def _keep_out(self, caller: Caller, changes: dict[int, Transition], answers: list[str | Exception]) -> None:
        """Answer what asks for runs that are not for this caller."""
        handed = self._node.hub.handed
        asked = [one for one in changes.items() if not handed.remembers(one[1].run_id, caller)]
        may = await asyncio.gather(*(handed.is_for(change.run_id, caller) for _, change in asked))
        for (index, change), yes in zip(asked, may, strict=True):
            if not yes:
                answers[index] = _gone(change)
                del changes[index]

    async def _place(self, changes: dict[int, Transition], answers: list[str | Exception]) -> None:
        """Where a run queues and how urgent it is are the run's, whatever its worker may believe."""

        async def place(index: int, change: Transition, queued: QueueRow) -> None:
            row = await self._store.run(change.run_id)
            if row is not None:
                queued.route, queued.priority = row.route, row.priority
                return
            answers[index] = _gone(change)
            del changes[index]

        found = [(index, change, change.enqueue) for index, change in changes.items() if change.enqueue is not None]
        await asyncio.gather(*(place(*one) for one in found))

    async def _apply(self, changes: Sequence[Transition]) -> list[str | Exception]:
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
        return answers

    async def _there(self, change: Transition) -> bool:
        """Whether a change that is asked for again was applied the first time, and nobody has taken the run since.

        Who took the run knows its new token; an owner's events stand under numbers of their own. But whoever was away
        while others took the run over must not begin what it had asked for before. So it owns the run still, or this
        change is the one by which it left.
        """
        if change.new_token_hash is not None:
            return _holds(await self._store.run(change.run_id), change.new_execution_seq, change.new_token_hash)
        wanted = change.events
        if not wanted or not wanted[0].seq:
            return False
        found = await self._store.journal(change.run_id, wanted[0].seq - 1, len(wanted))
        if [_told(event) for event in found] != [_told(event) for event in wanted]:
            return False
        # Who has it is asked only then: whoever took it between the two looks is seen.
        row = await self._store.run(change.run_id)
        if change.guard == tr.GUARD_OWNER and not change.release:
            return _holds(row, change.execution_seq, change.token_hash)
        left = change.execution_seq if change.new_execution_seq is None else change.new_execution_seq
        return _holds(row, left, None)

    async def _explain(self, changes: Mapping[int, Transition], answers: dict[int, str | Exception]) -> None:
        """Say what is wrong with changes that the database refused, where they can never be made."""
        refused = [index for index, answer in answers.items() if type(answer) is StoreError and changes[index].events]
        reasons = await asyncio.gather(*(self._reason(changes[index]) for index in refused))
        answers.update({index: reason for index, reason in zip(refused, reasons, strict=True) if reason is not None})

    async def _reason(self, change: Transition) -> str | Exception | None:
        first = change.events[0].seq
        if not first or not await self._store.journal(change.run_id, first - 1, 1):
            return None
        row = await self._store.run(change.run_id)
        if change.guard == tr.GUARD_OWNER and not _holds(row, change.execution_seq, change.token_hash):
            return tr.STALE
        return InvalidInput(
            f"the journal of run {change.run_id} has an event {first} already",
            hint="Number events from the end of the journal; an item that was sent before says so with `again`.",
        )

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


def _gone(change: Transition) -> str:
    """The answer where there is no such run."""
    return tr.STALE if change.guard == tr.GUARD_OWNER else tr.LOST


def _holds(row: RunRow | None, execution_seq: int | None, token: str | None) -> bool:
    """Whether a run is in that segment, and in the hands of whoever has this token (None: of nobody)."""
    return row is not None and row.execution_seq == execution_seq and row.lease_token_hash == token


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
        details = {} if isinstance(error, StoreError) else error.details
        return {"error": {"code": error.code, "message": problems.message_of(error), "details": details}}
    log.error("a change could not be applied", exc_info=error)
    return {"error": {"code": problems.INTERNAL, "message": "the server failed to apply this change; its log says why"}}
