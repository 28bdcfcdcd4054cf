"""A session at a server: registered, renewed by the heartbeat's thread, and watched over a stream of its own.

The stream is how a death is noticed at once: its break makes the session a suspect, and a worker that lives comes back
and beats before anybody acts on it. It also brings what cannot wait for the next heartbeat: that somebody changed a
run, and that this worker is to leave.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple
from urllib.parse import quote

from ironflow.errors import AccessError, IronflowError, ServerUnreachable, SessionUnknown
from ironflow.loops.driver import Outage
from ironflow.model.capacity import HTTP, SessionRow
from ironflow.model.routing import Serves
from ironflow.model.scope import DEFAULT
from ironflow.tasks import Standing
from ironflow.worker import evidence
from ironflow.worker.session import Session, row_of_this_process

if TYPE_CHECKING:
    from ironflow.config import Settings
    from ironflow.engine.definitions import WorkflowSpec
    from ironflow.remote.port import HttpPort
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: Before the stream is opened again, seconds: from, to, doubling. A crowd of workers must not come back in step.
AGAIN_S: Final = (0.05, 2.0)


def _unheard(session_id: str) -> None:
    """A goodbye that nobody waits for."""


class Supervised(NamedTuple):
    """Who starts this process again when it dies, and how that is told of each session: it opens; it said goodbye."""

    name: str
    announce: Callable[[str], None]
    farewell: Callable[[str], None] = _unheard


class RemoteSession(Session):
    """See the module's docstring, and `Session`.

    Args:
        worker: whose session it is.
        port: to the server.
        worker_id, tags, alone: see `Session`.
        supervised: by whom this process was started, if it has a supervisor.
    """

    # An earlier try may have been heard, and the supervisor is to know each name.
    one_name: ClassVar[bool] = True
    # A crowd of workers waits for its server.
    longest_pause_s: ClassVar[float] = 30.0

    def __init__(
        self,
        worker: Worker,
        port: HttpPort,
        worker_id: str | None,
        tags: tuple[str, ...],
        alone: str | None = None,
        supervised: Supervised | None = None,
    ) -> None:
        self._supervised = supervised
        #: the session that the supervisor was told of last
        self._announced = ""
        self._port = port
        super().__init__(worker, worker_id, tags, alone)
        self._stream = Standing(self._listen, "ironflow-liveness", log)
        port.connection.on_refused = self._key_refused
        self._outage = Outage(log, "the liveness stream")

    def _new_row(self, session_id: str | None = None) -> SessionRow:
        row = row_of_this_process(session_id, self.worker_id, self.worker.settings.concurrency)
        row.kind = HTTP
        row.supervisor = self._supervised.name if self._supervised is not None else None
        return row

    # ---- life

    async def _register(self) -> None:
        row = self.row
        if self._supervised is not None and self._announced != row.session_id:
            # Before it is registered: whoever proves our death must know every name we had.
            self._announced = row.session_id
            self._supervised.announce(row.session_id)
        asked_at = time.monotonic()
        self._adopt(await self._tell())
        self._port.batches.session_id = row.session_id
        self._port.renewed(asked_at)

    async def _tell(self) -> dict[str, Any]:
        """Tell the server who this is and what it serves; the answer is the server's terms."""
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

    async def _opened(self) -> None:
        self._stream.start()

    async def _leave(self) -> None:
        # Before the stream ends, which would look like a death otherwise.
        path = f"/sessions/{quote(self.row.session_id, safe='')}"
        try:
            await self._port.connection.ask("DELETE", path, tries=1)
        except SessionUnknown:
            return
        if self._supervised is not None:
            self._supervised.farewell(self.row.session_id)

    async def close(self) -> None:
        """See `Membership`."""
        try:
            await super().close()
        finally:
            await self._port.close()

    async def _end(self) -> None:
        try:
            await super()._end()
        finally:
            await self._stream.stop()

    # ---- what this worker serves

    def serve(self, spec: WorkflowSpec) -> None:
        """A workflow was registered after the session opened: take its runs too."""
        if self.registered:
            self.worker.spawn(self._tell())

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

    def _key_refused(self, error: AccessError) -> None:
        """The key was good, and is not any more. Called in whichever thread was told so."""
        text = f"{error.message}; it was taken until now"
        told = type(error)(text, hint="Start the worker with a key that counts, in IRONFLOW_API_KEY or --key-file.")
        try:
            self._loop.call_soon_threadsafe(self.worker.refuse, told)
        except RuntimeError:  # the loop has closed
            return


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
