"""Identifiers: how they are formed, and what may appear in one.

Owns the one check of every name that comes from outside (run ids, keys, labels, groups, tags) and the one text form of
a worker's tags. Promises that what passed can be shown on a terminal, stored by both databases, and split again.

Pure: time and randomness come in as arguments, so a simulation makes the same ids from the same seed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ironflow.errors import InvalidInput
from ironflow.model.scope import DEFAULT, Scope

#: Longest name of a workflow or step, run id, key, group or key of a label, in characters. PostgreSQL indexes no row of
#: more than 2,704 bytes: three such names in UTF-8 fit into one, or two of them with a version and the tags of a route.
LONGEST_NAME = 200
#: Longest version of a workflow, in characters.
LONGEST_VERSION = 64
#: Longest value of a label, in characters.
LONGEST_LABEL = 1_000
#: Longest status of a run, and longest reason for which a step is skipped, in characters: each is one line in a list.
LONGEST_STATUS = 1_000
#: Longest warning of a workflow, in characters.
LONGEST_WARNING = 10_000
#: Longest definition of a workflow that a worker declares, as JSON, in characters.
LONGEST_DEFINITION = 1_048_576
#: Most labels of one run.
MOST_LABELS = 64
#: Most groups of one run.
MOST_GROUPS = 32
#: Most tags one workflow or run may ask of a worker, and how long they may be together.
MOST_TAGS, LONGEST_TAGS = 32, 700

#: Random bits of a time-ordered id, and how many of them the distance of two ids of one millisecond has.
_RANDOM_BITS, _STEP_BITS = 74, 48
_FALLS_BACK_MS = 1_000

#: What the API calls parts of a run, in the last place of an address: no id may end so behind a slash, for its own
#: address would be that of a part of another run.
RUN_PARTS = frozenset(
    {"cancel", "events", "fork", "journal", "owner", "pause", "replay", "resume", "retry", "steps", "why"}
)
#: What an address says of the way, and not of a place: clients and proxies take it out of a path.
_DOTS = frozenset({".", ".."})

#: The form of a tag.
TAG_FORM = r"[A-Za-z0-9_.:/=-]{1,64}"
_TAG = re.compile(TAG_FORM, re.ASCII)
_BETWEEN = "\x1f"
#: Behind the organisation and the environment of a route that is not of the default scope.
_SCOPED = "\x1e"
#: Two spaces that people type and Python does not call printable: no-break and ideographic.
_SPACES = {0x00A0: " ", 0x3000: " "}


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


class InOrder:
    """Makes such ids for one process, each above the one before: runs started in one millisecond keep their order.

    Within a millisecond, and while a clock falls back by less than a second, the number grows by a random amount (RFC
    9562, 6.2, method 2): nobody can tell the next id, and two threads or a fork that begin at the same one differ. A
    clock that falls back further was wrong before, and is followed.

    Args:
        chance: gives as many random bits as it is asked for.
    """

    def __init__(self, chance: Callable[[int], int]) -> None:
        self._chance = chance
        self._last = 0

    def __call__(self, now_ms: int) -> str:
        """The next id, for a time in milliseconds since 1970."""
        if 0 <= (self._last >> _RANDOM_BITS) - now_ms < _FALLS_BACK_MS:
            made = self._last + 1 + self._chance(_STEP_BITS)
        else:
            made = now_ms << _RANDOM_BITS | self._chance(_RANDOM_BITS)
        self._last = made
        return time_ordered(made >> _RANDOM_BITS, made & (1 << _RANDOM_BITS) - 1)


def idempotency_key(run_id: str, step_id: str, attempt: int) -> str:
    """The key a step hands to the outside world: sha256, hex, of `run_id|step_id|attempt`.

    It is a one-way hash of identifiers alone, so it may be logged and sent: it holds no input and no secret.
    `|` separates the parts and is therefore refused in step names.
    """
    return hashlib.sha256(f"{run_id}|{step_id}|{attempt}".encode()).hexdigest()


def call_key(run_id: str, step_id: str, generation: int = 1) -> str:
    """The key of a call, whatever its try: sha256, hex, of `run_id|step_id`. For who must act once per call.

    A restart executes calls anew, often after they were undone: `|restart N` follows, N the attempt that restarted.
    """
    restart = f"|restart {generation}" if generation > 1 else ""
    return hashlib.sha256(f"{run_id}|{step_id}{restart}".encode()).hexdigest()


def token_hash(token: str) -> str:
    """What is stored of a lease token: reading the database does not give the right to write a journal."""
    return hashlib.sha256(token.encode()).hexdigest()[:32]


def seed_of(run_id: str, attempt: int) -> int:
    """The seed of a run's `ctx.random` and `ctx.uuid4`: it follows from the run, so replay draws the same numbers."""
    return int.from_bytes(hashlib.sha256(f"seed|{run_id}|{attempt}".encode()).digest()[:8], "big")


def check_text(text: object, what: str, longest: int = LONGEST_NAME, *, empty: bool = False) -> str:
    """Give a text back, but refuse one that could not be stored, found again, or shown on a line of its own.

    Args:
        text: what a caller gave.
        what: how the error calls it, such as "the idempotency key".
        longest: the bound on its length, in characters.
        empty: whether it may be empty.

    Raises:
        InvalidInput: it is no text, is empty or too long, or holds a character that is not printable: a NUL (which
            PostgreSQL cannot store), a line break or an escape (which would rewrite the terminal of whoever lists
            runs), half a surrogate pair (which is no UTF-8).
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be text, not {type(text).__name__}", hint="")
    check_length(text, what, longest)
    if not text and not empty:
        raise InvalidInput(f"{what} is empty", hint="Give it a text, or leave it out.")
    if not text.isprintable() and not text.translate(_SPACES).isprintable():
        raise InvalidInput(f"{what} {text!r} holds a character that is not printable", hint="Give printable text.")
    return text


def check_run_id(text: object, what: str = "id") -> str:
    """Give the id of a run back, but refuse one that its own address does not lead to.

    Raises:
        InvalidInput: as `check_text` says; or one of its parts between slashes is `.` or `..`; or the last of them is
            what the API calls a part of a run.
    """
    found = check_text(text, what)
    parts = found.split("/")
    if not _DOTS.isdisjoint(parts):
        hint = "Clients and proxies take `.` and `..` out of an address. Choose another id."
        raise InvalidInput(f"{what} {found!r} has a part that is {min(_DOTS.intersection(parts))!r}", hint=hint)
    if len(parts) > 1 and parts[-1] in RUN_PARTS:
        hint = f"The API calls a part of a run `{parts[-1]}`. Choose an id that does not end so."
        raise InvalidInput(f"{what} {found!r} has an address that means something else", hint=hint)
    return found


def check_length(text: str, what: str, longest: int) -> str:
    """Give a text back that may hold any characters, but not more than so many.

    Raises:
        InvalidInput: it is longer.
    """
    if len(text) > longest:
        raise InvalidInput(f"{what} is {len(text):,} characters long; {longest:,} is the most", hint="")
    return text


def tags_of(tags: Iterable[str], what: str = "worker_tags") -> tuple[str, ...]:
    """Tags in the order they were given, each once.

    Args:
        tags: what a caller gave.
        what: how the error calls them.

    Raises:
        InvalidInput: one is not 1–64 of ASCII letters, digits and `- _ . : / =`, or there are more than 32 of them, or
            more than 700 characters. So narrow an alphabet leaves every separator free: the comma of a setting, the
            space of a list, and the one the database uses.
    """
    if isinstance(tags, str):  # tuple("gpu") would be three tags
        raise InvalidInput(f"{what} must be a sequence of names, not the text {tags!r}", hint=f"Write [{tags!r}].")
    found: tuple[Any, ...] = tuple(dict.fromkeys(tags))
    for tag in found:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            hint = "A tag is 1 to 64 ASCII letters, digits or any of - _ . : / ="
            raise InvalidInput(f"{what}: {tag!r} is no tag", hint=hint)
    if len(found) > MOST_TAGS or len(join_tags(found)) > LONGEST_TAGS:
        raise InvalidInput(
            f"{what}: {len(found)} tags are too many",
            hint=f"At most {MOST_TAGS} tags, and {LONGEST_TAGS:,} characters in all.",
        )
    return found


def join_tags(tags: Iterable[str]) -> str:
    """Checked tags as one text, sorted and each once, for the database; "" for none."""
    return _BETWEEN.join(sorted(set(tags)))


def split_tags(text: str | None) -> tuple[str, ...]:
    """What `join_tags` was given."""
    return tuple(text.split(_BETWEEN)) if text else ()


class Route(NamedTuple):
    """A routing class, taken apart: what a worker must have to take the runs of it, and whose they are."""

    workflow: str
    version: str
    tags: frozenset[str]
    scope: Scope = DEFAULT


def route_of(workflow: str, version: str, tags: Iterable[str] = (), scope: Scope = DEFAULT) -> str:
    """The routing class of a run: its workflow, the version that created it, and the tags it requires.

    Workers claim per class they can serve. The version is part of it so that, while a new one is rolled out, each run
    goes to a worker whose code continues it, and waits where there is none. So is the scope, unless it is the default
    one: whoever asks by route is never given a run of another organisation.
    """
    parts = (workflow, version, join_tags(tags)) if tags else (workflow, version)
    route = _BETWEEN.join(parts)
    return route if scope == DEFAULT else _SCOPED.join((*scope, route))


def join_routes(routes: Iterable[str]) -> str:
    """Several routing classes as one text, for the row of the session that serves them."""
    return "\n".join(routes)


def split_routes(text: str) -> list[str]:
    """What `join_routes` was given."""
    return [route for route in text.split("\n") if route]


def split_route(route: str) -> Route:
    """The parts of a routing class."""
    *scope, rest = route.split(_SCOPED)
    workflow, *parts = rest.split(_BETWEEN)
    return Route(workflow, parts[0] if parts else "", frozenset(parts[1:]), Scope(*scope) if scope else DEFAULT)
