"""Cursors: they come back as they were, belong to one query, and refuse everything else."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow.errors import InvalidCursor
from ironflow.server.paging import cursor, position

KEYS = st.tuples(st.integers(-(2**63), 2**63 - 1), st.text().filter(str.isprintable))
QUERIES = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)


@given(KEYS, QUERIES)
def test_a_cursor_comes_back_as_the_key_it_was_made_of(key: tuple[int, str], query: dict[str, object]) -> None:
    assert position(query, cursor(query, key), (int, str)) == list(key)


@given(KEYS, QUERIES, QUERIES)
def test_a_cursor_of_another_query_is_refused(
    key: tuple[int, str], query: dict[str, object], other: dict[str, object]
) -> None:
    if json.dumps(query, sort_keys=True) != json.dumps(other, sort_keys=True):
        with pytest.raises(InvalidCursor, match="another query"):
            position(other, cursor(query, key), (int, str))


@given(st.text() | st.binary().map(lambda raw: base64.urlsafe_b64encode(raw).decode()))
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        position({}, text, (int, str))


@pytest.mark.parametrize("key", [(1,), ("r", 1), (1, "r", 1), (True, "r"), (1.5, "r"), (2**63, "r"), (1, "a\x00b"), ()])
def test_a_key_of_another_form_is_refused(key: tuple[int | str, ...]) -> None:
    with pytest.raises(InvalidCursor):
        position({}, cursor({}, key), (int, str))


def test_no_cursor_is_the_first_page() -> None:
    assert position({}, None, (int, str)) is None


def test_a_deep_or_endless_cursor_is_refused() -> None:
    deep = base64.urlsafe_b64encode(b"[" * 1_000).decode()
    for text in (deep, "A" * 1_000_000):
        with pytest.raises(InvalidCursor):
            position({}, text, (int,))
