"""What a node knows of the workflows that workers have declared: as the database said within the last second.

A start asks for one, and a program may start hundreds of runs a second. A name that is not known is looked up at once,
so a workflow can be started as soon as its first worker has registered it. What an organisation has declared may be
large, and is its own affair: callers share a look, looks that nobody's start has to have are rare where they are slow,
and of what was found a definition is parsed only when it is asked for, once for as long as it is the same.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

from ironflow.engine.declared import Declared, unknown
from ironflow.errors import InvalidInput
from ironflow.model.scope import Scope
from ironflow.store.base import Store, WorkflowSeen
from ironflow.tasks import begin

#: How old what is known may be, seconds.
FRESH_S: Final = 1.0
#: Scopes that are remembered at most; beyond that all are forgotten and asked for again.
_MOST: Final = 1_000
#: Between two looks that follow each other at once: so many times what the first one took, and seconds at most.
_REST, _LONGEST_REST_S = 9, 1.0
#: Characters of the definitions of one scope, together.
MOST_DECLARED: Final = 16 * 1_048_576
#: Of a caller who shares the loop with nobody.
_AT_ONCE: AbstractAsyncContextManager[object] = nullcontext()


class _Found:
    """What a look at a scope has found."""

    __slots__ = ("_made", "began", "ended", "number", "rows", "sizes")

    def __init__(self, rows: Sequence[dict[str, Any]], number: int, before: _Found | None) -> None:
        self.rows = {str(row["name"]): row for row in rows}
        self.sizes = {name: len(row["definition"] or "") for name, row in self.rows.items()}
        self.number = number
        self.began = self.ended = 0.0
        #: what was parsed of a row, by which it is known whether it is the same still
        self._made: dict[str, tuple[tuple[Any, ...], Declared, Declared]] = {}
        for name, made in before._made.items() if before is not None else ():
            if name in self.rows and made[0] == _said(self.rows[name]):
                self._made[name] = made

    def declared(self, name: str, *, stored: bool) -> Declared:
        if name not in self._made:
            row = self.rows[name]
            plain = Declared(row)
            self._made[name] = _said(row), plain, plain.in_stored_form()
        _, plain, in_stored_form = self._made[name]
        return in_stored_form if stored else plain


def _said(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["version"], row["worker_tags"], row["definition"]


class Catalogue:
    """See the module's docstring.

    Args:
        store: the database.
        clock: seconds that only grow.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[Scope, _Found] = {}
        self._looking: dict[Scope, asyncio.Task[None]] = {}
        self._looks = 0

    async def declared(
        self, scope: Scope, name: str, *, stored: bool = False, turn: AbstractAsyncContextManager[object] = _AT_ONCE
    ) -> Declared:
        """A workflow by what its workers declared of it.

        Args:
            scope: whose workers.
            name: of the workflow.
            stored: whether the input comes in the form in which it is stored.
            turn: entered where a definition may be parsed, which takes a while.

        Raises:
            WorkflowUnknown: none of this scope has; those that there are are named.
        """
        found = self._known.get(scope)
        if found is None or name not in found.rows:
            found = await self._looked(scope)
        elif self._clock() - found.began >= FRESH_S:
            found = await self._looked(scope, rest=False)
        async with turn:
            if name not in found.rows:
                raise unknown(name, found.rows)
            return found.declared(name, stored=stored)

    async def rows(self, scope: Scope) -> Mapping[str, dict[str, Any]]:
        """The workflows of a scope by name, as the database has them now: see `Store.workflows`."""
        return (await self._looked(scope)).rows

    async def check_room(self, scope: Scope, seen: Sequence[WorkflowSeen]) -> None:
        """Refuse definitions with which a scope would have more than `MOST_DECLARED`. What has them already keeps them.

        Raises:
            InvalidInput: it says how much there is.
        """
        found = self._known.get(scope)
        if found is None or self._clock() - found.began >= FRESH_S:
            found = await self._looked(scope, rest=False)
        before = sum(found.sizes.values())
        sizes = {**found.sizes, **{one.name: len(one.definition or "") for one in seen}}
        after = sum(sizes.values())
        if after > max(MOST_DECLARED, before):
            raise InvalidInput(
                f"the definitions of all workflows of {scope.org}/{scope.environment} would have {after:,} characters; "
                f"{MOST_DECLARED:,} is the most",
                hint="Declare shorter ones: schemas, defaults and docs take the most.",
            )
        found.sizes = sizes  # the next worker may come before the next look

    async def _looked(self, scope: Scope, *, rest: bool = True) -> _Found:
        """What a look has found that began after this was asked."""
        asked = self._looks
        while True:
            found = self._known.get(scope)
            if found is not None and found.number > asked:
                return found
            looking = self._looking.get(scope)
            if looking is None and found is not None and rest:
                left = found.ended + _REST * (found.ended - found.began) - self._clock()
                if left > 0:
                    rest = False
                    await asyncio.sleep(min(left, _LONGEST_REST_S))
                    continue
            if looking is None:
                looking = self._looking[scope] = begin(self._look(scope))
            await asyncio.shield(looking)

    async def _look(self, scope: Scope) -> None:
        self._looks += 1
        number, began = self._looks, self._clock()
        try:
            rows = await self._store.workflows(scope)
            found = _Found(rows, number, self._known.get(scope))
            found.began, found.ended = began, self._clock()
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[scope] = found
        finally:
            del self._looking[scope]
