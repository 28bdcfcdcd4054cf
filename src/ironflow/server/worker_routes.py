"""The worker protocol: `/api/v1/worker/…`. docs/reference/worker-protocol.md says what each message means.

Translation only. Who may do what: a session belongs to the key that registered it, and any other key is told that there
is no such session. A run is reached by keys of its scope that are bound to no other workflows; to others there is no
such run. It is written to by whoever of them shows its token, taken by whoever shows the reservation it was handed out
with, and read by the session that holds it or was promised it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final

from ironflow.engine import reading
from ironflow.errors import InvalidRequest, RunNotFound, SessionUnknown
from ironflow.model import claim, operator, wire
from ironflow.model.capacity import HTTP, Holdings
from ironflow.model.ids import token_hash
from ironflow.model.journal import Event
from ironflow.model.transition import Locked, Transition
from ironflow.observe.backlog import of_routes
from ironflow.server.exchange import Answer, ClientGone, Endpoint, Exchange
from ironflow.server.handed import Whose
from ironflow.server.hub import Assignment
from ironflow.server.liveness_route import LivenessRoute
from ironflow.server.node import Node
from ironflow.server.registration import Declarations, check_room, session_row
from ironflow.server.reports import Reports
from ironflow.server.route import Route
from ironflow.server.sessions import Known, unknown

PREFIX: Final = "/api/v1/worker"

#: The longest that a poll is held, ms.
LONGEST_POLL_MS: Final = 25_000
#: Runs that one poll brings at most.
MOST_AT_ONCE: Final = 1_000
#: Changes in one request: each is parsed and answered in the loop, where others wait meanwhile.
MOST_CHANGES: Final = 1_000
#: Of one journal, and of all journals in one answer: what fits into a page; the rest is read page by page. Characters.
PAGE_SIZE, ANSWER_SIZE = 1 << 20, 8 << 20
#: Events looked at for one page.
PAGE_EVENTS: Final = 2_000
#: What a worker's body may be larger than one value: the change around it.
AROUND_A_VALUE: Final = 256 * 1024


class WorkerRoutes:
    """See the module's docstring."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._store = node.store
        self._reports = Reports(node)
        self._declarations = Declarations()
        # A value travels as text inside the message's own JSON, where each of its quotes takes two bytes.
        self.most_bytes = 2 * node.settings.max_payload_bytes + AROUND_A_VALUE

    def routes(self) -> list[Route]:
        """The routes, to be put into an app."""
        table = (
            ("POST", "/sessions", self.register),
            ("DELETE", "/sessions/{session_id:path}", self.goodbye),
            ("POST", "/sessions/{session_id:path}/drain", self.leaving),
            ("POST", "/poll", self.poll),
            ("POST", "/transitions", self.transitions),
            ("POST", "/heartbeat", self.heartbeat),
            ("POST", "/release", self.release),
            ("POST", "/unreserve", self.unreserve),
            ("POST", "/keep", self.keep),
            ("POST", "/deaths", self.death),
            ("GET", "/runs/{run_id:path}/journal", self.journal),
            ("GET", "/runs/{run_id:path}/owner", self.owner),
            ("GET", "/backlog", self.backlog),
        )
        made = [
            Route(PREFIX + path, Endpoint(handler, self.most_bytes), methods=[method])
            for method, path, handler in table
        ]
        return [*made, Route(f"{PREFIX}/liveness", LivenessRoute(self._node), methods=["GET"])]

    def _said(self, status: int = 200, **fields: Any) -> Answer:
        return status, {"now": self._store.now(), **fields}

    async def _known(self, ask: Exchange) -> Known:
        return await self._session(ask, ask.text("session_id"))

    async def _session(self, ask: Exchange, session_id: str) -> Known:
        return await self._node.sessions.known(session_id, ask.caller)

    # ---- sessions

    async def register(self, ask: Exchange) -> Answer:
        """A worker says who it is and what it has; again with the same id, it says what has changed."""
        node, settings = self._node, self._node.settings
        # First: it may take a while, and the session's time begins with its row.
        turn = node.turns.of(ask.caller.scope.org)
        seen = await self._declarations.seen(ask.entries("workflows"), ask.caller, turn)
        row = session_row(ask, self._store.now(), settings.session_ttl_ms, node.wake_address)
        live = await self._store.sessions()
        held = next((one for one in live if one.session_id == row.session_id), None)
        if held is not None:
            if held.kind != HTTP or not Known(held).is_of(ask.caller):
                raise unknown(row.session_id)
            row.started_at, row.draining = held.started_at, held.draining
        check_room(row, live)
        await ask.catalogue.check_room(ask.caller.scope, seen)
        if not await self._store.open_session(row):
            raise unknown(row.session_id)  # of another key since the look above
        await self._store.saw_workflows(seen, ask.caller.scope)
        node.sessions.add(row)
        node.tell("sessions")
        return self._said(
            201,
            session_id=row.session_id,
            renewal_interval_ms=settings.renewal_interval_ms,
            lease_ttl_ms=settings.lease_ttl_ms,
            session_ttl_ms=settings.session_ttl_ms,
            reservation_ttl_ms=settings.reservation_ttl_ms,
            max_payload_bytes=settings.max_payload_bytes,
            max_body_bytes=self.most_bytes,
        )

    async def goodbye(self, ask: Exchange) -> Answer:
        """A worker leaves: what it still holds goes back as if its time had run out.

        But for the run that its parent names (`give_back`), who saw it end in order.
        """
        session_id = ask.request.path_params["session_id"]
        await self._session(ask, session_id)
        self._node.streams.close(session_id)
        if "give_back" in ask.request.query_params:
            await self._give_back(ask, ask.query("give_back"), session_id)
        held = await self._store.close_session(session_id)
        self._node.sessions.forget(session_id)
        self._node.drop([session_id])
        if held:
            self._node.recover_soon()
        return self._said()

    async def _give_back(self, ask: Exchange, run_id: str, session_id: str) -> None:
        def decide(locked: Locked) -> Transition | None:
            return operator.give_back(locked, session_id) if _reached(locked, ask) else None

        if isinstance((await self._store.decide([run_id], decide)).get(run_id), Transition):
            self._node.queued()
            self._node.touched([run_id])

    async def leaving(self, ask: Exchange) -> Answer:
        """A worker takes nothing new: it finishes what it has, and says goodbye then."""
        session_id = ask.request.path_params["session_id"]
        await self._session(ask, session_id)
        await self._store.drain(session_id)
        self._node.sessions.drain(session_id)
        return self._said()

    async def heartbeat(self, ask: Exchange) -> Answer:
        """Renew a session, and of its leases those that are named."""
        session_id = ask.text("session_id")
        known = await self._known(ask)
        settings = self._node.settings
        held = [
            (run_id, seq, token_hash(token), executing)
            for run_id, seq, token, executing in ask.rows("held", (str, int, str, bool))
        ]
        free = ask.count("credits", known.row.slots)
        beat = await self._node.hearts.beat(session_id, settings.session_ttl_ms, settings.lease_ttl_ms, free, held)
        if not beat.known:
            self._node.sessions.forget(session_id)
            self._node.drop([session_id])
            raise unknown(session_id)
        verdicts = [[one.run_id, one.execution_seq, one.verdict] for one in beat.verdicts]
        return self._said(known=True, draining=beat.draining, verdicts=verdicts)

    async def death(self, ask: Exchange) -> Answer:
        """A supervisor saw a worker's process end: that is proof, and nobody waits for a clock."""
        session_id = ask.text("session_id")
        opening = _opening(ask.body.get("opening"))
        try:
            await self._known(ask)
        except SessionUnknown:
            return self._said(recovered=[])  # told twice, or it had said goodbye
        if opening is not None and not await self._was_promised(ask, opening, session_id):
            opening = None
        report = await self._node.scanner.session_died(session_id, opening, self._node.queued)
        self._node.sessions.forget(session_id)
        self._node.drop([session_id])
        self._node.touched(report.run_ids)
        self._node.queued()
        return self._said(recovered=report.run_ids)

    async def _was_promised(self, ask: Exchange, opening: tuple[str, int], session_id: str) -> bool:
        """Whether a process may have been opening this run: only then can that have killed it.

        It was promised to its session, or to that of the process for which it was to execute the run. A promise that
        ran out meanwhile is remembered by the node that made it: what kills slowly must not get away with it.
        """
        run_id, execution_seq = opening
        promised = {session_id}
        parent = ask.optional("promised_to")
        if parent is not None:
            with suppress(SessionUnknown):
                await self._session(ask, parent)
                promised.add(parent)
        handed, found = self._node.hub.handed, await self._store.holdings(run_id)
        if found is None or not Whose(found.row.scope, found.row.workflow).is_for(ask.caller):
            return False
        return not promised.isdisjoint(_holders(found)) or any(
            handed.gave(one, run_id, execution_seq) for one in promised
        )

    # ---- work

    async def poll(self, ask: Exchange) -> Answer:
        """Runs for a worker's free slots, as soon as there are any."""
        session = await self._known(ask)
        free, wait_ms = ask.count("credits", MOST_AT_ONCE), ask.count("wait_ms", LONGEST_POLL_MS)
        if ask.body.get("again") is True:
            await self._take_back(session.row.session_id, set(map(str, ask.entries("holding"))))
        assignments = await _unless_gone(ask, self._node.hub.poll(session, free, wait_ms / 1000, ask.counts))
        return self._said(assignments=_paged(assignments))

    async def _take_back(self, session_id: str, holding: set[str]) -> None:
        """The answer to a poll was lost: what it promised is nobody's, and goes to whoever asks next."""
        lost = [one for one in await self._store.reservations(session_id) if one[0] not in holding]
        if lost:
            await self._store.unreserve(lost)
            self._node.queued()

    async def transitions(self, ask: Exchange) -> Answer:
        """Changes to runs that this worker takes or owns; an answer for each."""
        session_id = ask.text("session_id")
        items = ask.entries("items", MOST_CHANGES)
        try:
            known = bool(await self._known(ask))
        except SessionUnknown:
            known = False  # taken for dead; what it still owns it may still end, and the fence says what that is
        return self._said(answers=await self._reports.take(ask.caller, session_id, known, items))

    async def release(self, ask: Exchange) -> Answer:
        """A worker gives runs back by itself: queued at once, without an attempt or a recovery being counted."""
        session_id = ask.text("session_id")
        held = {run_id: (seq, token_hash(token)) for run_id, seq, token in ask.rows("runs", (str, int, str))}

        def decide(locked: Locked) -> Transition | None:
            return operator.release(locked, session_id, held[locked.row.run_id]) if _reached(locked, ask) else None

        done = await self._store.decide(list(held), decide) if held else {}
        released = [run_id for run_id, result in done.items() if isinstance(result, Transition)]
        if released:
            self._node.queued()
            self._node.touched(released)
        return self._said(released=released)

    async def unreserve(self, ask: Exchange) -> Answer:
        """A worker does not take what it was handed."""
        reservations = ask.rows("reservations", (str, str))
        reached = await self._node.hub.handed.reached({run_id for run_id, _ in reservations}, ask.caller)
        own = [(run_id, token) for run_id, token in reservations if run_id in reached]
        if own:
            await self._store.unreserve(own)
            self._node.queued()
        return self._said()

    async def keep(self, ask: Exchange) -> Answer:
        """A worker is on its way with what it was handed: a process of its own takes time to start."""
        run_id, token, ttl_ms = ask.text("run_id"), ask.text("reservation"), self._node.settings.reservation_ttl_ms
        await self._known(ask)

        def decide(locked: Locked) -> Transition | None:
            return claim.keep(locked, token, ttl_ms) if _reached(locked, ask) else None

        done = await self._store.decide([run_id], decide)
        return self._said(kept=isinstance(done.get(run_id), Transition))

    # ---- reading

    async def journal(self, ask: Exchange) -> Answer:
        """A page of the journal of a run that this session holds or was promised."""
        session_id, run_id = ask.query("session_id"), ask.request.path_params["run_id"]
        await self._session(ask, session_id)
        found = await self._store.holdings(run_id)
        if found is None or session_id not in _holders(found):
            raise RunNotFound(f"the session {session_id!r} has no run of the id {run_id!r}")
        page, more = await reading.page(self._store, run_id, ask.query_count("after"), PAGE_EVENTS, PAGE_SIZE)
        return self._said(events=wire.events_to_json(page), more=more)

    async def owner(self, ask: Exchange) -> Answer:
        """Who owns a run by now, and what was journaled since the asking worker did."""
        run_id = ask.request.path_params["run_id"]
        await self._session(ask, ask.query("session_id"))
        row = await self._store.run(run_id)
        if row is None or not Whose(row.scope, row.workflow).is_for(ask.caller):
            raise RunNotFound(f"no run has the id {run_id!r}")
        kinds: list[str] = []
        if "since" in ask.request.query_params:
            since = ask.query_count("since")
            kinds = sorted(await reading.kinds_since(self._store, run_id, since))
        return self._said(execution_seq=row.execution_seq, state=row.state, kinds=kinds)

    async def backlog(self, ask: Exchange) -> Answer:
        """How many runs wait in the queue that the asking worker could take, and for which group: for its metrics."""
        known = await self._session(ask, ask.query("session_id"))
        waiting = await of_routes(self._store.backlog, known.serves.can_take)()
        return self._said(waiting=[*waiting.items()])


async def _unless_gone(ask: Exchange, work: Any) -> Any:
    """The result of a held request; given up when nobody waits for it any more."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(ask.gone())
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()


# ---- whose a run is


def _reached(locked: Locked, ask: Exchange) -> bool:
    """Whether the caller's key reaches a run."""
    return Whose(locked.row.scope, locked.row.workflow).is_for(ask.caller)


def _holders(found: Holdings) -> set[str]:
    """The sessions that execute a run or were promised it."""
    held_by = found.lease.session_id if found.lease is not None else None
    promised_to = found.queue.reserved_by if found.queue is not None else None
    return {one for one in (held_by, promised_to) if one is not None}


# ---- what comes and goes


def _opening(found: object) -> tuple[str, int] | None:
    if found is None:
        return None
    if isinstance(found, list) and len(found) == 2 and isinstance(found[0], str) and type(found[1]) is int:
        return found[0], found[1]
    raise InvalidRequest("opening must be [run_id, seq] or null", hint="")


def _paged(assignments: list[Assignment]) -> list[dict[str, Any]]:
    """As much of each journal as fits into one answer, in fair parts; `more` tells where there is more."""
    left, found = ANSWER_SIZE, []
    for head, events in assignments:
        page, more = _page(events, min(left, PAGE_SIZE), at_least=0)
        left -= sum(map(_size, page))
        found.append({"head": wire.head_to_json(head), "journal": wire.events_to_json(page), "more": more})
    return found


def _page(events: list[Event], most: int, at_least: int = 1) -> tuple[list[Event], bool]:
    """The first events that fit, and whether there are others."""
    size = 0
    for index, event in enumerate(events):
        size += _size(event)
        if size > most and index >= at_least:
            return events[:index], True
    return events, False


def _size(event: Event) -> int:
    return 100 + len(event.payload or "")
