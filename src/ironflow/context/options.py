"""Options authors write, and what they become.

Owns the checks that are the same for steps and workflows. Past this module a duration is a number of milliseconds, a
retry is a policy, and a tag is one that a worker can carry.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypedDict

from ironflow.duration import Duration, to_ms
from ironflow.engine.definitions import Lane
from ironflow.errors import DefinitionError, InvalidDuration, InvalidInput
from ironflow.model.ids import LONGEST_VERSION, check_text, tags_of
from ironflow.model.retry import RETRY_CLASSES, RUN_DEFAULTS, RetryOn, RetryPolicy
from ironflow.spelling import meant

StepKind = Literal["tool", "llm", "connector"]

#: Far more tries, and recoveries, than any run has; what a database can hold.
MOST_TIMES = 2**31 - 1


class Retry:
    """When a failed step, or a failed run, is tried again.

    Parameters:
        max_attempts: tries in total, the first one counted.
        backoff: wait before the second try ("1s", seconds, or a timedelta).
        factor: each further wait is this many times the one before.
        max_backoff: no wait is longer.
        jitter: share of the wait that chance adds or takes, 0 to 1: what failed together does not come back
            together.
        on: what is worth another try: "any", "timeout", a step kind ("llm", "connector", "tool"), exception
            types, or a tuple of these. `NonRetryableError` never is.

    Raises `DefinitionError` or `InvalidDuration` for values that mean nothing.
    """

    __slots__ = ("policy",)

    def __init__(
        self,
        max_attempts: int = 3,
        *,
        backoff: Duration = "1s",
        factor: float = 2.0,
        max_backoff: Duration = "1m",
        jitter: float = 0.2,
        on: RetryOn | tuple[RetryOn, ...] = "any",
    ) -> None:
        self.policy = RetryPolicy(
            max_attempts=_checked_attempts(max_attempts),
            backoff_ms=to_ms(backoff, name="backoff"),
            factor=_checked(factor, "factor", 1.0, float("inf")),
            max_backoff_ms=to_ms(max_backoff, name="max_backoff"),
            jitter=_checked(jitter, "jitter", 0.0, 1.0),
            on=tuple(_checked_class(entry) for entry in (on if isinstance(on, tuple) else (on,))),
        )

    def __repr__(self) -> str:
        return f"Retry({self.policy.max_attempts})"


class StepOptions(TypedDict, total=False):
    """Options of `@step` and `Step.using`."""

    name: str | None
    retry: Retry | int
    timeout: Duration | None
    heartbeat_timeout: Duration | None
    at_most_once: bool
    kind: StepKind
    on_cancel: Literal["wait", "abandon"]


def refuse_unknown(options: Mapping[str, Any], shape: type, what: str) -> None:
    """Refuse an option that does not exist: a slip (`retires=3`) must not mean silently going without."""
    known = shape.__annotations__
    for name in options:
        if name not in known:
            raise DefinitionError(f"a {what} has no option {name!r}", hint=meant(name, known))


@contextmanager
def options_of(what: str, fn: Callable[..., Any], name: Any) -> Iterator[None]:
    """Say in an error about an option whose it is: `what` is a step or a workflow, `name` the one it was given."""
    try:
        yield
    except (DefinitionError, InvalidDuration) as error:
        place = name if isinstance(name, str) else getattr(fn, "__name__", repr(fn))
        message = f"{what} {place}: {error.message}"
        raise type(error)(message, hint=error.hint or "", details=error.details) from None


def step_policy(retry: Retry | int) -> RetryPolicy:
    """A step's policy; a bare number keeps the seconds-long delays that suit a neighbour's hiccup."""
    return retry.policy if isinstance(retry, Retry) else RetryPolicy(max_attempts=_checked_attempts(retry))


def run_policy(retry: Retry | int) -> RetryPolicy:
    """A run's policy; a bare number means minutes between attempts, since its steps have retried already."""
    if isinstance(retry, Retry):
        return retry.policy
    return RetryPolicy(
        max_attempts=_checked_attempts(retry),
        backoff_ms=RUN_DEFAULTS.backoff_ms,
        factor=RUN_DEFAULTS.factor,
        max_backoff_ms=RUN_DEFAULTS.max_backoff_ms,
    )


def optional_ms(duration: Duration | None, name: str) -> int | None:
    """A limit in milliseconds, where one is given; errors as of `to_ms`, and of one in which nothing can be done."""
    if duration is None:
        return None
    limit_ms = to_ms(duration, name=name)
    if limit_ms == 0:
        raise DefinitionError(f"{name} must be longer than zero, not {duration!r}", hint="Leave it out for no limit.")
    return limit_ms


def as_lane(lane: Lane | int | None) -> Lane | None:
    """A lane; a bare number is one for the whole workflow."""
    given: Any = lane
    return given if given is None or isinstance(given, Lane) else Lane(given)


def checked_choice(value: Any, name: str, allowed: tuple[str, ...]) -> Any:
    """One of these words; `name`: of the option, for the error."""
    if value not in allowed:
        raise DefinitionError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return value


def checked_flag(value: Any, name: str) -> bool:
    """True or False, and nothing that merely counts as one: "no" would be true. `name`: of the option."""
    if not isinstance(value, bool):
        raise DefinitionError(f"{name} must be True or False, not {value!r}")
    return value


def checked_names(names: Any, what: str) -> tuple[Any, ...]:
    """A sequence, said to be of names; `what`: of the option, for the error."""
    if isinstance(names, str):  # tuple("gpu") would be three tags
        raise DefinitionError(f"{what} must be a sequence of names, not the text {names!r}", hint=f"Write [{names!r}].")
    if not isinstance(names, Iterable):
        raise DefinitionError(f"{what} must be a sequence of names, not {names!r}")
    return tuple(names)


def checked_tags(tags: Any) -> tuple[str, ...]:
    """The tags a worker must carry, refused here with the words of `ids.tags_of` where they cannot be any."""
    names = checked_names(tags, "worker_tags")
    for tag in names:
        if not isinstance(tag, str):
            raise DefinitionError(f"worker_tags: {tag!r} is no tag", hint="Tags are text.")
    try:
        return tags_of(names)
    except InvalidInput as error:
        raise DefinitionError(error.message, hint=error.hint) from None


def checked_version(version: Any, what: str = "version") -> str:
    """A version, which is stored with every run and compared as it is: 1 to 64 printable characters."""
    try:
        check_text(version, what, LONGEST_VERSION)
    except InvalidInput as error:
        raise DefinitionError(error.message, hint=error.hint) from None
    return str(version)


def _checked_attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TIMES:
        span = f"it starts at 1 and goes up to {MOST_TIMES:,}"
        raise DefinitionError(f"retry counts tries including the first, so {span}; got {value!r}")
    return value


def _checked(value: Any, name: str, low: float, high: float) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not low <= value <= min(high, sys.float_info.max):
        span = f"from {low:g}" + ("" if high > 1 else f" to {high:g}")
        raise DefinitionError(f"{name} must be a number {span}, not {value!r}")
    return float(value)


def _checked_class(entry: Any) -> RetryOn:
    if isinstance(entry, str):
        return str(checked_choice(entry, "on", tuple(sorted(RETRY_CLASSES))))
    if isinstance(entry, type) and issubclass(entry, BaseException):
        return entry
    raise DefinitionError(f"on takes words or exception types, not {entry!r}")
