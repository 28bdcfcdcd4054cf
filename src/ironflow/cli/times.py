"""Times as people and programs read them: "12s ago" on a screen, milliseconds and ISO 8601 in JSON."""

from __future__ import annotations

from datetime import UTC, datetime

_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def iso(ms: int | None) -> str | None:
    """A time as ISO 8601 in UTC, to the millisecond."""
    if ms is None:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def clock(ms: int) -> str:
    """The local time of day, to the millisecond: for lines that follow one another within minutes."""
    return datetime.fromtimestamp(ms / 1000).astimezone().strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def span(ms: int) -> str:
    """A length of time in at most two units: "850ms", "3.2s", "4m 10s", "2d 3h"."""
    if ms < 1_000:
        return f"{max(ms, 0)}ms"
    if ms < 10_000:
        return f"{ms / 1000:.1f}s"
    for i, (size, unit) in enumerate(_STEPS):
        if ms >= size:
            count, rest = divmod(ms, size)
            below = _STEPS[i + 1] if i + 1 < len(_STEPS) else None
            second = rest // below[0] if below else 0
            return f"{count}{unit} {second}{below[1]}" if below and second else f"{count}{unit}"
    raise AssertionError("every length is at least a second here")


def ago(ms: int | None, now: int) -> str:
    """A time as seen from now: "12s ago", "in 5m"; "" where there is none."""
    if ms is None:
        return ""
    if abs(now - ms) < 500:
        return "now"
    return f"in {_coarse(ms - now)}" if ms > now else f"{_coarse(now - ms)} ago"


def _coarse(ms: int) -> str:
    for size, unit in _STEPS:
        if ms >= size:
            return f"{ms // size}{unit}"
    return f"{ms}ms"
