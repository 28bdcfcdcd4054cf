"""A segment: one stretch of executing a run on one worker, from its first commit to its end, suspension or loss.

The thin shell around an :class:`~ironflow.engine.execution.Execution`: it commits each plan and only then carries it
out. Ends of bodies gather in a mailbox while a commit is under way; all of them join the next one. A write that is
answered `stale` means that somebody else owns the run: the segment stops its bodies and writes nothing more.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from ironflow.engine.bodies import Bodies, Body
from ironflow.engine.execution import Execution
from ironflow.engine.plan import EXECUTING, Leave, Plan, StepRun, owner_transition
from ironflow.model.capacity import RunHead
from ironflow.model.transition import APPLIED, NEWS
from ironflow.store.base import OpenTransaction, Store

log = logging.getLogger("ironflow.worker")


class Host(Protocol):
    """The worker, as a segment sees it."""

    store: Store
    bodies: Bodies

    def left(self, segment: Segment, leave: Leave) -> None:
        """The segment committed its way out: the slot is free."""
        ...

    def lost(self, segment: Segment) -> None:
        """The segment no longer owns its run: the slot is free, nothing more is written."""
        ...

    def adopt(self, run_id: str, step: StepRun) -> Body | None:
        """The body of this very try, if this process still executes it."""
        ...


class Segment:
    """See the module's docstring."""

    def __init__(self, host: Host, execution: Execution, head: RunHead, token_hash: str) -> None:
        self.host = host
        self.execution = execution
        self.head = head
        self.token_hash = token_hash
        self.task: asyncio.Task[None] | None = None
        self.bodies: set[Body] = set()
        self._mail: list[Body] = []
        #: what the commit under way tells of
        self._ended: list[Body] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._abandoned = False
        self._loop = asyncio.get_running_loop()

    @property
    def executing(self) -> bool:
        """Whether a body or the workflow's own code runs right now: a death is charged to such runs. For any thread."""
        return bool(self.bodies) or self._waiter is None

    def unsettled(self) -> list[Body]:
        """Bodies whose end no journal has: they run, or they ended and the commit that was to say so was refused."""
        settled = self.bodies.union(self._mail, self._ended)
        return [body for body in settled if body.transaction is None and not body.cancelled]

    def begin(self, plan: Plan) -> None:
        """Carry the committed first plan out and go on in a task."""
        self._carry_out(plan)
        self.task = self._loop.create_task(self._run(plan.wake_at))

    def body_ended(self, body: Body) -> None:
        """A body of this segment ended; called on the loop."""
        self.bodies.discard(body)
        self._mail.append(body)
        self._wake()

    def abandon(self) -> None:
        """Stop: the run is somebody else's, or this worker may no longer claim it. Nothing more is written."""
        self._abandoned = True
        self._wake()

    async def _run(self, wake_at: int | None) -> None:
        try:
            await self._drive(wake_at)
        except asyncio.CancelledError:
            raise
        except Exception:
            # Ours to mend, but no reason to hold the run: its lease is no longer renewed, recovery takes it from
            # here, and its ceiling ends a run that fails this way every time.
            log.exception("the segment of run %s broke", self.head.run_id)
            self.host.lost(self)

    async def _drive(self, wake_at: int | None) -> None:
        while True:
            if not self._mail and not self._abandoned:
                await self._wait(wake_at)
            if self._abandoned:
                break
            ended, transaction = await self._open_mail()
            self._ended = ended
            plan = self._advance(ended)
            if not plan.empty and not await self._commit(plan, transaction):
                break
            self._ended = []
            self._carry_out(plan)
            wake_at = plan.wake_at
            if plan.leave is not None:
                self.host.left(self, plan.leave)
                return
        await self._undo_open()
        self.host.lost(self)

    async def _open_mail(self) -> tuple[list[Body], OpenTransaction | None]:
        """What ended since the last commit, all at once; but each transactional step has a commit of its own."""
        mail = self._mail
        if not any(body.transaction is not None for body in mail):
            self._mail = []
            return mail, None
        plain = [body for body in mail if body.transaction is None]
        if plain:
            self._mail = [body for body in mail if body.transaction is not None]
            return plain, None
        body = mail.pop(0)
        transaction, body.transaction = body.transaction, None
        if transaction is not None and body.step.state != EXECUTING:
            # Cancelled while it ran: its completion will not be journaled, so its writes must not stay either.
            await transaction.rollback()
            transaction = None
        return [body], transaction

    def _advance(self, ended: list[Body]) -> Plan:
        """Feed what ended and decide what is next."""
        execution, now = self.execution, self.host.store.now()
        for body in ended:
            if body.step.reconciling:
                execution.reconciled(body.step, now, body.answer, body.error)
            else:
                execution.ended(body.step, now, body.result, body.error)
        return execution.settle(now)

    async def _undo_open(self) -> None:
        for body in self._mail:
            if body.transaction is not None:
                await body.transaction.rollback()

    async def _commit(self, plan: Plan, transaction: OpenTransaction | None = None) -> bool:
        while True:
            change = owner_transition(plan, self.head, self.token_hash)
            answer = self.host.store.submit(change) if transaction is None else transaction.commit(change)
            if not isinstance(answer, str):
                answer = await answer
            if answer == NEWS:
                # Something arrived from outside since this segment looked. What it was is in the journal's inbox of
                # the feature that sent it; here only the counter moves, and the way out is tried again.
                row = await self.host.store.run(self.head.run_id)
                if row is None or row.execution_seq != self.head.execution_seq:
                    return False
                self.head.facts = row.facts
                continue
            return answer == APPLIED and not self._abandoned

    def _carry_out(self, plan: Plan) -> None:
        """After the commit: what was planned may now leave the instance."""
        if self.execution.instance.held_log:
            self.execution.instance.release_log()
        for step in plan.start:
            body = self.host.adopt(self.head.run_id, step) or self.host.bodies.start(self, step, self.head)
            if body.owner is not self:
                body.owner, body.step, step.body = self, step, body
                if body.task is not None and body.task.done():
                    self.body_ended(body)
                    continue
            self.bodies.add(body)
        for step in plan.stop:
            if step.body is not None:
                step.body.cancel()

    async def _wait(self, wake_at: int | None) -> None:
        self._waiter = self._loop.create_future()
        if wake_at is not None:
            delay = max(0, wake_at - self.host.store.now()) / 1000
            self._timer = self._loop.call_later(delay, self._wake)
        try:
            await self._waiter
        finally:
            self._waiter = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
