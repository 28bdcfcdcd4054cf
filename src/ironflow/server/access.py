"""Who asks: from the key of a request to the caller it stands for, and what each kind of caller may do.

Owns the check of keys, their rates, and how many streams each holds open. Promises that an endpoint says in its
signature who may use it (`org`, `platform`, `anyone`, `worker`), so that none is open by forgetting; that a wrong,
revoked, expired and unknown key are told in the same words; and that a revocation holds at once on the node that made
it and within a second on every other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from fastapi import Request
from fastapi.security import HTTPBearer

from ironflow.config import Settings
from ironflow.engine.views import plain
from ironflow.errors import Forbidden, InvalidRequest, PlatformRequired, RateLimited, TooManyStreams, Unauthenticated
from ironflow.model import key as kinds
from ironflow.model.key import KeyRow
from ironflow.model.scope import Scope
from ironflow.server.keys import hash_of, well_formed
from ironflow.store.base import Store
from ironflow.tasks import begin

log = logging.getLogger("ironflow.server")

#: How long a key that was found is taken for valid without asking again, seconds.
FRESH_S: Final = 1.0
#: How often the time of a key's last use is written at most, seconds.
NOTED_S: Final = 60.0
#: Keys that are remembered at most; beyond that all are forgotten and asked for again.
_MOST: Final = 10_000
#: When one who holds too many streams may ask for another, ms: as soon as an old one may have ended.
STREAM_AGAIN_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a valid key stands for."""

    scope: Scope
    kind: str
    role: str | None
    key_id: str
    name: str
    key_hash: str = field(repr=False)
    #: what a worker's key is bound to; None: any
    workflows: frozenset[str] | None = None

    @property
    def actor(self) -> str:
        """How journals and the audit log name it."""
        return f"{self.name} ({self.key_id})"

    @property
    def platform(self) -> bool:
        """Whether it is an operator of the platform, who sees what concerns all organisations."""
        return self.kind == kinds.PLATFORM

    def may(self, role: str) -> bool:
        """Whether it has the rights of this role."""
        return self.role is not None and kinds.ROLES.index(self.role) <= kinds.ROLES.index(role)


class _Bucket:
    """Requests that a key may still make: it fills with time, up to the burst."""

    __slots__ = ("at", "tokens")

    def __init__(self, tokens: float, at: float) -> None:
        self.tokens = tokens
        self.at = at


class Access:
    """What a node knows of keys: no more than the database has said within the last second.

    Args:
        store: where keys are.
        settings: the rate of requests that a key may make, and how many streams it may hold open.
        clock: seconds that only grow.
    """

    def __init__(self, store: Store, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._rate, self._burst = settings.api_rate, max(settings.api_burst, 1)
        self._clock = clock
        self._known: dict[str, tuple[KeyRow, Caller, float]] = {}
        #: keys revoked here so far: a look that began before the latest has not seen it
        self._revoked = 0
        self._buckets: dict[str, _Bucket] = {}
        self._most_streams = settings.max_streams
        self._streams: Counter[str] = Counter()
        self._noted: dict[str, float] = {}
        self._writing: set[asyncio.Task[None]] = set()

    async def caller(self, key: str | None) -> Caller:
        """Who shows this key.

        Raises:
            Unauthenticated: nobody whom we know.
        """
        if not key:
            raise Unauthenticated()
        row, found = await self._look_up(key)
        if not row.usable(self._store.now()):
            raise Unauthenticated()
        self._note(row.key_id)
        return found

    async def counts(self, caller: Caller) -> bool:
        """Whether the key of a caller who has been here for a while, on a stream, is still valid.

        For asking often: what the database has said within the last second is not asked again, whoever asked.
        """
        try:
            row, _ = await self._find(caller.key_hash)
        except Unauthenticated:
            return False
        return row.usable(self._store.now())

    def count(self, caller: Caller) -> None:
        """Count a request against the caller's rate. Workers are not counted: they ask in held polls and in batches.

        Raises:
            RateLimited: it has made too many; `details.retry_after_ms` says when the next one is due.
        """
        if self._rate <= 0 or caller.kind == kinds.WORKER:
            return
        now = self._clock()
        if len(self._buckets) >= _MOST:
            self._buckets.clear()
        bucket = self._buckets.setdefault(caller.key_id, _Bucket(float(self._burst), now))
        bucket.tokens = min(float(self._burst), bucket.tokens + (now - bucket.at) * self._rate)
        bucket.at = now
        if bucket.tokens < 1:
            wait_ms = round((1 - bucket.tokens) / self._rate * 1000) + 1
            raise RateLimited(f"this key may make {self._rate} requests a second", details={"retry_after_ms": wait_ms})
        bucket.tokens -= 1

    def charge(self, caller: Caller, requests: int) -> None:
        """Count so many more requests for one that does the work of many. It is under way, so it is not refused: who
        has overdrawn waits before the next one.
        """
        bucket = self._buckets.get(caller.key_id)
        if bucket is not None:
            bucket.tokens -= requests

    @contextmanager
    def streaming(self, caller: Caller) -> Iterator[None]:
        """Count a stream that a caller holds open at this node, for as long as the block runs.

        Raises:
            TooManyStreams: its key holds as many as it may; `details.retry_after_ms` says when to try again.
        """
        key_id = caller.key_id
        if 0 < self._most_streams <= self._streams[key_id]:
            raise TooManyStreams(
                f"this key holds {self._most_streams:,} streams open at this node, and may not hold more",
                details={"retry_after_ms": STREAM_AGAIN_MS, "limit": self._most_streams},
            )
        self._streams[key_id] += 1
        try:
            yield
        finally:
            self._streams[key_id] -= 1
            if not self._streams[key_id]:
                del self._streams[key_id]

    def forget(self, key_id: str) -> None:
        """A key that was just revoked here."""
        self._revoked += 1
        self._known = {hashed: entry for hashed, entry in self._known.items() if entry[0].key_id != key_id}

    async def close(self) -> None:
        """Let what is being written end, before the store is closed."""
        if self._writing:
            await asyncio.wait(self._writing)

    async def _look_up(self, key: str) -> tuple[KeyRow, Caller]:
        if not well_formed(key):
            raise Unauthenticated()
        return await self._find(hash_of(key))

    async def _find(self, hashed: str) -> tuple[KeyRow, Caller]:
        entry = self._known.get(hashed)
        if entry is not None and self._clock() - entry[2] < FRESH_S:
            return entry[0], entry[1]
        asked, revoked = self._clock(), self._revoked
        row = await self._store.key_by_hash(hashed)
        if row is None:
            self._known.pop(hashed, None)
            raise Unauthenticated()
        found = entry[1] if entry is not None and entry[0] == row else _caller(row)
        if len(self._known) >= _MOST:
            self._known.clear()
        if revoked == self._revoked:
            self._known[hashed] = (row, found, asked)
        return row, found

    def _note(self, key_id: str) -> None:
        now = self._clock()
        if now - self._noted.get(key_id, float("-inf")) < NOTED_S:
            return
        if len(self._noted) >= _MOST:
            self._noted.clear()
        self._noted[key_id] = now
        task = begin(self._write(key_id, self._store.now()))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, key_id: str, at: int) -> None:
        try:
            await self._store.used_keys({key_id: at})
        except Exception as error:  # when a key was used is good to know, and no reason to refuse a request
            log.debug("the use of key %s was not written: %s", key_id, error)


def _caller(row: KeyRow) -> Caller:
    bound = plain(row)["workflows"]
    workflows = frozenset(bound) if bound is not None else None
    return Caller(row.scope, row.kind, row.role, row.key_id, row.name, row.key_hash, workflows)


# ---- what an endpoint asks for


class Required(HTTPBearer):
    """A dependency: who asks, if the key that was shown passes a check. The OpenAPI document knows it as `key`."""

    def __init__(self, check: Callable[[Caller], None]) -> None:
        super().__init__(
            auto_error=False,
            scheme_name="key",
            description="An API key: `ifkey_…` of an organisation, `ifplatform_…` of the platform.",
        )
        self._check = check

    async def __call__(self, request: Request) -> Caller:  # type: ignore[override]  # the key's owner, not the key
        """See the class.

        Raises:
            Unauthenticated, RateLimited, and what the check raises.
        """
        access: Access = request.app.state.access
        caller = await access.caller(_shown(request))
        access.count(caller)
        self._check(caller)
        return caller


def org(role: str) -> Required:
    """Ask for an organisation's key with the rights of this role."""

    def check(caller: Caller) -> None:
        if caller.kind != kinds.ORG:
            raise Forbidden(f"a key of an organisation is required here, and this is a key of kind {caller.kind}")
        _need(caller, role)

    return Required(check)


def platform() -> Required:
    """Ask for a platform key."""
    return Required(_need_platform)


def anyone(role: str) -> Required:
    """Ask for an organisation's key with the rights of this role, or for a platform key."""

    def check(caller: Caller) -> None:
        if caller.kind == kinds.WORKER:
            raise Forbidden("a worker key only reaches what workers need, below /api/v1/worker")
        if not caller.platform:
            _need(caller, role)

    return Required(check)


async def watcher(request: Request) -> None:
    """See that a request for the figures of all organisations comes from a platform key. A scrape is not counted.

    Raises:
        Unauthenticated, PlatformRequired: it does not.
    """
    access: Access = request.app.state.access
    _need_platform(await access.caller(_shown(request)))


async def worker(request: Request) -> Caller:
    """The worker behind a request of the worker protocol.

    Raises:
        Unauthenticated, Forbidden: it shows no valid key, or one that is no worker's.
    """
    access: Access = request.app.state.access
    caller = await access.caller(_shown(request))
    if caller.kind != kinds.WORKER:
        raise Forbidden(
            f"a worker key is required here, and this is a key of kind {caller.kind}",
            hint="Make one with `ironflow apikey create --worker NAME` on the host that owns the database; "
            "`ironflow serve --dev` shows one in its line `workers`.",
        )
    return caller


def only(request: Request, name: str) -> str | None:
    """What a request says in a header. Said twice, it is the same twice: else a proxy may have read the other one.

    Raises:
        InvalidRequest: it is said in two ways.
    """
    found = request.headers.getlist(name)
    if len(found) > 1 and found.count(found[0]) != len(found):
        raise InvalidRequest(f"the header {name} is there {len(found)} times, with different values", hint="Send one.")
    return found[0] if found else None


def _shown(request: Request) -> str | None:
    """The key that a request shows."""
    scheme, _, key = (only(request, "Authorization") or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else None


def _need_platform(caller: Caller) -> None:
    if not caller.platform:
        raise PlatformRequired()


def _need(caller: Caller, role: str) -> None:
    if not caller.may(role):
        raise Forbidden(f"the role {role} is required here, and this key has the role {caller.role}")
