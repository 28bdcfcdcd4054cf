"""The heartbeat: one thread that renews a session and its leases, whatever the worker's loop is doing.

A step that blocks the loop must not cost the worker its runs, so renewal has its own thread and its own connection. A
loop that does not answer for longer than a renewal interval is named in a warning and keeps its leases. When nothing
could be renewed for one lease time, the worker no longer owns anything, and is told so: a worker cut off from the
database must stop by itself, because nobody can reach it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from ironflow.config import Settings
from ironflow.errors import OUTAGES
from ironflow.loops.driver import Outage
from ironflow.store.heart import REFRESHED, Heart, Held, Verdict
from ironflow.worker.port import Port

log = logging.getLogger("ironflow.worker")

#: Frames of these folders are never the ones to blame.
_NOT_THE_AUTHORS = (str(Path(__file__).resolve().parent.parent), str(Path(asyncio.__file__).parent))
#: How long `stop` waits for a beat under way; a database that is away must not keep a worker from leaving, seconds.
STOP_S = 1.0
#: One blocker is named again after so long, seconds: it may block for hours, and one line in a minute is enough.
NAMED_AGAIN_S = 60.0
#: So many intervals without a sign are worth a warning.
LATE = 2
#: A beat that failed is tried again after this part of an interval: when a database is back, the others grant everybody
#: one interval to renew in.
AGAIN = 0.2


class Heartbeat:
    """See the module's docstring.

    Args:
        port: where to renew.
        session_id: whose session.
        settings: intervals and times to live.
        held: a snapshot of the leases to renew and the number of free slots; called from the thread.
        on_verdicts: called on the loop with the leases that were not refreshed.
        on_cut_off: called on the loop when nothing could be renewed for one lease time.
        on_unknown: called on the loop when the session is gone from the database.
        on_dismissed: called on the loop when somebody wishes that this worker leaves.
        on_heard: called on the loop after each beat that was answered as one of a known session.
    """

    def __init__(
        self,
        port: Port,
        session_id: str,
        settings: Settings,
        held: Callable[[], tuple[Sequence[Held], int]],
        on_verdicts: Callable[[list[Verdict]], None],
        on_cut_off: Callable[[], None],
        on_unknown: Callable[[], None],
        on_dismissed: Callable[[], None],
        on_heard: Callable[[], None],
    ) -> None:
        self._port = port
        self._session_id = session_id
        self._settings = settings
        self._held = held
        self._on_verdicts = on_verdicts
        self._on_cut_off = on_cut_off
        self._on_unknown = on_unknown
        self._on_dismissed = on_dismissed
        self._on_heard = on_heard
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        #: ends the pause before the next beat
        self._kick = threading.Event()
        self._interval_s = settings.renewal_interval_ms / 1000
        self._ttl_s = settings.lease_ttl_ms / 1000
        self._renewed = time.monotonic()
        #: since when the loop owes an answer, and whether it has given it (which the loop sets, and the thread clears)
        self._asked_loop = self._renewed
        self._loop_answered = threading.Event()
        self._loop_answered.set()
        self._cut_off = False
        self._wait_s = self._interval_s
        self._outage = Outage(log, "the renewal of this worker's leases")
        #: who blocked the loop → when that was said
        self._named: dict[str, float] = {}
        self._thread = threading.Thread(target=self._beat, name="ironflow-heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat. Called on the loop."""
        self._thread.start()
        self._loop.call_later(self._interval_s, self._check)

    def stop(self) -> None:
        """End the thread; waits for a beat under way. Called from another thread than the loop's."""
        self._stop.set()
        self._kick.set()
        if self._thread.is_alive():
            self._thread.join(timeout=STOP_S)

    def beat_now(self) -> None:
        """Do not wait for the interval: somebody may doubt that this worker lives."""
        self._kick.set()

    def _beat(self) -> None:
        heart: Heart | None = None
        while self._pause():
            asked = time.monotonic()
            try:
                # Opened here and not before the loop: a database that is away right now must not end the beat for good.
                heart = heart or self._port.heart()
                self._once(heart)
                # From before the question: the database counted the new time to live at some point after it.
                self._renewed, self._cut_off = asked, False
                self._wait_s = self._interval_s
                self._outage.over()
            except OUTAGES as error:
                self._wait_s = AGAIN * self._interval_s
                self._outage.met(error)
            except Exception as error:
                log.warning("the leases could not be renewed: %s", error)
        if heart is not None:
            heart.close()

    def _pause(self) -> bool:
        """Wait until the next beat, and see meanwhile whether the loop answers; False where there is none any more.

        Only here can either be told: a beat takes as long as a silent server lets it, which is no sign that this
        process stood still; and if it did stand still during a beat, the loop has this pause to answer in.
        """
        began = time.monotonic()
        self._ask_loop(began)
        cut_short = self._kick.wait(self._wait_s)
        self._kick.clear()
        if self._stop.is_set():
            return False
        paused = time.monotonic() - began
        if paused > self._wait_s + self._interval_s:
            # Frozen, or a machine that was asleep: then nobody blocked the loop, it had no chance to answer either.
            log.warning("this process did not execute for %.1f s", paused - self._wait_s)
            self._asked_loop = time.monotonic()
        elif not cut_short and not self._loop_answered.is_set():
            self._watch_the_loop()
        return True

    def _ask_loop(self, now: float) -> None:
        if self._loop_answered.is_set():
            self._loop_answered.clear()
            self._asked_loop = now
            self._tell(self._loop_answered.set)

    def _check(self) -> None:
        """On the loop: give everything up after one lease time without renewal.

        Apart from the thread, which may hang in a question that a broken network never answers.
        """
        if self._stop.is_set():
            return
        if not self._cut_off and time.monotonic() - self._renewed >= self._ttl_s:
            self._cut_off = True
            if self._held()[0]:
                log.warning("nothing could be renewed for %.1f s: every run of this worker is given up", self._ttl_s)
            self._on_cut_off()
        self._loop.call_later(self._interval_s, self._check)

    def _once(self, heart: Heart) -> None:
        held, free = self._held()
        beat = heart.beat(self._session_id, self._settings.session_ttl_ms, self._settings.lease_ttl_ms, free, held)
        if not beat.known:
            # Before the verdicts: whoever hears of them must know already that all of it is lost.
            self._tell(self._on_unknown)
        elif beat.draining:
            self._tell(self._on_dismissed)
        lost = [verdict for verdict in beat.verdicts if verdict.verdict != REFRESHED]
        if lost:
            self._tell(self._on_verdicts, lost)
        if beat.known:
            self._tell(self._on_heard)

    def _watch_the_loop(self) -> None:
        """Name a loop that does not answer: its leases are kept, but nothing else of the worker moves."""
        silent = time.monotonic() - self._asked_loop
        if silent > LATE * self._interval_s:
            self._name_blocker(silent)

    def _name_blocker(self, silent: float) -> None:
        function, place = self._blocker()
        now = time.monotonic()
        if now - self._named.get(function, -NAMED_AGAIN_S) < NAMED_AGAIN_S:
            return
        self._named = {name: at for name, at in self._named.items() if now - at < NAMED_AGAIN_S}
        self._named[function] = now
        log.warning(
            "the worker's loop has not answered for %.1f s: %s blocks it (a step that blocks belongs into a plain "
            "`def`, which runs in a thread). Its leases are kept.",
            silent,
            place,
        )

    def _blocker(self) -> tuple[str, str]:
        """Where the loop's thread is: the function of the author's code (or the innermost there is), and its line."""
        frame = sys._current_frames().get(self._loop_thread)
        if frame is None:
            return "", "something"
        lines = traceback.extract_stack(frame)
        own = [one for one in lines if not one.filename.startswith(_NOT_THE_AUTHORS)]
        last = (own or lines)[-1]
        return f"{last.filename} {last.name}", f"{last.name} ({last.filename}:{last.lineno})"

    def _tell(self, callback: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:  # the loop has closed: nobody is left to be told
            self._stop.set()
