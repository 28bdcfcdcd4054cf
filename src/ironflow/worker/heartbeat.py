"""The heartbeat: one thread that renews a session and its leases, whatever the worker's loop is doing.

A step that blocks the loop must not cost the worker its runs, so renewal has its own thread and its own connection. A
loop that does not answer for longer than a renewal interval is named in a warning and keeps its leases. When nothing
could be renewed for one lease time, the worker no longer owns anything, and is told so: a worker cut off from the
database must stop by itself, because nobody can reach it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence

from ironflow.config import Settings
from ironflow.store.base import REFRESHED, Store, Verdict

log = logging.getLogger("ironflow.worker")

#: (run_id, execution_seq, token_hash, executing)
Held = tuple[str, int, str, bool]


class Heartbeat:
    """See the module's docstring.

    Args:
        store: where to renew.
        session_id: whose session.
        settings: intervals and times to live.
        held: a snapshot of the leases to renew and the number of free slots; called from the thread.
        on_verdicts: called on the loop with the leases that were not refreshed.
        on_cut_off: called on the loop when nothing could be renewed for one lease time.
        on_unknown: called on the loop when the session is gone from the database.
    """

    def __init__(
        self,
        store: Store,
        session_id: str,
        settings: Settings,
        held: Callable[[], tuple[Sequence[Held], int]],
        on_verdicts: Callable[[list[Verdict]], None],
        on_cut_off: Callable[[], None],
        on_unknown: Callable[[], None],
    ) -> None:
        self._store = store
        self._session_id = session_id
        self._settings = settings
        self._held = held
        self._on_verdicts = on_verdicts
        self._on_cut_off = on_cut_off
        self._on_unknown = on_unknown
        self._loop = asyncio.get_running_loop()
        self._stop = threading.Event()
        self._answered = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="ironflow-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for a beat under way."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _beat(self) -> None:
        interval = self._settings.renewal_interval_ms / 1000
        ttl = self._settings.lease_ttl_ms / 1000
        heart = self._store.heart()
        renewed, cut_off = time.monotonic(), False
        try:
            while not self._stop.wait(interval):
                try:
                    self._once(heart)
                    renewed, cut_off = time.monotonic(), False
                except Exception as error:
                    log.warning("the leases could not be renewed: %s", error)
                    if not cut_off and time.monotonic() - renewed >= ttl:
                        cut_off = True
                        self._tell(self._on_cut_off)
        finally:
            heart.close()

    def _once(self, heart: object) -> None:
        held, credits = self._held()
        known, verdicts = heart.beat(  # type: ignore[attr-defined]
            self._session_id, self._settings.session_ttl_ms, credits, held
        )
        lost = [verdict for verdict in verdicts if verdict.verdict != REFRESHED]
        if lost:
            self._tell(self._on_verdicts, lost)
        if not known:
            self._tell(self._on_unknown)
        silent = time.monotonic() - self._answered
        if silent > 2 * self._settings.renewal_interval_ms / 1000:
            log.warning(
                "the worker's loop has not answered for %.1f s; a step blocks it (make it a plain `def`, which runs in "
                "a thread). Its leases are kept.",
                silent,
            )
        self._tell(self._answer)

    def _answer(self) -> None:
        self._answered = time.monotonic()

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop has closed: nobody is left to be told
            self._stop.set()
