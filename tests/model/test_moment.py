"""Times at the ends of the calendar: what cannot be shown is refused, and what is stored all the same is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow.engine import views
from ironflow.engine.declared import Declared
from ironflow.engine.starting import new_run
from ironflow.errors import InvalidInput
from ironflow.model import moment


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_any_number_of_milliseconds_has_a_text(ms: int) -> None:
    text = views.iso(ms)
    assert text is not None
    assert datetime.fromisoformat(text).tzinfo is not None
    assert moment.local(ms).tzinfo is not None


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_time_is_read_to_the_millisecond_and_shown_as_that(at: datetime) -> None:
    ms = moment.ms_of(at)
    assert moment.utc(ms) == at.replace(microsecond=at.microsecond // 1_000 * 1_000)
    assert moment.check_shown(ms, "at") == ms


def test_the_ends_of_the_calendar() -> None:
    assert views.iso(moment.LATEST_MS) == "9999-12-31T23:59:59.999Z"
    assert views.iso(moment.LATEST_MS + 1) == "9999-12-31T23:59:59.999Z"
    assert views.iso(moment.EARLIEST_MS) == "0001-01-01T00:00:00.000Z"
    assert views.iso(None) is None


@pytest.mark.parametrize("option", ["at", "deadline"])
@pytest.mark.parametrize(
    "at",
    [
        datetime(9999, 12, 31, 23, 59, tzinfo=timezone(-timedelta(hours=12))),
        datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    ],
)
def test_a_start_refuses_a_time_that_could_not_be_shown(option: str, at: datetime) -> None:
    spec = Declared({"name": "order", "version": "1", "worker_tags": "", "definition": None})
    with pytest.raises(InvalidInput, match=f"{option} is outside the years 1 to 9999") as refused:
        new_run(spec, None, {option: at}, 0, 1_000)  # type: ignore[misc]
    assert refused.value.details["errors"][0]["at"] == option


def test_the_last_millisecond_of_the_calendar_is_a_time_to_start_at() -> None:
    endless = '{"timeout_ms": 9007199254740992}'
    spec = Declared({"name": "order", "version": "1", "worker_tags": "", "definition": endless})
    row, _, _ = new_run(spec, None, {"at": datetime.max.replace(tzinfo=UTC)}, 1, 1_000)
    assert row.scheduled_at == moment.LATEST_MS
    assert row.deadline_at == moment.LATEST_MS  # of a workflow that may take longer than there are years
