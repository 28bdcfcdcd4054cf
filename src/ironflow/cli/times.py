"""Times as people read them: "12s ago", "4m 10s", the local time of day."""

from __future__ import annotations

from ironflow.model import moment as moments

#: Below this, ms, a part of a second counts.
_CLOSE = 10_000
_STEPS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s"))


def clock(ms: int) -> str:
    """The local time of day, to the millisecond: for lines that follow one another within minutes."""
    return moments.local(ms).strftime("%H:%M:%S.") + f"{ms % 1000:03d}"


def moment(ms: int, beside: int) -> str:
    """A local time for a line that shows the time of day of another one: with its date, unless it is the same day's."""
    day, other = (moments.local(at).date() for at in (ms, beside))
    return clock(ms) if day == other else f"{day.isoformat()} {clock(ms)}"


def span(ms: int) -> str:
    """A length of time in at most two units: "850ms", "3.2s", "4m 10s", "2d 3h"."""
    if ms < 1_000:
        return f"{max(ms, 0)}ms"
    if ms < _CLOSE:
        return f"{ms / 1000:.1f}s"
    for i, (size, unit) in enumerate(_STEPS):
        if ms >= size:
            count, rest = divmod(ms, size)
            below = _STEPS[i + 1] if i + 1 < len(_STEPS) else None
            second = rest // below[0] if below else 0
            return f"{count}{unit} {second}{below[1]}" if below and second else f"{count}{unit}"
    raise AssertionError("every length is at least a second here")


def ago(ms: int | None, now: int) -> str:
    """A time as seen from now: "12s ago", "just now", "in 5m", "in 300ms"; "" where there is none.

    What lies behind is told in whole units that have passed; what lies ahead in the nearest number of them, so that
    `--at +10m` reads "in 10m" a moment later, too, and what is close as a span: somebody waits for it.
    """
    if ms is None:
        return ""
    if ms > now:
        return f"in {span(ms - now) if ms - now < _CLOSE else _nearest(ms - now)}"
    return f"{_passed(now - ms)} ago" if now - ms >= 1_000 else "just now"


def _passed(ms: int) -> str:
    size, unit = next((size, unit) for size, unit in _STEPS if ms >= size)
    return f"{ms // size}{unit}"


def _nearest(ms: int) -> str:
    for (size, unit), (above, _) in zip(reversed(_STEPS), reversed(_STEPS[:-1]), strict=False):
        count = (ms + size // 2) // size
        if count * size < above:
            return f"{count}{unit}"
    size, unit = _STEPS[0]
    return f"{(ms + size // 2) // size}{unit}"
