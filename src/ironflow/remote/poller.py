"""The poller: asks a server for as many runs as there are free slots, and holds the question open.

A saturated worker asks for nothing, so no reservation runs down while its run waits for a slot. What was handed out is
taken while the next question is already on its way. When something is due, or was freed, the server knows: it answers
the question that is held, and nothing has to be told from here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, Final

from ironflow.errors import OUTAGES, IronflowError, SessionUnknown
from ironflow.loops.driver import Outage
from ironflow.model import wire
from ironflow.model.capacity import RunHead
from ironflow.remote.crowd import Crowd, Promise
from ironflow.tasks import Standing, begin

if TYPE_CHECKING:
    from ironflow.remote.port import HttpPort
    from ironflow.remote.session import RemoteSession
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: How long the server may hold a question, ms, and how much later its answer may come, seconds.
WAIT_MS, LATER_S = 25_000, 10.0
#: Between two questions that failed, seconds: from, to. A crowd of workers must not come back in step.
AFTER_FAILURE_S: Final = (0.5, 2.0)


class Poller:
    """See the module's docstring, and `worker.port.Finder` for what each method promises."""

    #: nothing is started in this process
    backlog = True

    def __init__(self, worker: Worker, port: HttpPort, session: RemoteSession) -> None:
        self.worker = worker
        self._port = port
        self._session = session
        #: a question was asked, and its answer never came
        self._unanswered = False
        self._kick = asyncio.Event()
        self._outage = Outage(log, "a look for work")
        self._taking: set[asyncio.Task[None]] = set()
        self._crowd = Crowd(worker.isolation, self._return)
        #: under which session the crowd's promises were made
        self._crowd_of = ""
        self._standing = Standing(self._run, "ironflow-poller", log)

    def start(self) -> None:
        """Begin to take runs."""
        self._standing.start()

    async def stop(self, patience: float) -> None:
        """Ask for nothing more; what was handed out already may enter within so many seconds."""
        until = asyncio.get_running_loop().time() + patience
        await self._standing.stop()
        if promises := self._crowd.disperse():
            self._return(promises)
        if self._taking:
            await asyncio.wait(self._taking, timeout=patience)
        for taking in self._taking:
            taking.cancel()
        await asyncio.gather(*self._taking, return_exceptions=True)
        await self.worker.door.stop(max(0.0, until - asyncio.get_running_loop().time()))

    def wake(self) -> None:
        """A slot may be free, or the session may be known again."""
        self._kick.set()
        if self._session.row.session_id != self._crowd_of:
            self._crowd.disperse()  # others took this worker for dead: nothing is promised to it any more
        elif self._standing.wanted and self._session.registered:
            self._crowd.move_up()

    told = wake
    slot_free = wake

    def expect(self, due: int) -> None:
        """Nothing to do: the server wakes what is due."""

    # ---- asking

    async def _run(self) -> None:
        while True:
            self._kick.clear()
            free = self.worker.free
            if free <= 0:
                await self._kick.wait()
                continue
            session_id = self._session.row.session_id
            try:
                assignments = await self._ask(session_id, free)
                self._outage.over()
            except SessionUnknown:
                self._session.forgotten(session_id)
            except IronflowError as error:  # away, or it refuses: a revoked key is no reason for a line a second
                self._outage.met(error)
                await self._pause()
            except Exception:
                log.exception("a look for work failed")
                await self._pause()
            else:
                if assignments:
                    await self._hand_over(session_id, assignments)

    async def _ask(self, session_id: str, free: int) -> list[Any]:
        connection = self._port.connection

        def body(again: bool) -> bytes:
            # After an outage the first answer is wanted at once: until it is here, nobody knows that it is over.
            wait_ms = 0 if self._outage.lasts else WAIT_MS
            asked: dict[str, Any] = {"session_id": session_id, "credits": free, "wait_ms": wait_ms}
            if again or self._unanswered:
                # Runs may have been promised in an answer that was lost with its server. Nobody else is given them
                # before the promise ends, so the server is told which of its promises have arrived.
                holding = [*self.worker.taking, *self.worker.isolation.children, *self._crowd]
                asked |= {"again": True, "holding": holding}
            self._unanswered = True
            return connection.encoded(asked)

        # One round of tries: this loop is its own repetition, and each of its questions counts the slots anew.
        answer = await connection.send(
            "POST", "/poll", body, answer_s=WAIT_MS / 1000 + LATER_S, goes_on=lambda failed: False
        )
        self._unanswered = False
        return list(answer["assignments"])

    async def _hand_over(self, session_id: str, assignments: list[Any]) -> None:
        # While the question was held, the worker may have been asked to leave, or its session may have been given up.
        free = self.worker.free if session_id == self._session.row.session_id else 0
        heads = []
        for one in assignments[: max(0, free)]:
            head = wire.head_from_json(one["head"])
            self._port.brought(head.run_id, wire.events_from_json(one["journal"]), bool(one["more"]))
            heads.append(head)
        back = [(one["head"]["run_id"], one["head"]["reservation"]) for one in assignments[len(heads) :]]
        if back:
            self._return(back)
        plain = self._set_apart(session_id, heads)
        if not plain:
            return
        taking = begin(self._take(plain))
        self._taking.add(taking)
        taking.add_done_callback(self._taking.discard)
        await asyncio.sleep(0)  # it counts the slots as taken before the next question counts the free ones

    async def _take(self, heads: list[RunHead]) -> None:
        try:
            await self.worker.take(heads)
        except OUTAGES as error:
            log.warning("%d runs could not be taken: %s", len(heads), error.message)
        except Exception:
            log.exception("%d runs could not be taken", len(heads))
        finally:
            self._port.forget([head.run_id for head in heads])
            self.wake()

    def _set_apart(self, session_id: str, heads: list[RunHead]) -> list[RunHead]:
        """Suspects are executed by processes of their own, or wait for one; give the others."""
        isolation = self.worker.isolation
        plain = [head for head in heads if not isolation.wanted(head)]
        if len(plain) == len(heads):
            return plain
        if session_id != self._crowd_of:
            self._crowd.disperse()
            self._crowd_of = session_id
        for head in heads:
            if isolation.wanted(head):
                self._port.forget([head.run_id])  # its process reads the journal itself
                self._crowd.admit(head, self.worker.settings.reservation_ttl_ms)
        return plain

    def _return(self, promises: list[Promise]) -> None:
        """What was handed out is not taken: it is for others at once."""
        self.worker.spawn(self._port.unreserve(promises))

    async def _pause(self) -> None:
        await asyncio.sleep(random.uniform(*AFTER_FAILURE_S))
