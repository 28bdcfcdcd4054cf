"""What this node knows of the runs that workers speak of: whose each is, and to whom it was handed out here.

Whose a run is never changes while it exists, so one look lasts; what is remembered is bounded, and what was forgotten
is looked up again. It only keeps out: whoever passes still has to show a token or a reservation to the database, and is
told nothing of a run but by `Handed.standings`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from ironflow.model.capacity import RunHead
from ironflow.model.ids import split_route
from ironflow.model.scope import Scope
from ironflow.server.access import Caller
from ironflow.store.base import Store
from ironflow.store.reader import Standing

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
            keep(self._whose, head.run_id, Whose(split_route(head.route).scope, head.workflow))
            keep(self._given, (head.run_id, session_id), head.execution_seq)

    def gave(self, session_id: str, run_id: str, execution_seq: int) -> bool:
        """Whether that session was handed this segment here, whatever became of the promise since."""
        return self._given.get((run_id, session_id)) == execution_seq

    async def whose(self, run_id: str) -> Whose | None:
        """Whose a run is; None where there is no such run."""
        if run_id not in self._whose:
            await self._look([run_id])
        return self._whose.get(run_id)

    async def reached(self, run_ids: Collection[str], caller: Caller) -> set[str]:
        """Those of these runs that exist and that a caller's key reaches. What is not remembered is one look."""
        found = {run_id for run_id in run_ids if self._remembers(run_id, caller)}
        asked = [run_id for run_id in run_ids if run_id not in found]
        if asked:
            looked = await self._look(asked)  # of an id there may be another run by now
            found.update(run_id for run_id, whose in looked.items() if whose.is_for(caller))
        return found

    def _remembers(self, run_id: str, caller: Caller) -> bool:
        known = self._whose.get(run_id)
        return known is not None and known.is_for(caller)

    async def standings(self, run_ids: Collection[str], caller: Caller) -> dict[str, Standing]:
        """Where those of these runs stand that a caller's key reaches, as the database says now: what is remembered may
        be of a run that was deleted, whose id a stranger's run has by now.
        """
        found = await self._store.standings(run_ids)
        whose = self._learn(run_ids, found)
        return {run_id: one for run_id, one in found.items() if whose[run_id].is_for(caller)}

    async def _look(self, run_ids: Collection[str]) -> dict[str, Whose]:
        return self._learn(run_ids, await self._store.standings(run_ids))

    def _learn(self, run_ids: Collection[str], standings: Mapping[str, Standing]) -> dict[str, Whose]:
        found = {run_id: Whose(one.scope, one.workflow) for run_id, one in standings.items()}
        for run_id in run_ids:
            if run_id in found:
                keep(self._whose, run_id, found[run_id])
            else:
                self._whose.pop(run_id, None)
        return found


def keep(kept: dict[Any, Any], key: Any, value: Any) -> None:
    """Remember it as the newest; the oldest goes."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > MOST_REMEMBERED:
        del kept[next(iter(kept))]
