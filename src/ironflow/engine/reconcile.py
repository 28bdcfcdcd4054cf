"""The three answers to "did it happen?" after a step was cut off between its effect and its record.

A body that was interrupted may or may not have reached the outside world. Where running it again would hurt,
the author asks the other side, and says what came of it in one of three values. "I don't know" is one of them
on purpose: guessing is what the question was meant to avoid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Done(Generic[R]):
    """It happened, and this is what the body would have returned."""

    value: R


@dataclass(frozen=True, slots=True)
class NotDone:
    """It did not happen: run the body again."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be found out: the run pauses. When a person resumes it, the question is put again: to code that has
    been given the answer by then, or that looks where the answer was put.
    """


Reconciled = Done[R] | NotDone | Unknown
