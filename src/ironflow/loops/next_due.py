"""What becomes due next, as far as this process knows: the earlier of what it was told and what it has read.

An answer of the database is older than what was told while it was on its way, so it does not take the place of that.
What was told before the question was committed before it, too, and the answer knows it.
"""

from __future__ import annotations


class NextDue:
    """See the module's docstring. Whoever reads says `asks` before the question and `answered` after it."""

    __slots__ = ("_meanwhile", "at")

    def __init__(self) -> None:
        #: the earliest due time, ms; 0: look now; None: nothing is known to become due
        self.at: int | None = 0
        #: the earliest that was told since the last question
        self._meanwhile: int | None = None

    def told(self, due: int) -> bool:
        """Something will be due at this time, ms. Returns whether that is earlier than all that was known."""
        self._meanwhile = _earlier(self._meanwhile, due)
        sooner = self.at is None or due < self.at
        self.at = _earlier(self.at, due)
        return sooner

    def asks(self) -> None:
        """The database is about to be asked."""
        self._meanwhile = None

    def answered(self, due: int | None) -> None:
        """It has answered: with this time, ms; or that there is none, or not at all."""
        self.at = _earlier(due, self._meanwhile)


def _earlier(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
