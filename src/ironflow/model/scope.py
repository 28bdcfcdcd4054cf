"""Scopes: whose a row is. An organisation and one of its environments; one scope never sees another's rows.

What routing and lanes compare is text, so the scope is part of that text: a claim by routes, or a place in a lane,
cannot cross over by forgetting a condition. The default scope adds nothing, and what has only that one reads plainly.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ironflow.errors import InvalidInput

#: The form of both names.
FORM = r"[A-Za-z0-9_.-]{1,32}"
_NAME = re.compile(FORM, re.ASCII)


class Scope(NamedTuple):
    """An organisation and one of its environments."""

    org: str = "default"
    environment: str = "default"

    def lane(self, name: str) -> str:
        """The name under which a lane of this scope is kept: no other scope has one of the same name."""
        return name if self == DEFAULT else f"@{self.org}/{self.environment}/{name}"


DEFAULT = Scope()


def check_scope(org: str, environment: str) -> Scope:
    """A scope of names that came from outside.

    Raises:
        InvalidInput: one is not 1–32 of ASCII letters, digits and `- _ .`. So narrow an alphabet leaves the separators
            of routes and lanes free, and keeps a route short enough for an index.
    """
    for what, name in (("organisation", org), ("environment", environment)):
        if not _NAME.fullmatch(name):
            raise InvalidInput(
                f"{name!r} cannot be the name of an {what}",
                hint="Give 1 to 32 ASCII letters, digits or any of - _ .",
            )
    return Scope(org, environment)
