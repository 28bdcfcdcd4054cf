"""Lengths of time: what people may write, and what it means in milliseconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow.duration import format_ms, to_ms
from ironflow.errors import InvalidDuration


@pytest.mark.parametrize(("given_", "ms"), [
    ("30s", 30_000), ("5m", 300_000), ("7d", 604_800_000), ("250ms", 250), ("1h30m", 5_400_000),
    ("1h 30m", 5_400_000), (" 1.5H ", 5_400_000), ("2w", 1_209_600_000), ("90", 90_000), ("0", 0), ("0s", 0),
    (90, 90_000), (0.25, 250), (0.29, 290), (0, 0), (timedelta(hours=1), 3_600_000), (timedelta(0), 0),
])  # fmt: skip
def test_a_duration_is_read_as_people_mean_it(given_: Any, ms: int) -> None:
    assert to_ms(given_) == ms


@pytest.mark.parametrize(("given_", "reason"), [
    ("", "is empty"), ("  ", "is empty"), ("-5s", "is negative"), ("-5", "is negative"), (-1, "is negative"),
    (timedelta(seconds=-1), "is negative"), (float("nan"), "not a finite"), (float("inf"), "not a finite"),
    ("nan", "not a length"), ("abc", "not a length"), ("5 parsecs", "not a length"), ("5s 3", "not a length"),
    ("1e5", "not a length"), ("1_0s", "not a length"), (True, "is a bool"), (None, "is a NoneType"),
    (10**30, "longer than"), ("9" * 5000, "longer than"), (1e300, "longer than"),
])  # fmt: skip
def test_what_is_no_duration_is_refused_by_name_and_value(given_: Any, reason: str) -> None:
    with pytest.raises(InvalidDuration, match=reason) as caught:
        to_ms(given_, name="timeout")
    assert caught.value.message.startswith("timeout: ")
    assert len(caught.value.message) < 200
    assert isinstance(caught.value, ValueError)


@given(st.floats(min_value=1e-300, max_value=1e9))
def test_something_above_zero_never_becomes_zero(seconds: float) -> None:
    assert to_ms(seconds) >= 1
    assert to_ms(timedelta(microseconds=1)) == 1


@given(st.integers(min_value=0, max_value=3 * 10**13))
def test_a_formatted_duration_reads_back_as_itself(ms: int) -> None:
    assert to_ms(format_ms(ms)) == ms


def test_formatting_is_short() -> None:
    assert format_ms(5_400_000) == "1h 30m"
    assert format_ms(250) == "250ms"
    assert format_ms(0) == "0s"
    assert format_ms(-1_000) == "-1s"


def test_a_number_too_long_to_print_is_refused_too() -> None:
    with pytest.raises(InvalidDuration, match="a huge number is longer"):
        to_ms(10**5000)
