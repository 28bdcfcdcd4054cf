"""A session at a server: registered, renewed by the heartbeat's thread, and watched over a stream of its own.

The stream is how a death is noticed at once: its break makes the session a suspect, and a worker that lives comes back
and beats before anybody acts on it. It also brings what cannot wait for the next heartbeat: that somebody changed a
run, and that this worker is to leave. A session that the server does not know (any more) is given up with all that it
held, and a new one is registered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from ironflow.errors import AccessError, IronflowError, ServerUnreachable, SessionUnknown
from ironflow.loops.driver import Outage
from ironflow.model.capacity import HTTP, SessionRow
from ironflow.model.ids import tags_of
from ironflow.model.routing import Serves
from ironflow.model.scope import DEFAULT
from ironflow.tasks import Standing, or_again
from ironflow.worker import evidence
from ironflow.worker.heartbeat import Heartbeat
from ironflow.worker.session import REGISTER_AGAIN_S, lock_of, row_of_this_process, worker_name

if TYPE_CHECKING:
    from ironflow.config import Settings
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.remote.port import HttpPort
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: Before the stream is opened again, seconds: from, to, doubling. A crowd of workers must not come back in step.
AGAIN_S: Final = (0.05, 2.0)
#: Between two tries to register anew, at the most, seconds.
LONGEST_PAUSE_S: Final = 30.0


def _unheard(session_id: str) -> None:
    """A goodbye that nobody waits for."""


class Supervised(NamedTuple):
    """Who starts this process again when it dies, and how that is told of each session: it opens; it said goodbye."""

    name: str
    announce: Callable[[str], None]
    farewell: Callable[[str], None] = _unheard


class RemoteSession:
    """See the module's docstring, and `worker.port.Membership` for what each method promises.

    Args:
        worker: whose session it is.
        port: to the server.
        worker_id: a stable name, shown to people; None makes one from host and pid.
        tags: what the worker offers; without any it serves what its workflows require of themselves.
        alone: the id of a child process that takes one run and serves no route; given by its parent.
        supervised: by whom this process was started, if it has a supervisor.
    """

    def __init__(
        self,
        worker: Worker,
        port: HttpPort,
        worker_id: str | None,
        tags: tuple[str, ...],
        alone: str | None = None,
        supervised: Supervised | None = None,
    ) -> None:
        self.worker = worker
        self.tags = tags_of(tags, "tags")
        self.worker_id = worker_name(worker_id)
        self.peers: list[SessionRow] = []
        self.registered = False
        self.lock: evidence.SessionLock | None = None
        self._alone = alone
        self._supervised = supervised
        #: the session that the supervisor was told of last
        self._announced = ""
        # Whose runs they are, the server knows from the key; here the scope is not told apart.
        self.serves = Serves.of(DEFAULT, self.tags, worker.registry)
        self._port = port
        self.row = self._new_row(alone)
        self._heartbeat: Heartbeat | None = None
        self._stream = Standing(self._listen, "ironflow-liveness", log)
        self._loop = asyncio.get_running_loop()
        port.connection.on_refused = self._key_refused
        self._outage = Outage(log, "the liveness stream")
        self._closed = False

    def _new_row(self, session_id: str | None = None) -> SessionRow:
        row = row_of_this_process(session_id, self.worker_id, self.worker.settings.concurrency)
        row.kind = HTTP
        row.supervisor = self._supervised.name if self._supervised is not None else None
        return row

    # ---- life

    async def open(self) -> None:
        """Lock, register, and begin to renew and to listen."""
        row = self.row
        self.lock = lock_of(row)
        if self._supervised is not None and self._announced != row.session_id:
            # Before it is registered: whoever proves our death must know every name we had.
            self._announced = row.session_id
            self._supervised.announce(row.session_id)
        try:
            asked_at = time.monotonic()
            terms = await self._register()
        except BaseException:
            self._unlock()
            raise
        if self._closed:  # the worker left meanwhile: nobody renews this session, and it expires
            self._unlock()
            return
        self._adopt(terms)
        self._port.batches.session_id = row.session_id
        self._port.renewed(asked_at)
        self.registered = True
        self._heartbeat = self._start_heartbeat()
        self._stream.start()

    async def _register(self) -> dict[str, Any]:
        row = self.row
        self.serves = Serves.of(DEFAULT, self.tags, self.worker.registry)
        serves = self.serves if self._alone is None else Serves.of(DEFAULT, self.tags, ())
        lock = None
        if row.lock_path is not None:
            lock = {"path": row.lock_path, "device": row.lock_device, "inode": row.lock_inode}
        body = {
            "session_id": row.session_id,
            "worker_id": row.worker_id,
            "host": row.host,
            "boot_id": row.boot_id,
            "pid": row.pid,
            "process_id": row.process_id,
            "supervisor": row.supervisor,
            "slots": row.slots,
            "serves": serves.to_object(),
            "workflows": [_seen(spec) for spec in self.worker.registry] if self._alone is None else [],
            "lock": lock,
        }
        return await self._port.connection.ask("POST", "/sessions", body)

    def _adopt(self, terms: dict[str, Any]) -> None:
        """The server's clocks and limits in place of this worker's own: the others judge it by those."""
        settings = self.worker.settings
        self._port.connection.most_bytes = terms.get("max_body_bytes")
        self._port.lease_ttl_ms = terms["lease_ttl_ms"]
        self.worker.adapt(adapted(settings, terms))

    async def close(self) -> None:
        """Say goodbye: nothing is left to be recovered. A second call does nothing."""
        registered, self.registered, self._closed = self.registered, False, True
        try:
            await self._stop_heartbeat()
            if registered:  # before the stream ends, which would look like a death otherwise
                path = f"/sessions/{quote(self.row.session_id, safe='')}"
                await self._port.connection.ask("DELETE", path, tries=1)
                if self._supervised is not None:
                    self._supervised.farewell(self.row.session_id)
        except SessionUnknown:
            return
        except Exception as error:
            log.warning("the session could not be closed; it will expire: %s", error)
        finally:
            self._unlock()
            await self._stream.stop()
            await self._port.close()

    async def _stop_heartbeat(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            await asyncio.to_thread(heartbeat.stop)

    def _unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    # ---- what this worker serves

    def serve(self, spec: WorkflowSpec) -> None:
        """A workflow was registered after the session opened: take its runs too."""
        if self.registered:
            self.worker.spawn(self._register())

    def can_take(self, route: str) -> bool:
        """Whether this worker serves a routing class."""
        return self.serves.can_take(route)

    def tell_queue(self, *, lane: bool = False) -> None:
        """Nothing to do: the server sees what is written."""

    async def leaving(self) -> None:
        """See `Membership`."""
        if self.registered:
            path = f"/sessions/{quote(self.row.session_id, safe='')}/drain"
            await self._port.connection.ask("POST", path, {}, tries=1)

    async def died(self, session_id: str, opening: evidence.Opening | None) -> None:
        """See `Membership`."""
        body = {
            "session_id": session_id,
            "opening": list(opening) if opening is not None else None,
            "promised_to": self.row.session_id,
        }
        await self._port.connection.ask("POST", "/deaths", body)

    # ---- what the server says

    async def _listen(self) -> None:
        """Keep the stream open; after each break, beat at once: somebody may doubt that this worker lives."""
        pause = AGAIN_S[0]
        session_id = self.row.session_id
        while not self._closed:
            try:
                async for line in self._port.connection.stream("/liveness", {"session_id": session_id}):
                    if "hello" in line and self._heartbeat is not None:
                        self._outage.over()
                        pause = AGAIN_S[0]
                        self._heartbeat.beat_now()
                    self._heard(line)
            except SessionUnknown:
                self.forgotten(session_id)
                return
            except ServerUnreachable as error:
                log.debug("the liveness stream broke: %s", error.message)
            except IronflowError as error:
                self._outage.met(error)
            except Exception:
                log.exception("the liveness stream failed")
            await asyncio.sleep(pause * random.uniform(0.5, 1))
            pause = min(2 * pause, AGAIN_S[1])

    def _heard(self, line: dict[str, Any]) -> None:
        self._port.connection.clock.saw(line.get("hello", line.get("ping")))
        run_id = line.get("check")
        if run_id is not None and run_id in self.worker.segments:
            self.worker.spawn(self.worker.check(run_id))
        if line.get("drain"):
            self.worker.dismiss()

    # ---- renewing

    def _start_heartbeat(self) -> Heartbeat:
        worker = self.worker
        heartbeat = Heartbeat(
            self._port,
            self.row.session_id,
            worker.settings,
            worker.renewing,
            worker.verdicts,
            worker.cut_off,
            functools.partial(self.forgotten, self.row.session_id),
            worker.dismiss,
            worker.nominal.reached,
        )
        heartbeat.start()
        return heartbeat

    def _key_refused(self, error: AccessError) -> None:
        """The key was good, and is not any more. Called in whichever thread was told so."""
        text = f"{error.message}; it was taken until now"
        told = type(error)(text, hint="Start the worker with a key that counts, in IRONFLOW_API_KEY or --key-file.")
        try:
            self._loop.call_soon_threadsafe(self.worker.refuse, told)
        except RuntimeError:  # the loop has closed
            return

    def forgotten(self, session_id: str) -> None:
        """The server does not know a session: somebody took this worker for dead. Register anew.

        An answer to the session before this one may come late; it is old news.
        """
        if self._closed or not self.registered or session_id != self.row.session_id:
            return
        self.registered = False
        log.warning("session %s is unknown to the server; giving up what it held and registering anew",
                    self.row.session_id)  # fmt: skip
        self.worker.forgotten(self.row.session_id)
        self._register_anew()

    def _register_anew(self) -> None:
        if not self._closed:
            self.worker.spawn(or_again(self._reopen, self._register_anew))

    async def _reopen(self) -> None:
        await self._stream.stop()
        await self._stop_heartbeat()
        self._unlock()
        pause = REGISTER_AGAIN_S
        # One name for all tries: an earlier one may have been heard, and the supervisor is to know each name.
        self.row = self._new_row()
        while not self._closed:
            try:
                await self.open()
                break
            except Exception as error:
                log.warning("the worker could not register anew: %s", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        self.worker.dispatcher.wake()


def adapted(settings: Settings, terms: dict[str, Any]) -> Settings:
    """A worker's settings under the terms of its server."""
    return dataclasses.replace(
        settings,
        renewal_interval_ms=terms["renewal_interval_ms"],
        lease_ttl_ms=terms["lease_ttl_ms"],
        session_ttl_ms=terms["session_ttl_ms"],
        reservation_ttl_ms=terms["reservation_ttl_ms"],
        max_payload_bytes=terms["max_payload_bytes"],
        # Sweeps and suspicion are the server's affair; of these only the relations would be checked.
        suspect_after_ms=None,
        recovery_interval_ms=min(settings.recovery_interval_ms, terms["lease_ttl_ms"]),
        stale_claim_threshold_ms=max(settings.stale_claim_threshold_ms, terms["renewal_interval_ms"] + 1),
    )


def _seen(spec: WorkflowSpec) -> dict[str, Any]:
    """What a server is told of a workflow, so that runs of it can be started where its code is not."""
    return {
        "name": spec.name,
        "version": spec.version,
        "worker_tags": list(spec.worker_tags),
        "definition": spec.definition(),
    }
