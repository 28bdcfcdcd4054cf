"""When a failed try is tried again, and after how long: pure arithmetic, no clock and no dice.

Owns the policy, and the two exceptions by which a body overrules it. The caller passes the random number in, so that a
delay, once journaled, can be explained and a test can name it. One policy serves the tries of a step and the attempts
of a run; only the defaults differ, because a step retries against a flaky neighbour (seconds) and a run against a
broken world (minutes).
"""

from __future__ import annotations

from dataclasses import dataclass

from ironflow.duration import Duration, to_ms

RetryOn = str | type[BaseException]

STEP_BACKOFF_MS = 1_000
STEP_MAX_BACKOFF_MS = 60_000
RUN_BACKOFF_MS = 30_000
RUN_MAX_BACKOFF_MS = 15 * 60_000

#: Words `on` understands: everything, timeouts, or the step's own kind.
RETRY_CLASSES = frozenset({"any", "timeout", "llm", "connector", "tool"})


class NonRetryableError(Exception):
    """Raise this in a step or workflow to say that trying again cannot help: no further try is made."""

    __module__ = "ironflow"  # where authors have it from: journals and tracebacks name it by this


class RetryAfterError(Exception):
    """Raise this where it is known when trying again makes sense (HTTP 429 with Retry-After).

    The retry policy still applies: the try counts, and the wait is no longer than the policy's maximum.

    Args:
        message: what happened.
        after: how long to wait (seconds, "30s", timedelta).

    Raises:
        InvalidDuration: `after` is not a length of time. It is told here, where it was written, and not when the
            retry is decided.
    """

    __module__ = "ironflow"

    def __init__(self, message: str = "", *, after: Duration) -> None:
        self.after_ms: int = to_ms(after, name="after")
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, how long after, and on what a try is repeated.

    Parameters:
        max_attempts: number of tries in total, the first one included; 1 means no retry.
        backoff_ms: delay before the second try, in milliseconds.
        factor: each further delay is this many times the one before.
        max_backoff_ms: no delay is longer than this, in milliseconds.
        jitter: the share of the delay that chance may add or take away, 0 to 1. It spreads tries that failed together.
        on: what is worth another try: words of `RETRY_CLASSES` and exception types.
    """

    max_attempts: int = 1
    backoff_ms: int = STEP_BACKOFF_MS
    factor: float = 2.0
    max_backoff_ms: int = STEP_MAX_BACKOFF_MS
    jitter: float = 0.2
    on: tuple[RetryOn, ...] = ("any",)

    def delay_ms(self, try_no: int, unit_random: float, hint_ms: int | None = None) -> int:
        """The delay after try `try_no` (from 1) has failed, in milliseconds.

        `unit_random` is in [0, 1). `hint_ms` is what the failing side asked for (`RetryAfterError`): it is taken as
        it is, without jitter, because less would be refused again; only the policy's ceiling shortens it, so that a
        neighbour's mistake cannot park a run for a year.
        """
        if hint_ms is not None:
            return max(0, min(hint_ms, self.max_backoff_ms))
        base = min(self._grown(try_no), float(self.max_backoff_ms))
        swing = self.jitter * (2.0 * unit_random - 1.0)
        return max(0, min(round(base * (1.0 + swing)), self.max_backoff_ms))

    def _grown(self, try_no: int) -> float:
        if self.backoff_ms == 0:  # and no growth of nothing is anything, however large the factor
            return 0.0
        try:
            return self.backoff_ms * self.factor ** (try_no - 1)
        except OverflowError:
            return float(self.max_backoff_ms)

    def matches(self, error: BaseException, kind: str) -> bool:
        """Whether `error`, raised by a step of this `kind`, is worth another try.

        `NonRetryableError` never is. Nor, unless its type is listed, is anything that is not an `Exception`: a
        cancellation or an interpreter exit is a decision, not a failure.
        """
        if isinstance(error, NonRetryableError):
            return False
        return any(_covers(entry, error, kind) for entry in self.on)


def _covers(entry: RetryOn, error: BaseException, kind: str) -> bool:
    if not isinstance(entry, str):
        return isinstance(error, entry)
    if not isinstance(error, Exception):
        return False
    if entry == "timeout":
        return isinstance(error, TimeoutError)
    return entry in ("any", kind)


#: A run's policy when the author gave a bare number: 30 s, 2 min, 8 min, then every 15 min, each +-20 %.
RUN_DEFAULTS = RetryPolicy(backoff_ms=RUN_BACKOFF_MS, factor=4.0, max_backoff_ms=RUN_MAX_BACKOFF_MS)
