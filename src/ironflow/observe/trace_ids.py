"""Ids of traces and spans that follow from the run: every process makes the same ones, without asking another.

A run is one trace, named by its run id. Each of its `execution_seq` is one span (a segment, or the moment in which
somebody took the run away), named by run id and number, so the next owner can link to the one before it although that
one is dead. Number 0 is the run's creation. The run itself, from creation to end, is the span at the root.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


def trace_of(run_id: str) -> int:
    """The trace of a run, 128 bits."""
    return int.from_bytes(_digest(f"trace|{run_id}")[:16], "big") or 1


def root_of(run_id: str) -> int:
    """The span of the run itself, 64 bits."""
    return int.from_bytes(_digest(f"root|{run_id}")[:8], "big") or 1


def span_of(run_id: str, execution_seq: int) -> int:
    """The span of one execution of a run, 64 bits."""
    return int.from_bytes(_digest(f"span|{run_id}|{execution_seq}")[:8], "big") or 1


class Caller(NamedTuple):
    """Where a caller was: the span that a `traceparent` names."""

    trace_id: int
    span_id: int
    flags: int


def caller_of(traceparent: str | None) -> Caller | None:
    """Read a `traceparent` header (W3C Trace Context, level 1). None where it is none: tracing refuses nobody's run."""
    found = _TRACEPARENT.fullmatch((traceparent or "").strip().lower())
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace, 16) or not int(span, 16):
        return None
    return Caller(int(trace, 16), int(span, 16), int(flags, 16))


def _digest(text: str) -> bytes:
    return hashlib.sha256(f"ironflow|{text}".encode()).digest()
