"""Lengths of time as people write them, turned into whole milliseconds.

Everything inside the engine counts integer milliseconds: they compare exactly, survive every database and JSON reader,
and never depend on the rounding of floats. Authors and operators write `90`, `"1h30m"` or a timedelta; this module is
the only place where one becomes the other.
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal
from typing import Final

from ironflow.errors import InvalidDuration

Duration = float | int | str | timedelta
"""Seconds as a number, text such as "30s" or "1h30m", or a timedelta."""

_UNITS: Final = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PART: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|[wdhms])\s*", re.ASCII)
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_LONGEST_MS: Final = 1_000 * 365 * 86_400_000  # a thousand years: what is due then still has a date


def to_ms(duration: Duration, *, name: str = "duration") -> int:
    """Return a length of time in whole milliseconds.

    Fractions are rounded to the nearest millisecond, but something above zero never becomes zero: a very short
    timeout must not turn into "no timeout".

    Args:
        duration: seconds, "30s" "5m" "7d" "250ms" "1h30m" ("90" is seconds too), or a timedelta.
        name: what the value is for; the error names it.

    Raises:
        InvalidDuration: negative, NaN, infinite, empty, too long, or not a length of time at all.
    """
    if isinstance(duration, str):
        ms = _text_ms(duration, name)
    elif isinstance(duration, timedelta):
        ms = Decimal(duration // timedelta(microseconds=1)) / 1000
    elif isinstance(duration, float):
        if not math.isfinite(duration):
            raise _invalid(name, duration, "is not a finite number")
        ms = Decimal(repr(duration)) * 1000  # repr: 0.29 means 290 ms, not 289.99...
    elif type(duration) is int:  # True would be a second
        ms = Decimal(duration) * 1000
    else:
        raise _invalid(name, duration, f"is a {type(duration).__name__}, not a length of time")
    if ms < 0:
        raise _invalid(name, duration, "is negative")
    if ms > _LONGEST_MS:
        raise _invalid(name, duration, "is longer than 1,000 years")
    return max(round(ms), 1) if ms else 0


def format_ms(ms: int) -> str:
    """Return milliseconds as people read them: "1h 30m", "250ms", "0s". `to_ms` reads it back exactly."""
    if ms < 0:
        return f"-{format_ms(-ms)}"
    parts = []
    for unit, size in _UNITS.items():
        if unit != "w":  # "7d" is easier to compare with a setting than "1w"
            count, ms = divmod(ms, size)
            if count:
                parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def _text_ms(text: str, name: str) -> Decimal:
    stripped = text.strip().lower()
    if not stripped:
        raise _invalid(name, text, "is empty")
    if _NUMBER.fullmatch(stripped):
        return Decimal(stripped) * 1000
    position, total = 0, Decimal(0)
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            what = "is negative" if stripped.startswith("-") else "is not a length of time"
            raise _invalid(name, text, what)
        total += Decimal(part[1]) * _UNITS[part[2]]
        position = part.end()
    return total


def _invalid(name: str, value: object, what: str) -> InvalidDuration:
    # Python refuses to print integers of more than some thousand digits.
    shown = repr(value) if type(value) is not int or value.bit_length() < 256 else "a huge number"
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    return InvalidDuration(f"{name}: {shown} {what}", details={"name": name})
