"""What a person may have meant by a name that does not exist: said in the error, since the slip is a letter mostly."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["meant"]


def meant(name: str, known: Iterable[str]) -> str:
    """A sentence with the nearest known name, or with all of them where none is near."""
    names = list(known)
    close = difflib.get_close_matches(name, names, 1)
    return f"Did you mean {close[0]}?" if close else f"There are {', '.join(names)}."
