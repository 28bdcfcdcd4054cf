"""What is said of a library that belongs to an extra which is not installed: the same wherever it is missed."""

from __future__ import annotations

from ironflow.errors import InvalidSettings

__all__ = ["not_installed"]


def not_installed(what: str, extra: str) -> InvalidSettings:
    """The error of a missing library.

    Args:
        what: what needs it, or what it is, in words: "the HTTP client".
        extra: the extra of this package that brings it.
    """
    return InvalidSettings(
        [f"{what} is not installed: pip install 'ironflow-engine[{extra}]', or in a clone pip install '.[{extra}]'"]
    )
