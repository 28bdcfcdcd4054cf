"""Equal values are the same however their keys were ordered, and nothing else is."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow.codec.unordered import same
from ironflow.codec.values import encode_any

_KEYS = st.one_of(st.text(max_size=3), st.integers(0, 9), st.tuples(st.integers(0, 9), st.text(max_size=1)))
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), _FLOATS, st.text(max_size=5))
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=4), max_leaves=20
)


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same, with the keys of every dict in some order."""
    if isinstance(value, list):
        return [shuffled(one, chance) for one in value]
    if isinstance(value, dict):
        pairs = list(value.items())
        chance.shuffle(pairs)
        return {key: shuffled(one, chance) for key, one in pairs}
    return value


@given(_VALUES, st.randoms())
def test_the_order_of_keys_makes_no_difference(value: Any, chance: random.Random) -> None:
    assert same(encode_any(value), encode_any(shuffled(value, chance)))


@given(_VALUES, _VALUES)
def test_different_values_are_not_the_same(one: Any, other: Any) -> None:
    stored, found = encode_any(one), encode_any(other)
    if not same(stored, found):
        return
    assert one == other
    assert sorted(stored) == sorted(found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1,2]", "[2,1]"),
        ('{"a":1}', '{"b":1}'),
        ('{"a":[{"b":1,"c":2}]}', '{"a":[{"b":2,"c":1}]}'),
        ("[1]", "[9]"),
        ('{"a":1.0,"b":"1"}', '{"a":"1","b":1.0}'),
        ('{"a":true,"b":1111}', '{"a":1111,"b":true}'),
        ('{"$tuple":[1,2]}', '{"$tuple":[2,1]}'),
    ],
)
def test_what_is_different_is_told_apart(one: str, other: str) -> None:
    assert not same(one, other)


def test_to_python_equal_numbers_and_truths_are_not_the_same() -> None:
    assert not same("[1,true]", "[true,1]")
    assert not same('{"a":1.0}', '{"a":1.5}')
    assert not same('{"a":true,"b":1}', '{"b":true,"a":1}')
