"""What this node knows of the runs that workers speak of: whose each is, and to whom it was handed out here.

Whose a run is never changes while it exists, so one look lasts; what is remembered is bounded, and what was forgotten
is looked up again. It only keeps out: whoever passes still has to show a token or a reservation to the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from ironflow.model.capacity import RunHead
from ironflow.model.ids import split_route
from ironflow.model.scope import Scope
from ironflow.server.access import Caller
from ironflow.store.base import Store

#: Runs, and promises of runs, that are remembered at most.
MOST_REMEMBERED: Final = 20_000


class Whose(NamedTuple):
    """Whose a run is, and what of."""

    scope: Scope
    workflow: str

    def is_for(self, caller: Caller) -> bool:
        """Whether a caller's key reaches it: of its scope, and bound to no other workflows."""
        return self.scope == caller.scope and (caller.workflows is None or self.workflow in caller.workflows)


class Handed:
    """See the module's docstring."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._whose: dict[str, Whose] = {}
        self._given: dict[tuple[str, str], int] = {}

    def note(self, session_id: str, heads: Iterable[RunHead]) -> None:
        """These are handed out to a session."""
        for head in heads:
            _keep(self._whose, head.run_id, Whose(split_route(head.route).scope, head.workflow))
            _keep(self._given, (head.run_id, session_id), head.execution_seq)

    def gave(self, session_id: str, run_id: str, execution_seq: int) -> bool:
        """Whether that session was handed this segment here, whatever became of the promise since."""
        return self._given.get((run_id, session_id)) == execution_seq

    async def whose(self, run_id: str) -> Whose | None:
        """Whose a run is; None where there is no such run."""
        return self._whose.get(run_id) or await self._look(run_id)

    def remembers(self, run_id: str, caller: Caller) -> bool:
        """Whether it is known without looking that a caller's key reaches this run."""
        known = self._whose.get(run_id)
        return known is not None and known.is_for(caller)

    async def is_for(self, run_id: str, caller: Caller) -> bool:
        """Whether there is such a run, and a caller's key reaches it."""
        if self.remembers(run_id, caller):
            return True
        found = await self._look(run_id)  # of the id there may be another run by now
        return found is not None and found.is_for(caller)

    async def _look(self, run_id: str) -> Whose | None:
        row = await self._store.run(run_id)
        if row is None:
            self._whose.pop(run_id, None)
            return None
        found = Whose(row.scope, row.workflow)
        _keep(self._whose, run_id, found)
        return found


def _keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Remember it as the newest; the oldest goes."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MOST_REMEMBERED:
        del kept[next(iter(kept))]
