"""Where observers are told: the interface that engine, workers and stores call, and what each call promises.

Everything is told after its commit and on the thread that committed. A call returns at once and does no input or
output; `Several` keeps what an observer raises away from the run that it watches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Decide, Locked, Transition

log = logging.getLogger("ironflow.observe")


class Watch(Protocol):
    """One segment, watched from its activation to its end. Called on the worker's loop."""

    def starting(self, step_id: str, name: str, try_no: int, context: Context) -> Context:
        """The body of a try is about to begin. Returns the context it is to run in."""
        ...

    def ended(self, step_id: str) -> None:
        """A body ended. What became of it is told by `committed`."""
        ...

    def committed(self, events: Sequence[Event], left: str | None) -> None:
        """These events are in the journal. `left`: the state in which the run left with them; None: it goes on."""
        ...

    def lost(self, *, given_back: bool) -> None:
        """The segment ended without a word of its own: the run was taken away, or `given_back` by a leaving worker."""
        ...


class Observer(Protocol):
    """Whoever wants to know."""

    def created(self, row: RunRow, traceparent: str | None = None) -> None:
        """A run exists. `traceparent`: where its caller was, in the form of the W3C header."""
        ...

    def entered(self, head: RunHead, worker: str) -> Watch:
        """A worker took a run: its segment begins. `head` holds its `execution_seq` already."""
        ...

    def decided(self, locked: Locked, change: Transition) -> None:
        """Somebody changed a run from outside (recovery, a person, a wake-up): as it was, and what was applied."""
        ...

    def wrote(self, transitions: int, seconds: float) -> None:
        """A group of transitions was committed together. May be called on a thread of the store."""
        ...

    def deleted(self, runs: int) -> None:
        """So many ended runs were deleted because of their age."""
        ...


class Looking:
    """A `decide` that remembers what it looked at, so that what was applied can be told with the run it befell."""

    __slots__ = ("_decide", "_observer", "_seen")

    def __init__(self, decide: Decide, observer: Observer) -> None:
        self._decide = decide
        self._observer = observer
        self._seen: dict[str, Locked] = {}

    def __call__(self, locked: Locked) -> Transition | None:
        """Decide. A transaction that is repeated asks again, and what it saw last counts."""
        change = self._decide(locked)
        if change is not None:
            self._seen[locked.row.run_id] = locked
        return change

    def applied(self, results: Mapping[str, object]) -> None:
        """The transaction is committed: tell of everything that it applied."""
        for run_id, change in results.items():
            locked = self._seen.get(run_id)
            if locked is not None and isinstance(change, Transition):
                self._observer.decided(locked, change)


class Several:
    """Some observers as one. What one of them raises is logged once, and the others and the run go on."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = tuple(observers)
        self._broken: set[str] = set()

    def created(self, row: RunRow, traceparent: str | None = None) -> None:
        """See `Observer.created`."""
        for observer in self._observers:
            self.tell(observer.created, row, traceparent)

    def entered(self, head: RunHead, worker: str) -> Watch:
        """See `Observer.entered`."""
        watches = [self.tell(observer.entered, head, worker) for observer in self._observers]
        return _Watches(self, [watch for watch in watches if watch is not None])

    def decided(self, locked: Locked, change: Transition) -> None:
        """See `Observer.decided`."""
        for observer in self._observers:
            self.tell(observer.decided, locked, change)

    def wrote(self, transitions: int, seconds: float) -> None:
        """See `Observer.wrote`."""
        for observer in self._observers:
            self.tell(observer.wrote, transitions, seconds)

    def deleted(self, runs: int) -> None:
        """See `Observer.deleted`."""
        for observer in self._observers:
            self.tell(observer.deleted, runs)

    def tell(self, call: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Call, and survive it. None where it failed."""
        try:
            return call(*args, **named)
        except Exception:
            name = f"{type(getattr(call, '__self__', None)).__name__}.{getattr(call, '__name__', call)}"
            if name not in self._broken:
                self._broken.add(name)
                log.exception("%s failed; runs go on, and its next failures are not mentioned again", name)
            return None


class _Watches:
    """The watches of several observers over one segment."""

    __slots__ = ("_several", "_watches")

    def __init__(self, several: Several, watches: list[Watch]) -> None:
        self._several = several
        self._watches = watches

    def starting(self, step_id: str, name: str, try_no: int, context: Context) -> Context:
        for watch in self._watches:
            context = self._several.tell(watch.starting, step_id, name, try_no, context) or context
        return context

    def ended(self, step_id: str) -> None:
        for watch in self._watches:
            self._several.tell(watch.ended, step_id)

    def committed(self, events: Sequence[Event], left: str | None) -> None:
        for watch in self._watches:
            self._several.tell(watch.committed, events, left)

    def lost(self, *, given_back: bool) -> None:
        for watch in self._watches:
            self._several.tell(watch.lost, given_back=given_back)
