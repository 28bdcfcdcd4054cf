"""A worker's session: the lock that proves its death, its heartbeat, and what happens when the others forget it.

The lock is taken before the session is registered, so that whoever reads of it can already rely on it. A worker whose
session was removed (it was frozen, and the others went on without it) gives up what it held and registers anew. It may
be closed in the middle of that, and whatever meets whatever: a heartbeat that nobody stops would keep a session alive
under which nobody works.

Where a session is registered differs: `worker.store_session` for a database, `remote.session` for a server.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

from ironflow.model.capacity import SessionRow
from ironflow.model.ids import check_text, tags_of
from ironflow.model.routing import Serves
from ironflow.model.scope import DEFAULT
from ironflow.tasks import or_again
from ironflow.worker import evidence
from ironflow.worker.heartbeat import Heartbeat

if TYPE_CHECKING:
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")

#: One per process: two engines of one process die together, and could not see each other's locks.
PROCESS_ID = f"{os.getpid()}-{secrets.token_hex(6)}"
#: Between two tries to register anew, seconds.
REGISTER_AGAIN_S: Final = 1.0


def lock_folder() -> Path:
    """Where the sessions of this host keep their locks: one folder per user, whatever the database."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"ironflow-{user}" / "sessions"


def new_session_id() -> str:
    """An id that no other incarnation of any worker has."""
    return f"{PROCESS_ID}-{secrets.token_hex(4)}"


def row_of_this_process(session_id: str | None, worker_id: str, slots: int) -> SessionRow:
    """The row of a worker in this process, without its times; no id makes a new one.

    Raises:
        InvalidInput: the worker's name is too long, or could not be shown.
    """
    return SessionRow(
        session_id=session_id or new_session_id(),
        worker_id=check_text(worker_id, "worker_id"),
        host=evidence.host_name(),
        boot_id=evidence.boot_id(),
        pid=os.getpid(),
        process_id=PROCESS_ID,
        routes="",
        slots=slots,
        credits=slots,
        started_at=0,
        heartbeat_at=0,
        expires_at=0,
    )


def worker_name(worker_id: str | None) -> str:
    """What a worker is called: its stable name, or one of its host and process."""
    return worker_id or f"{evidence.host_name()}-{os.getpid()}"


def lock_of(row: SessionRow) -> evidence.SessionLock | None:
    """Take the lock that proves the end of this session, and say in its row where it lies."""
    lock = evidence.SessionLock.acquire(lock_folder(), row.session_id)
    row.lock_path = row.lock_device = row.lock_inode = None
    if lock is not None:
        row.lock_path, row.lock_device, row.lock_inode = str(lock.path), lock.device, lock.inode
    return lock


class Session(ABC):
    """See the module's docstring, and `worker.port.Membership` for what each method promises.

    Args:
        worker: whose session it is.
        worker_id: a stable name, shown to people; None makes one from host and pid.
        tags: what the worker offers, checked by `ids.tags_of`; without any it serves what its workflows require of
            themselves.
        alone: the id of a child process that takes one run and serves no route; given by its parent.
    """

    #: whether all tries to register anew go by one name
    one_name: ClassVar[bool] = False
    #: between two tries to register anew, at the most (each pause is twice the one before), seconds
    longest_pause_s: ClassVar[float] = REGISTER_AGAIN_S

    def __init__(self, worker: Worker, worker_id: str | None, tags: tuple[str, ...], alone: str | None) -> None:
        self.worker = worker
        self.tags = tags_of(tags, "tags")
        self.worker_id = worker_name(worker_id)
        #: the other sessions, where this worker sees them itself
        self.peers: list[SessionRow] = []
        # Whose runs they are, a server knows from the key; here the scope is not told apart.
        self.serves = Serves.of(DEFAULT, self.tags, worker.registry)
        #: whether the others know this session, so that runs may be taken under it
        self.registered = False
        self.lock: evidence.SessionLock | None = None
        self.row = self._new_row(alone)
        self._alone = alone
        self._heartbeat: Heartbeat | None = None
        self._loop = asyncio.get_running_loop()
        self._opening = asyncio.Lock()
        self._closed = False

    # ---- what differs

    @abstractmethod
    def _new_row(self, session_id: str | None = None) -> SessionRow:
        """The row of a session that is to be registered; no id makes a new one."""

    @abstractmethod
    async def _register(self) -> None:
        """Tell the others of this session."""

    @abstractmethod
    async def _opened(self) -> None:
        """It is registered, and renewed: see who else is there."""

    @abstractmethod
    async def _leave(self) -> None:
        """Tell the others that this session ends: nothing is left to be recovered."""

    # ---- life

    async def open(self) -> None:
        """Lock, register, and begin to renew."""
        async with self._opening:
            await self._open()

    async def _open(self) -> None:
        self.lock = lock_of(self.row)
        try:
            await self._register()
            if self._closed:  # the worker left meanwhile: nobody renews this session
                await self._say_goodbye()
                self._unlock()
                return
            self.registered = True
            self._heartbeat = self._start_heartbeat()
            await self._opened()
        except BaseException:
            await self._end()
            raise

    async def close(self) -> None:
        """Say goodbye: nothing is left to be recovered. A second call does nothing."""
        self._closed = True
        await self._end()

    async def _end(self) -> None:
        """End what stands for this session here, and say so to the others if they know it."""
        registered, self.registered = self.registered, False
        try:
            await self._stop_heartbeat()
            if registered:
                await self._say_goodbye()
        finally:
            self._unlock()  # whoever gives up waiting for the others ends here, too

    async def _say_goodbye(self) -> None:
        try:
            await self._leave()
        except Exception as error:
            log.warning("the session could not be closed; it will expire: %s", error)

    async def _stop_heartbeat(self) -> None:
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            await asyncio.to_thread(heartbeat.stop)

    def _unlock(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    def _start_heartbeat(self) -> Heartbeat:
        worker = self.worker
        heartbeat = Heartbeat(
            worker.port,
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

    # ---- being forgotten

    def forgotten(self, session_id: str) -> None:
        """The others do not know a session: somebody took this worker for dead. Register anew.

        An answer to the session before this one may come late; it is old news.
        """
        if self._closed or not self.registered or session_id != self.row.session_id:
            return
        self.registered = False  # nothing is taken under a session that nobody knows
        log.warning("session %s was removed; giving up what it held and registering anew", session_id)
        self.worker.forgotten(session_id)
        self._register_anew()

    def _register_anew(self) -> None:
        if not self._closed:
            self.worker.spawn(or_again(self._reopen, self._register_anew))

    async def _reopen(self) -> None:
        # One opening at a time: each begins with the end of what the one before it has started.
        async with self._opening:
            if self.registered:  # by an opening that began before this one
                return
            await self._end()
            pause = REGISTER_AGAIN_S
            name = new_session_id() if self.one_name else None
            while not self._closed:
                self.row = self._new_row(name)
                try:
                    await self._open()
                    break
                except Exception as error:
                    log.warning("the worker could not register anew: %s", error)
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, self.longest_pause_s)
        self.worker.dispatcher.wake()

    # ---- what this worker serves

    def can_take(self, route: str) -> bool:
        """Whether this worker serves a routing class; see `model.routing`."""
        return self.serves.can_take(route)
