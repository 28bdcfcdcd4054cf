"""A route that leaves itself in the scope of its request, as those of FastAPI do: requests are counted by its pattern.

And what a path may be asked for, which no single route knows: each has its own methods.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette import routing
from starlette.routing import BaseRoute, Match
from starlette.types import Scope


class Route(routing.Route):
    """See the module's docstring."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """See `starlette.routing.Route`."""
        match, found = super().matches(scope)
        if match is not Match.NONE:
            found["route"] = self
        return match, found


def allowed(routes: Iterable[BaseRoute], scope: Scope) -> str:
    """The methods that the path of a request takes, as the header `Allow` names them."""
    found: set[str] = set()
    for route in routes:
        if route.matches(scope)[0] is not Match.NONE:
            found.update(getattr(route, "methods", None) or ())
    return ", ".join(sorted(found))
