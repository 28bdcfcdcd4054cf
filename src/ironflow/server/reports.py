"""What workers report: their changes to runs, taken in, applied together, and passed on.

All changes of one request are submitted in one tick of the loop, so that they share a commit with whatever other
requests bring in that moment. Each has its own answer; one that is malformed or refused is none of the others' affair.

A change that is asked for again is `applied` only while that is still the last word, because its worker executes what
it began. Where somebody else has taken the run since, what stands in the journal is no leave to go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from ironflow.errors import InvalidInput, IronflowError, StoreError, StoreUnreachable
from ironflow.model import telling, wire
from ironflow.model import transition as tr
from ironflow.model.journal import Event
from ironflow.model.transition import Transition
from ironflow.server import problems
from ironflow.server.access import Caller
from ironflow.server.handed import Whose
from ironflow.server.node import Node
from ironflow.store.reader import Standing

log = logging.getLogger("ironflow.server")

Verdict = str | dict[str, Any]

#: Items and events parsed, or events compared, before others have their turn.
SLICE: Final = 250


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
        parsed = 0
        for index, item in enumerate(items):
            change = await self._change_of(item, session_id, known)
            parsed += 1
            if isinstance(change, Transition):
                changes[index] = change
                parsed += len(change.events) + len(change.waits)
            else:
                answers[index] = change
            if parsed >= SLICE:
                parsed = 0
                await asyncio.sleep(0)
        await self._keep_out(caller, changes, answers)
        await self._place(caller, changes, answers)
        repeated = {index for index in changes if _again(items[index])}
        answered: dict[int, str | Exception] = {}
        for one in _rounds(changes):
            answered |= await self._round(caller, one, repeated & one.keys())
            if all(isinstance(answered[index], StoreUnreachable) for index in one):  # nor will it answer what follows
                answered |= dict.fromkeys(changes.keys() - answered.keys(), answered[min(one)])
                break
            await asyncio.sleep(0)
        failures = [answer for answer in answered.values() if isinstance(answer, StoreError)]
        if failures and len(failures) == len(answered):
            raise failures[0]
        for index, answer in answered.items():
            answers[index] = answer
        return [answer if isinstance(answer, str) else _error(answer) for answer in answers]

    async def _round(
        self, caller: Caller, changes: dict[int, Transition], repeated: set[int]
    ) -> dict[int, str | Exception]:
        """Apply changes of different runs, of which some may have been applied before; an answer for each."""
        # Before they are tried: an owner's events that are there already would not be refused by their guard.
        answers: dict[int, str | Exception] = dict.fromkeys(await self._found(caller, changes, repeated), tr.APPLIED)
        left = {index: change for index, change in changes.items() if index not in answers}
        answers |= await self._misnumbered(caller, left)
        answers |= await self._contradicted(caller, {index: one for index, one in left.items() if index not in answers})
        tried = {index: change for index, change in left.items() if index not in answers}
        answers |= zip(tried, await self._apply(list(tried.values())), strict=True)
        # And behind it: the first one may have been under way still.
        refused = {index for index in left if answers[index] != tr.APPLIED}
        if not all(isinstance(answers[index], StoreUnreachable) for index in refused):  # else it cannot be asked
            answers |= dict.fromkeys(await self._found(caller, changes, repeated & refused), tr.APPLIED)
            await self._explain(caller, tried, answers)
        for index, change in changes.items():
            if answers[index] == tr.APPLIED:
                self._node.hub.ends.wrote(change)
        self._pass_on([change for index, change in left.items() if answers[index] == tr.APPLIED])
        return answers

    async def _change_of(self, item: object, session_id: str, known: bool) -> Transition | str | Exception:
        """The change, or what stands in its way."""
        change: Transition | None = None
        try:
            for change in wire.reading(item, session_id, self._node.settings.lease_ttl_ms):
                if change is None:
                    await asyncio.sleep(0)
        except InvalidInput as error:
            return error
        assert change is not None  # which comes last
        if change.events and not change.events[0].seq:  # by which the server's own events are numbered
            return InvalidInput("events[0] has the seq 0: the first event of a journal has the number 1", hint="")
        if change.lease is not None and not known:
            return tr.LOST
        return change

    async def _keep_out(self, caller: Caller, changes: dict[int, Transition], answers: list[str | Exception]) -> None:
        """Answer what asks for runs that are not for this caller."""
        reached = await self._node.hub.handed.reached({change.run_id for change in changes.values()}, caller)
        for index, change in list(changes.items()):
            if change.run_id not in reached:
                answers[index] = _gone(change)
                del changes[index]

    async def _place(self, caller: Caller, changes: dict[int, Transition], answers: list[str | Exception]) -> None:
        """Where a run queues and how urgent it is are the run's, whatever its worker may believe."""
        queued = [(index, change, change.enqueue) for index, change in changes.items() if change.enqueue is not None]
        if not queued:
            return
        found = await self._node.hub.handed.standings({change.run_id for _, change, _ in queued}, caller)
        for index, change, row in queued:
            standing = found.get(change.run_id)
            if standing is not None:
                row.route, row.priority = standing.route, standing.priority
            else:
                answers[index] = _gone(change)
                del changes[index]

    async def _misnumbered(self, caller: Caller, changes: Mapping[int, Transition]) -> dict[int, str | Exception]:
        """The answers to changes that do not begin where the journal ends. They are not tried: what would refuse them
        today may be true by the time they are written, and a gap hides all that comes behind it.
        """
        ends = self._node.hub.ends
        unsure = {index: change for index, change in changes.items() if not ends.follows(change)}
        if not unsure:
            return {}
        found = await self._node.hub.handed.standings({change.run_id for change in unsure.values()}, caller)
        answers = {index: _misnumbered(change, found.get(change.run_id)) for index, change in unsure.items()}
        return {index: answer for index, answer in answers.items() if answer is not None}

    async def _contradicted(self, caller: Caller, changes: Mapping[int, Transition]) -> dict[int, str | Exception]:
        """The answers to changes that say of the run's row what cannot be. Few say anything of it. Nobody but who may
        make the change can make another one before it: the numbers of its events would no longer be the next.
        """
        answers: dict[int, str | Exception] = {}
        for index, change in changes.items():
            row = await self._store.run(change.run_id) if telling.needs_row(change) else None
            if row is None or (row.execution_seq, row.lease_token_hash) != (change.execution_seq, change.token_hash):
                continue  # its guard refuses it
            if not Whose(row.scope, row.workflow).is_for(caller):
                continue  # there is no such run to this caller, as its guard says, too
            try:
                telling.check_row(change, row)
            except InvalidInput as error:
                answers[index] = error
        return answers

    async def _apply(self, changes: Sequence[Transition]) -> list[str | Exception]:
        store = self._store
        self._under_way += len(changes)
        # What a committer is to know: a lone writer gains nothing from waiting for company, many do.
        store.concurrent_writers = self._under_way
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
            store.concurrent_writers = self._under_way
        return answers

    async def _found(self, caller: Caller, changes: Mapping[int, Transition], among: Collection[int]) -> list[int]:
        """Which of these changes were applied the first time, when their answer was lost, and nobody has taken the run
        since.

        Asked for all at once: a node that takes over from a dead one is asked for everything that was under way there.
        """
        asked = {index: changes[index] for index in among}
        if not asked:
            return []
        told = await self._told({index: one for index, one in asked.items() if one.new_token_hash is None})
        # Who has it is asked only then: whoever took it between the two looks is seen.
        runs = await self._node.hub.handed.standings({change.run_id for change in asked.values()}, caller)
        return [index for index, one in asked.items() if _left_by(one, runs.get(one.run_id)) and told.get(index, True)]

    async def _told(self, changes: Mapping[int, Transition]) -> dict[int, bool]:
        """Whether the journals have the events of these changes, each whole."""
        places = {(change.run_id, event.seq): event for change in changes.values() for event in change.events}
        wanted, there = list(places), set[tuple[str, int]]()
        for begin in range(0, len(wanted), SLICE):
            found = await self._store.events_at(wanted[begin : begin + SLICE])
            there |= {place for place, event in found.items() if _same(event, places[place])}
        return {
            index: bool(one.events) and all((one.run_id, event.seq) in there for event in one.events)
            for index, one in changes.items()
        }

    async def _explain(
        self, caller: Caller, changes: Mapping[int, Transition], answers: dict[int, str | Exception]
    ) -> None:
        """Say what is wrong with changes that the database refused, where they can never be made."""
        refused = {index: one for index, one in changes.items() if type(answers[index]) is StoreError and one.events}
        if not refused:
            return
        found = await self._node.hub.handed.standings({change.run_id for change in refused.values()}, caller)
        for index, change in refused.items():
            standing = found.get(change.run_id)
            reason = None if standing is None else _misnumbered(change, standing)
            if reason is not None:
                answers[index] = reason

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


def _holds(standing: Standing | None, execution_seq: int | None, token: str | None) -> bool:
    """Whether a run is in that segment, and in the hands of whoever has this token (None: of nobody)."""
    return standing is not None and (standing.execution_seq, standing.token_hash) == (execution_seq, token)


def _left_by(change: Transition, standing: Standing | None) -> bool:
    """Whether a run is as a change left it, and so nobody has taken it since.

    Who took the run knows its new token; an owner's events stand under numbers of their own. But whoever was away
    while others took the run over must not begin what it had asked for before. So it owns the run still, or this
    change is the one by which it left.
    """
    if change.new_token_hash is not None:
        return _holds(standing, change.new_execution_seq, change.new_token_hash)
    if change.guard == tr.GUARD_OWNER and not change.release:
        return _holds(standing, change.execution_seq, change.token_hash)
    left = change.execution_seq if change.new_execution_seq is None else change.new_execution_seq
    return _holds(standing, left, None)


def _misnumbered(change: Transition, standing: Standing | None) -> str | Exception | None:
    """The answer to a change that does not begin where the journal ends; None: it does."""
    if standing is None:
        return _gone(change)
    first, following = change.events[0].seq, standing.last_seq + 1
    if first == following:
        return None
    newer = change.facts is not None and change.facts != standing.facts
    if change.guard != tr.GUARD_OWNER:
        if newer or change.execution_seq != standing.execution_seq:
            return tr.LOST
    elif not _holds(standing, change.execution_seq, change.token_hash):
        return tr.STALE
    elif newer:
        return tr.NEWS
    there = f"has an event {first} already" if first < following else f"ends before {first}"
    return InvalidInput(
        f"the journal of run {change.run_id} {there}: the number that comes next is {following}",
        hint="Number events from the end of the journal; an item that was sent before says so with `again`.",
    )


def _rounds(changes: Mapping[int, Transition]) -> list[dict[int, Transition]]:
    """The first change of each run, then the second of each, and so on: whether one follows is known behind the one
    before it. A request of a worker of ours is one round.
    """
    rounds: list[dict[int, Transition]] = []
    turns: Counter[str] = Counter()
    for index, change in changes.items():
        turn = turns[change.run_id]
        turns[change.run_id] += 1
        if turn == len(rounds):
            rounds.append({})
        rounds[turn][index] = change
    return rounds


def _same(event: Event, wanted: Event) -> bool:
    return (event.kind, event.step_id, event.payload, event.execution_seq) == (
        wanted.kind,
        wanted.step_id,
        wanted.payload,
        wanted.execution_seq,
    )


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
