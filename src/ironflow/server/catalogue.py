"""What a node knows of the workflows that workers have declared: as the database said within the last second.

A start asks for one, and a program may start hundreds of runs a second. A name that is not known is looked up at once,
so a workflow can be started as soon as its first worker has registered it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ironflow.engine.declared import Declared, unknown
from ironflow.model.scope import Scope
from ironflow.store.base import Store

#: How old what is known may be, seconds.
FRESH_S: Final = 1.0
#: Scopes that are remembered at most; beyond that all are forgotten and asked for again.
_MOST: Final = 1_000


class Catalogue:
    """See the module's docstring.

    Args:
        store: the database.
        clock: seconds that only grow.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[Scope, tuple[float, dict[str, tuple[Declared, Declared]]]] = {}

    async def declared(self, scope: Scope, name: str, *, stored: bool = False) -> Declared:
        """A workflow by what its workers declared of it.

        Args:
            scope: whose workers.
            name: of the workflow.
            stored: whether the input comes in the form in which it is stored.

        Raises:
            WorkflowUnknown: none of this scope has; those that there are are named.
        """
        known = self._known.get(scope)
        if known is not None and name in known[1] and self._clock() - known[0] < FRESH_S:
            return known[1][name][stored]
        asked = self._clock()
        rows = await self._store.workflows(scope)
        found = {str(row["name"]): (Declared(row), Declared(row, stored=True)) for row in rows}
        if len(self._known) >= _MOST:
            self._known.clear()
        self._known[scope] = (asked, found)
        if name not in found:
            raise unknown(name, found)
        return found[name][stored]
