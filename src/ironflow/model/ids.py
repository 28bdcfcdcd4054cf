"""Identifiers: how they are formed, and what may appear in one.

Pure: time and randomness come in as arguments, so a simulation makes the same ids from the same seed.
"""

from __future__ import annotations

import hashlib


def time_ordered(now_ms: int, randomness: int) -> str:
    """A UUID of version 7, text form: sorts by time of creation, which keeps the journal's tree growing at one end.

    Args:
        now_ms: milliseconds since 1970 (48 bits are kept).
        randomness: 74 random bits.
    """
    value = (now_ms & 0xFFFF_FFFF_FFFF) << 80 | 0x7000 << 64 | 0x8000_0000_0000_0000
    value |= (randomness >> 62 & 0xFFF) << 64 | randomness & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def idempotency_key(run_id: str, step_id: str, attempt: int) -> str:
    """The key a step hands to the outside world: sha256, hex, of `run_id|step_id|attempt`.

    It is a one-way hash of identifiers alone, so it may be logged and sent: it holds no input and no secret.
    `|` separates the parts and is therefore refused in step names.
    """
    return hashlib.sha256(f"{run_id}|{step_id}|{attempt}".encode()).hexdigest()


def token_hash(token: str) -> str:
    """What is stored of a lease token: reading the database does not give the right to write a journal."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def seed_of(run_id: str, attempt: int) -> int:
    """The seed of a run's `ctx.random` and `ctx.uuid4`: it follows from the run, so replay draws the same numbers."""
    return int.from_bytes(hashlib.sha256(f"seed|{run_id}|{attempt}".encode()).digest()[:8], "big")


def route_of(workflow: str, tags: tuple[str, ...]) -> str:
    """The routing class of a run: its workflow and the tags it requires. Workers claim per class they can serve."""
    return "\x1f".join((workflow, *sorted(set(tags))))


def split_route(route: str) -> tuple[str, frozenset[str]]:
    """The workflow and the required tags of a routing class."""
    workflow, *tags = route.split("\x1f")
    return workflow, frozenset(tags)
