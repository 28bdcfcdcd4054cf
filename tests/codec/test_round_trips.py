"""Any value the codec accepts comes back as it was: Hypothesis looks for one that does not."""

from __future__ import annotations

import datetime as dt
import json
import math
import string
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from ironflow.codec.exceptions import decode_error, encode_error
from ironflow.codec.fidelity import check_same
from ironflow.codec.plain import is_plain
from ironflow.codec.tags import Packer, Refused, revive
from ironflow.codec.values import _plain_text, codec_for, encode_any, parse
from ironflow.errors import PayloadRejected

TAGS = ["$bytes", "$tuple", "$dict", "$set", "$as", "$float", "$nonsense", "$"]
text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    [*TAGS, "NaN", "Infinity"]
)
keys = st.text(alphabet=string.ascii_letters + "$é", max_size=3) | st.sampled_from(TAGS)
json_leaf = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
)
json_value = st.recursive(
    json_leaf,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
naive = st.datetimes() | st.datetimes(timezones=st.timezones())
hashable = (
    json_leaf
    | st.binary(max_size=5)
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
)
leaf = hashable | naive | st.times() | st.complex_numbers(allow_nan=False)
nested_key = st.recursive(
    hashable, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4
)
value = st.recursive(
    leaf,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.sets(hashable, max_size=4)
        | st.dictionaries(keys | nested_key, inner, max_size=4)
    ),
    max_leaves=12,
)


@given(value)
def test_every_untyped_value_comes_back_equal_and_of_the_same_type(original: Any) -> None:
    stored = encode_any(original)
    json.loads(stored)
    back = parse(stored)
    check_same(original, back)
    assert original == back
    assert encode_any(back) == stored


@given(json_value)
def test_json_is_stored_as_the_same_json_whichever_path_it_takes(original: Any) -> None:
    stored = encode_any(original)
    thorough = json.dumps(Packer().pack(original), ensure_ascii=False, separators=(",", ":"))
    assert json.loads(stored) == json.loads(thorough)
    assert revive(json.loads(stored)) == original
    quick = _plain_text(original) if is_plain(original) else None
    assert quick is None or quick == stored


@given(json_value)
def test_user_data_that_looks_like_a_tag_is_still_user_data(original: Any) -> None:
    for tag in TAGS:
        assert parse(encode_any({tag: original})) == {tag: original}
        assert parse(encode_any([{"a": {tag: original}}])) == [{"a": {tag: original}}]


@given(value, value)
def test_a_difference_in_value_or_type_is_always_noticed(a: Any, b: Any) -> None:
    try:
        check_same(a, b)
    except Refused:
        return
    assert a == b


def _parts(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [tree, *(part for pair in tree.items() for side in pair for part in _parts(side))]
    if isinstance(tree, (list, tuple)):
        return [tree, *(part for item in tree for part in _parts(item))]
    return [tree, *_parts(list(tree))] if isinstance(tree, (set, frozenset)) else [tree]


@given(st.recursive(st.floats() | text, lambda inner: st.lists(inner, max_size=3), max_leaves=5))
def test_untyped_infinities_and_nan_are_refused_and_nothing_else_is(original: Any) -> None:
    finite = all(math.isfinite(part) for part in _parts(original) if isinstance(part, float))
    try:
        encode_any(original)
    except PayloadRejected:
        assert not finite
    else:
        assert finite


@dataclass
class Flat:
    name: str
    count: int
    rate: float
    tags: list[str]
    more: dict[str, Any]


@dataclass
class Rich:
    at: dt.datetime | dt.date
    price: Decimal
    raw: bytes | None
    kinds: set[int] | frozenset[str]
    inner: list[Flat] | tuple[Flat, ...]
    any: Any


flats = st.builds(Flat, name=text, count=st.integers(), rate=st.floats(), tags=st.lists(text, max_size=3),
                  more=st.dictionaries(keys, json_value, max_size=3))  # fmt: skip
riches = st.builds(
    Rich, at=naive | st.dates(), price=st.decimals(allow_nan=False, allow_infinity=False),
    raw=st.none() | st.binary(max_size=5), kinds=st.sets(st.integers()) | st.frozensets(text),
    inner=st.lists(flats, max_size=2) | st.tuples(flats), any=value,
)  # fmt: skip


@given(flats)
def test_dataclasses_of_plain_parts_come_back(original: Flat) -> None:
    codec = codec_for(Flat)
    stored, back = codec.snapshot(original)
    check_same(original, back)
    assert json.loads(stored) == json.loads(json.dumps(Packer(typed=True).pack(original)))


@given(riches)
def test_dataclasses_of_rich_parts_come_back(original: Rich) -> None:
    codec = codec_for(Rich)
    stored, back = codec.snapshot(original)
    check_same(original, back)
    assert codec.encode(codec.decode(stored)) == stored


@given(st.text(), st.lists(value, max_size=3), st.dictionaries(st.text(max_size=5), value, max_size=3))
def test_every_exception_can_be_recorded_and_raised_again(
    message: str, args: list[Any], state: dict[str, Any]
) -> None:
    original = ValueError(message, *args)
    original.__dict__.update(state)
    back = decode_error(parse(encode_error(original)))
    assert type(back) is ValueError
    assert back.args == original.args
    assert {**back.__dict__} == state
