"""A segment: one stretch of executing a run on one worker, from its first commit to its end, suspension or loss.

The thin shell around an :class:`~ironflow.engine.execution.Execution`: it commits each plan and only then carries it
out. Ends of bodies gather in a mailbox while a commit is under way; all of them join the next one. A write that is
answered `stale` means that somebody else owns the run: the segment stops its bodies and writes nothing more.

    door        reads the queue row and the journal, outside any transaction
      │ open      Execution replays: recorded results are fed to the code, nothing is executed
      │ settle    what the code now asks for becomes a plan: start, stop, wait, leave
      ▼ commit    first plan + lease, if the queue row is still as it was seen; else all is dropped
    segment     begins here
      ├► carry out  bodies start and stop, log lines leave; nothing earlier than its commit
      │  wait       until a body ends, a timer is due, or somebody calls
      │  feed       each end becomes an event, and a fact for the code
      │  settle     the code goes on; what it asks for becomes the next plan
      └─ commit     ends and next starts in one write under the fence; refused: stop. A plan may say leave

A turn (feed, settle, commit, carry out) is the segment's own task's work, with one short cut: where the only running
body ends, nothing else can join its commit, so the turn is begun in that body's last moment. A chain of steps on a
store that commits on the spot is then one pass of the event loop a step instead of two. What such a turn cannot
finish at once (the answer is on its way) the task takes over.

A transactional step has a commit of its own. Where its open transaction keeps every other writer waiting, the segment
has no write under way while one is open: a write that waits for the transaction, which waits for the segment, which
waits for the write, would never end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from contextvars import copy_context
from time import perf_counter

from ironflow.engine.bodies import Body
from ironflow.engine.definitions import TRANSACTION
from ironflow.engine.ending import give_up
from ironflow.engine.execution import Execution
from ironflow.engine.host import Host
from ironflow.engine.plan import EXECUTING, Plan, owner_transition
from ironflow.errors import OUTAGES, PayloadTooLarge
from ironflow.model.capacity import RunHead
from ironflow.model.transition import APPLIED, NEWS, UNDONE
from ironflow.observe.seam import Watch
from ironflow.store.base import OpenTransaction

log = logging.getLogger("ironflow.worker")

#: What the store said of a plan, will say, or raised.
Answer = str | Exception | Awaitable[str]

#: Code whose activation took longer than this is told of the next results only after they are committed.
SLOW_ACTIVATION_S = 0.005


class Segment:
    """See the module's docstring."""

    def __init__(
        self, host: Host, execution: Execution, head: RunHead, token_hash: str, watch: Watch | None = None
    ) -> None:
        self.host = host
        self.execution = execution
        self.head = head
        self.token_hash = token_hash
        #: told of what is committed, where somebody watches
        self.watch = watch
        self.task: asyncio.Task[None] | None = None
        self.bodies: set[Body] = set()
        self._mail: list[Body] = []
        #: what the commit under way tells of
        self._ended: list[Body] = []
        #: a transaction that the commit under way is to decide
        self._deciding: OpenTransaction | None = None
        #: the body that keeps every other writer waiting, until its end is committed; and those that want to
        self._inside: Body | None = None
        self._entering: list[asyncio.Future[None]] = []
        self._writing = False
        #: a turn that was begun in a body's last moment: its plan, and what the store said or will say
        self._begun: tuple[Plan, Answer] | None = None
        #: such a turn was the last one
        self._has_left = False
        #: bodies start in copies of it: what one sets for itself is not for the next to see
        self._context = copy_context()
        #: the longest activation since the last decision, seconds
        self._longest = 0.0
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._abandoned = False
        self._loop = asyncio.get_running_loop()

    @property
    def executing(self) -> bool:
        """Whether a body or the workflow's own code runs right now: a death is charged to such runs. For any thread."""
        return bool(self.bodies) or self._writing or self._waiter is None

    @property
    def writing(self) -> bool:
        """Whether a commit is under way: its answer will say whose the run is."""
        return self._writing

    def unsettled(self) -> list[Body]:
        """Bodies whose end no journal has: they run, or they ended and the commit that was to say so was refused."""
        settled = self.bodies.union(self._mail, self._ended)
        # Of a transactional step nothing is left to be adopted: its writes are undone, and it has to run again.
        return [body for body in settled if body.step.spec.kind != TRANSACTION and not body.cancelled]

    def begin(self, plan: Plan) -> None:
        """Carry the committed first plan out and go on in a task."""
        self.task = asyncio.Task(self._run(plan.wake_at), loop=self._loop)  # it waits its turn; see Bodies.start
        self._carry_out(plan)

    def body_ended(self, body: Body) -> None:
        """A body of this segment ended; called on the loop."""
        self.bodies.discard(body)
        self._mail.append(body)
        if self.watch is not None:
            self.watch.ended(body.step.id)
        if self._may_go_at_once(body):
            # As the segment, not as the body whose task this is: what a log line of the workflow, or whoever waits for
            # its end, finds in context variables is not what one of its steps has put there.
            self._context.copy().run(self._go_at_once)
        else:
            self._wake()

    def _may_go_at_once(self, body: Body) -> bool:
        """Whether this end is alone in its commit, the task only waits, and nothing has to be done in between."""
        waits = self._waiter is not None and not self._waiter.done()
        alone = not self.bodies and self._inside is None and body.step.spec.kind != TRANSACTION
        return waits and alone and not (self._abandoned or self.execution.slow)

    def _go_at_once(self) -> None:
        """Begin the turn of the last body here, and end it where the store answers on the spot."""
        self._writing = True
        self._ended, self._mail = self._mail, []
        plan = Plan()
        answer: Answer
        try:
            self._feed(self._ended)
            plan = self._decide()
            answer = self._submit(plan)
            if answer == APPLIED:
                if self.watch is not None:
                    self._tell(self.watch, plan)
                self._settled()
                self._carry_out(plan)
                self._arm(plan.wake_at)
                if plan.leave is not None:
                    self.host.left(self, plan.leave)
                    self._has_left = True
                    self._wake()
                return
        except Exception as error:
            answer = error  # raised where the segment's errors are dealt with: in the body's task nobody would hear it
        self._begun = plan, answer
        self._wake()

    def _settled(self) -> None:
        """What the commit told of is in the journal: nobody waits for it any more."""
        if self._inside in self._ended:
            self._inside = None
        for body in self._ended:
            body.error = None  # its traceback knows the body: together they would wait for the garbage collector
        self._ended, self._deciding, self._writing = [], None, False

    async def enter(self, body: Body) -> None:
        """Wait until this segment has no write under way and no other transaction; then it begins none before the end
        of this body. For stores with `exclusive_transactions`.
        """
        while self._writing or self._inside is not None:
            waiter = self._loop.create_future()
            self._entering.append(waiter)
            await waiter
        self._inside = body

    def leave_soon(self) -> None:
        """The worker is leaving: let the bodies that run here end, start no other, give the run back."""
        self.execution.leaving = True
        self._wake()

    def abandon(self) -> None:
        """Stop: the run is somebody else's, or this worker may no longer claim it. Nothing more is written."""
        self._abandoned = True
        self._wake()

    async def _run(self, wake_at: int | None) -> None:
        try:
            if await self._drive(wake_at):
                return
        except asyncio.CancelledError:
            await self._undo_open()
            raise
        except OUTAGES as error:
            log.warning("run %s is left to its lease: %s", self.head.run_id, error.message)
        except Exception:
            # Ours to mend, but no reason to hold the run: its lease is no longer renewed, recovery takes it from
            # here, and its ceiling ends a run that fails this way every time.
            log.exception("the segment of run %s broke", self.head.run_id)
        try:
            await self._undo_open()
        finally:
            self.host.lost(self)  # whatever happened: a segment that nobody drives must not keep its run

    async def _drive(self, wake_at: int | None) -> bool:
        """Commit after commit. Returns True when the segment left by one, False when it lost the run."""
        while True:
            plan = await self._turn(wake_at)
            if plan is None:
                return self._has_left
            self._settled()
            self._carry_out(plan)
            wake_at = plan.wake_at
            if plan.leave is not None:
                self.host.left(self, plan.leave)
                return True
            if self._entering and self._inside is None:
                await self._let_in()

    async def _turn(self, wake_at: int | None) -> Plan | None:
        """Wait for something to happen, and commit what follows from it. None: the run is lost, or has been left."""
        if not self._mail and not self._abandoned:
            await self._wait(wake_at)
        if self._has_left:
            return None
        if self._begun is not None:
            (plan, answer), self._begun = self._begun, None
            return plan if await self._committed(plan, answer) else None
        while self._inside is not None and self._inside not in self._mail and not self._abandoned:
            await self._wait(None)
        if self._abandoned:
            return None
        self._writing = True
        self._ended, self._deciding = await self._open_mail()
        self._feed(self._ended)
        if self.execution.untold:
            # Results must not wait for code that computes for long: they are stored before it goes on.
            facts = self.execution.facts()
            if not await self._committed(facts, self._submit(facts)):
                return None
            self._settled()
            self._writing = True
        plan = self._decide()
        return plan if await self._committed(plan, self._submit(plan)) else None

    async def _let_in(self) -> None:
        waiting, self._entering = self._entering, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        await asyncio.sleep(0)  # or a full mailbox would keep them out

    async def _open_mail(self) -> tuple[list[Body], OpenTransaction | None]:
        """What ended since the last commit: everything at once, but a transactional step by itself.

        That one goes first, because others wait for what its transaction has locked.
        """
        mail = self._mail
        body = next((one for one in mail if one.transaction is not None), None)
        if body is None:
            self._mail = []
            return mail, None
        mail.remove(body)
        transaction, body.transaction = body.transaction, None
        if transaction is not None and body.step.state != EXECUTING:
            # Cancelled while it ran: its completion will not be journaled, so its writes must not stay either.
            await transaction.rollback()
            transaction = None
        return [body], transaction

    def _feed(self, ended: list[Body]) -> None:
        """Journal what ended. The code is told at once, or, if it is known to be slow, by `_decide`."""
        execution, now = self.execution, self.host.port.now()
        defer, self._longest = execution.slow, 0.0
        for body in ended:
            begun = perf_counter()
            if body.outage is not None and body.step.state == EXECUTING:
                raise body.outage
            if body.step.reconciling:
                execution.reconciled(body.step, now, body.answer, body.error)
            else:
                execution.ended(body.step, now, body.result, body.error, body.value, defer=defer)
            self._longest = max(self._longest, perf_counter() - begun)

    def _decide(self) -> Plan:
        """Tell the code what it has not been told, and decide what is next."""
        execution = self.execution
        told = len(execution.untold) or 1
        begun = perf_counter()
        plan = execution.settle(self.host.port.now())
        self._longest = max(self._longest, (perf_counter() - begun) / told)
        execution.slow = self._longest > SLOW_ACTIVATION_S
        return plan

    async def _undo_open(self) -> None:
        """At the end, whatever it was: no transaction of this segment stays open, and none ends unheard."""
        for body in self.bodies:
            if body.step.spec.kind == TRANSACTION:
                body.cancel()
        for transaction in (self._deciding, *(body.transaction for body in self._mail)):
            if transaction is not None:
                await transaction.rollback()

    def _submit(self, plan: Plan) -> Answer:
        if plan.empty and self._deciding is None:
            return APPLIED
        change = owner_transition(plan, self.head, self.token_hash)
        if self._deciding is not None:
            return self._deciding.commit(change)
        return self.host.port.submit(change)

    async def _committed(self, plan: Plan, answer: Answer) -> bool:
        while True:
            try:
                if isinstance(answer, Exception):
                    raise answer
                if not isinstance(answer, str):
                    answer = await answer
            except PayloadTooLarge as error:
                give_up(self.execution, plan, error)  # it would be as large every time
                for body in self.bodies:
                    body.cancel()
                answer = self._submit(plan)
                continue
            if answer == NEWS:
                # Something arrived from outside since this segment looked, and it must not be slept over: the run goes
                # back into the queue instead, with everything that has ended, and its next segment reads the news.
                plan.give_back()
                answer = self._submit(plan)
                continue
            if answer == UNDONE:
                await self.host.undone(self, self._ended[0].step.id)
            if answer == APPLIED and self.watch is not None:
                self._tell(self.watch, plan)
            return answer == APPLIED and not self._abandoned

    def _tell(self, watch: Watch, plan: Plan) -> None:
        watch.committed(plan.events, None if plan.leave is None else plan.leave.state)

    def _carry_out(self, plan: Plan) -> None:
        """After the commit: what was planned may now leave the instance."""
        if self.execution.instance.held_log:
            self.execution.instance.release_log()
        for step in plan.start:
            context = self._context
            if self.watch is not None:
                context = self.watch.starting(step.id, step.spec.name, step.try_no, context)
            body = self.host.adopt(self.head.run_id, step)
            if body is None:
                body = self.host.bodies.start(self, step, self.head, context, self.execution.history.generation)
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
        self._arm(wake_at)
        try:
            await self._waiter
        finally:
            self._waiter = None
            self._arm(None)

    def _arm(self, wake_at: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_at is not None:
            delay = max(0, wake_at - self.host.port.now()) / 1000
            self._timer = self._loop.call_later(delay, self._wake)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
