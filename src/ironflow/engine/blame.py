"""Which steps made a run fail: errors carry the id of the step they came from.

A resumed attempt keeps every finished step and executes again only what made the last one fail, so that must
be known. An error that reaches the end of a run is followed through its causes, contexts and groups to the
errors of steps in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ironflow.codec.exceptions import STEP_ATTRIBUTE, decode_error
from ironflow.errors import StepInterrupted


def revived(tree: Any) -> BaseException:
    """A recorded error as every replay raises it. Live, too, it is this one that the workflow gets: code that
    looks at an error must see the same before and after a crash.
    """
    return decode_error(tree)


def blamed(error: BaseException, step_id: str) -> BaseException:
    """Mark an error with the step it came from."""
    error.__dict__[STEP_ATTRIBUTE] = step_id  # not by attribute: a frozen dataclass may be an exception, too
    return error


def blame(error: BaseException, last_limit: str | None, *, automatic: bool) -> list[str]:
    """The ids of the steps (and the timeout) whose errors make up `error`.

    Args:
        error: what ended the run.
        last_limit: the timer of the timeout that fired last. A TimeoutError that names no step came from it;
            were it kept, every further attempt would time out on arrival.
        automatic: for an attempt that nobody decided on: an at-most-once step that was cut off is not named,
            because it may have taken effect and must not run again by itself.
    """
    found: list[str] = []
    for one in _chain(error):
        step_id = one.__dict__.get(STEP_ATTRIBUTE)
        if step_id is None and isinstance(one, TimeoutError):
            step_id = last_limit
        if step_id is None or step_id in found or (automatic and isinstance(one, StepInterrupted)):
            continue
        found.append(step_id)
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
