"""When a try is repeated, and how long after: within its bounds whatever the numbers are."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ironflow.model.journal import Event
from ironflow.model.retry import RUN_DEFAULTS, NonRetryableError, RetryPolicy
from ironflow.model.transition import GUARD_OWNER, Transition

CHANCE = st.floats(0, 1, exclude_max=True)


@given(st.integers(1, 10_000), st.floats(1, 100), st.integers(0, 10**9), st.floats(0, 1), CHANCE)
def test_a_delay_is_never_negative_and_never_over_the_maximum(
    try_no: int, factor: float, maximum: int, jitter: float, chance: float
) -> None:
    policy = RetryPolicy(5, 1_000, factor, maximum, jitter)
    assert 0 <= policy.delay_ms(try_no, chance) <= maximum


@given(st.integers(1, 50), CHANCE)
def test_chance_moves_a_delay_by_its_share_at_most(try_no: int, chance: float) -> None:
    policy = RetryPolicy(99, 1_000, 1.5, 10**12, 0.2)
    base = 1_000 * 1.5 ** (try_no - 1)
    assert abs(policy.delay_ms(try_no, chance) - base) <= base * 0.2 + 1


@given(st.integers(1, 10_000), st.floats(1, 1e308), CHANCE)
@example(1025, 2.0, 0.5)
@example(3, 1e200, 0.5)
def test_no_backoff_stays_none_however_often_it_is_multiplied(try_no: int, factor: float, chance: float) -> None:
    assert RetryPolicy(backoff_ms=0, factor=factor).delay_ms(try_no, chance) == 0


@given(st.integers(-5, 10**12))
def test_a_hint_is_taken_as_it_is_up_to_the_maximum(hint: int) -> None:
    assert RetryPolicy(max_backoff_ms=60_000).delay_ms(1, 0.9, hint) == min(max(hint, 0), 60_000)


def test_r23_the_delays_of_a_run_are_thirty_seconds_two_eight_and_then_fifteen_minutes() -> None:
    delays = [RUN_DEFAULTS.delay_ms(n, 0.5) for n in range(1, 6)]
    assert delays == [30_000, 120_000, 480_000, 900_000, 900_000]


def test_what_is_no_exception_is_only_tried_again_where_its_type_is_named() -> None:
    assert not RetryPolicy().matches(KeyboardInterrupt(), "tool")
    assert RetryPolicy(on=(KeyboardInterrupt,)).matches(KeyboardInterrupt(), "tool")


def test_a_final_error_is_never_tried_again_even_if_its_type_is_named() -> None:
    assert not RetryPolicy(on=(NonRetryableError, "any")).matches(NonRetryableError(), "tool")


def test_words_match_everything_timeouts_or_the_step_s_own_kind() -> None:
    for on, kind, error, matches in [
        ("any", "tool", ValueError(), True),
        ("timeout", "tool", ValueError(), False),
        ("timeout", "tool", TimeoutError(), True),
        ("llm", "llm", ValueError(), True),
        ("llm", "tool", ValueError(), False),
    ]:
        assert RetryPolicy(on=(on,)).matches(error, kind) is matches


def test_a_transition_shows_what_it_would_do() -> None:
    change = Transition("r", GUARD_OWNER, 3)
    change.events = [Event(1, "step_started"), Event(2, "step_completed")]
    assert repr(change) == "Transition(r, owner, seq=3, state=None, [step_started, step_completed])"
