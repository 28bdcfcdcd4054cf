"""Times as people are shown them: between the first and the last millisecond of the calendar, in UTC.

Everything inside counts whole milliseconds since 1970, of which there are far more than the calendar has names for. A
time that comes from outside is checked here before it is stored, so that no list ever meets one that cannot be shown;
and what is stored all the same (by a clock that was wrong, or an older release) is shown as the end of the calendar.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from ironflow.errors import InvalidInput

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
#: The ends of the calendar, milliseconds since 1970: the first of year 1 and the last of year 9999.
EARLIEST_MS: Final = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MS
LATEST_MS: Final = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MS


def ms_of(at: datetime) -> int:
    """An aware time in whole milliseconds since 1970, exactly: not `timestamp()`, which rounds, and has no years at the
    ends of the calendar. It may lie outside of it by the offset of its zone; see `check_shown`.
    """
    # Subtracting without converting to UTC: what lies beyond the calendar there has a distance, too.
    offset = at.utcoffset() or timedelta()
    return (at.replace(tzinfo=UTC) - _EPOCH - offset) // _MS


def check_shown(ms: int, what: str) -> int:
    """Give a time back, but refuse one that could not be shown.

    Raises:
        InvalidInput: in UTC it is before year 1 or after year 9999.
    """
    if not EARLIEST_MS <= ms <= LATEST_MS:
        raise InvalidInput(f"{what} is outside the years 1 to 9999 in UTC", hint="Give a time within them.")
    return ms


def utc(ms: int) -> datetime:
    """A time in UTC; the end of the calendar for what lies beyond it."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, EARLIEST_MS), LATEST_MS))


def iso(ms: int) -> str:
    """The same as ISO 8601, to the millisecond."""
    seconds, rest = divmod(min(max(ms, EARLIEST_MS), LATEST_MS), 1000)
    return f"{_second(seconds)}.{rest:03d}Z"


@lru_cache(maxsize=1_024)
def _second(seconds: int) -> str:
    # What is shown together lies close together: a page of events has few seconds and many milliseconds.
    return (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()


def local(ms: int) -> datetime:
    """A time in the zone of this computer. The calendar is a day shorter at either end: so every zone has it."""
    day = 86_400_000
    return utc(min(max(ms, EARLIEST_MS + day), LATEST_MS - day)).astimezone()
