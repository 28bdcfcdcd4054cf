"""Pages of a list: where the next one begins, as a text that the caller passes back.

Owns the cursor. Promises that a list read page by page misses nothing and repeats nothing that was there throughout,
however many rows are added meanwhile: a cursor is the key of the last row seen and not a number of rows. It names the
query it belongs to, so passing it to another one is refused instead of answering from somewhere in the middle. It gives
no rights: what a caller may see is decided anew for each page.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ironflow.errors import InvalidCursor

#: Longest cursor that is looked at, in characters; ours are shorter, since ids have at most 200.
LONGEST = 2_000
#: What a database can hold as a whole number.
_NUMBERS = range(-(1 << 63), 1 << 63)


def cursor(query: Mapping[str, Any], last: Sequence[int | str]) -> str:
    """The place behind a row.

    Args:
        query: what was asked, without limit and cursor.
        last: the key of the last row of the page.
    """
    text = json.dumps([_digest(query), *last], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def position(query: Mapping[str, Any], text: str | None, kinds: Sequence[type[int] | type[str]]) -> list[Any] | None:
    """The key that `cursor` was made of; None for the first page.

    Args:
        query: what is asked, without limit and cursor.
        text: what the caller passed back.
        kinds: the types of the parts of the key.

    Raises:
        InvalidCursor: it is no cursor, or one of another query.
    """
    if text is None:
        return None
    digest, *last = _parts(text)
    if digest != _digest(query):
        raise InvalidCursor("this cursor belongs to another query")
    if [type(part) for part in last] != list(kinds) or not all(map(_storable, last)):
        raise InvalidCursor("this is no cursor")
    return last


def _parts(text: str) -> list[Any]:
    try:
        if len(text) > LONGEST:
            raise ValueError("longer than any cursor")
        content = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        found = json.loads(content)
    except (ValueError, binascii.Error, RecursionError) as error:
        raise InvalidCursor("this is no cursor") from error
    if not isinstance(found, list) or not found:
        raise InvalidCursor("this is no cursor")
    return found


def _storable(part: int | str) -> bool:
    return part in _NUMBERS if isinstance(part, int) else part.isprintable()


def _digest(query: Mapping[str, Any]) -> str:
    text = json.dumps(query, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
