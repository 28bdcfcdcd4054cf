"""The retry policy: which failures, how often, how long after."""

from __future__ import annotations

import pytest

from ironflow.model.retry import RUN_DEFAULTS, NonRetryableError, RetryPolicy


def delays(policy: RetryPolicy, unit: float, count: int) -> list[int]:
    return [policy.delay_ms(n, unit) for n in range(1, count + 1)]


def test_delays_grow_by_the_factor_up_to_the_ceiling() -> None:
    assert delays(RetryPolicy(backoff_ms=1_000, factor=2, max_backoff_ms=5_000), 0.5, 5) == [
        1000,
        2000,
        4000,
        5000,
        5000,
    ]


def test_chance_moves_a_delay_by_its_share_both_ways_and_never_over_the_ceiling() -> None:
    policy = RetryPolicy(backoff_ms=1_000, jitter=0.2, max_backoff_ms=1_100)
    assert policy.delay_ms(1, 0.0) == 800
    assert policy.delay_ms(1, 0.5) == 1_000
    assert policy.delay_ms(1, 0.999) == 1_100


def test_a_run_waits_minutes_between_attempts() -> None:
    assert delays(RUN_DEFAULTS, 0.5, 5) == [30_000, 120_000, 480_000, 900_000, 900_000]
    assert RUN_DEFAULTS.delay_ms(1, 0.0) == 24_000


def test_what_the_other_side_asked_for_is_taken_as_it_is_up_to_the_ceiling() -> None:
    policy = RetryPolicy(backoff_ms=1_000, max_backoff_ms=60_000)
    assert policy.delay_ms(1, 0.9, hint_ms=7_000) == 7_000
    assert policy.delay_ms(1, 0.9, hint_ms=10**9) == 60_000


def test_the_thousandth_try_does_not_overflow() -> None:
    assert RetryPolicy(factor=10.0).delay_ms(1_000, 0.5) == 60_000


@pytest.mark.parametrize(
    ("on", "error", "kind", "matches"),
    [
        (("any",), ValueError(), "tool", True),
        (("any",), NonRetryableError("no"), "tool", False),
        ((NonRetryableError,), NonRetryableError("no"), "tool", False),
        (("any",), KeyboardInterrupt(), "tool", False),
        ((KeyboardInterrupt,), KeyboardInterrupt(), "tool", True),
        (("timeout",), TimeoutError(), "tool", True),
        (("timeout",), ValueError(), "tool", False),
        (("llm",), ValueError(), "llm", True),
        (("llm",), ValueError(), "tool", False),
        (("connector", LookupError), KeyError(), "tool", True),
        (("connector", LookupError), KeyError(), "connector", True),
        ((LookupError,), ValueError(), "tool", False),
    ],
)
def test_an_error_is_worth_another_try_by_its_type_or_its_step_s_kind(
    on: tuple[str | type[BaseException], ...], error: BaseException, kind: str, matches: bool
) -> None:
    assert RetryPolicy(on=on).matches(error, kind) is matches
