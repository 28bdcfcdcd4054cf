"""How far journals go, as this node saw them last: so that most changes are known to follow without looking.

What is remembered may be old, and is a lower bound then: a journal only grows while its run exists. A change that
begins at the next number leaves no gap in either case, and one that comes too late is refused by the database. It is
bounded; what was forgotten is looked up.
"""

from __future__ import annotations

from collections.abc import Sequence

from ironflow.model import transition as tr
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.transition import Transition
from ironflow.server.handed import keep


class Ends:
    """See the module's docstring."""

    def __init__(self) -> None:
        #: by run: what whoever may write next shows of it, and the number that comes next. A run that was deleted has
        #: shown another reservation and another token than the one that has its id now.
        self._next: dict[str, tuple[str, int]] = {}

    def handed(self, head: RunHead, journal: Sequence[Event]) -> None:
        """A run is handed out with this journal."""
        if head.reservation is not None and journal:
            keep(self._next, head.run_id, (head.reservation, journal[-1].seq + 1))

    def wrote(self, change: Transition) -> None:
        """A change was applied."""
        shown = change.new_token_hash or change.token_hash
        if change.release or shown is None:
            self._next.pop(change.run_id, None)
        elif change.events:
            keep(self._next, change.run_id, (shown, change.events[-1].seq + 1))

    def follows(self, change: Transition) -> bool:
        """Whether the events of a change are known to leave no gap."""
        if not change.events:
            return True
        shown = change.token_hash if change.guard == tr.GUARD_OWNER else change.reservation
        return self._next.get(change.run_id) == (shown, change.events[0].seq)
