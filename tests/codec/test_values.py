"""Values come back equal and of the same type, or are refused at once with the path to the culprit."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import (
    AfterValidator,
)
from pydantic_core import core_schema
from tests.codec.samples import BERLIN, KEPT, REFUSED, Circle, Flat, Hidden, Order, Page, Point, Square, Token

from ironflow.codec.values import Codec, codec_for, encode_any, parse
from ironflow.errors import PayloadRejected, PayloadTooLarge


async def coroutine() -> None:
    """Never runs."""


@pytest.mark.parametrize(("annotation", "value"), KEPT)
def test_a_value_comes_back_equal_and_of_the_same_type(annotation: Any, value: Any) -> None:
    codec = codec_for(annotation)
    text, copy = codec.snapshot(value)
    json.loads(text, parse_constant=pytest.fail)
    assert codec.encode(value) == text
    for back in (copy, codec.decode(text), codec.validate(parse(text)), codec.copy(value)):
        assert back == value or value != value
        assert type(back) is type(value)
        assert codec.encode(back) == text
        if type(value) in (list, dict, set, Page):
            assert back is not value


def test_plain_json_is_stored_as_itself() -> None:
    assert encode_any({"a": [1, 2.5, None, True, "é"], "b": {}}) == '{"a":[1,2.5,null,true,"é"],"b":{}}'
    assert codec_for(Circle).encode(Circle(3)) == '{"r":3}'
    assert encode_any("a\x00b") == '"a\\u0000b"'


def test_what_is_no_plain_json_names_its_kind() -> None:
    assert encode_any(b"x") == '{"$bytes":"eA=="}'
    assert encode_any((1,)) == '{"$tuple":[1]}'
    assert encode_any({1: 2}) == '{"$dict":[[1,2]]}'
    assert encode_any({"$set": 1}) == '{"$dict":[["$set",1]]}'
    assert codec_for(Circle | Square).encode(Square(1)) == '{"$as":["Square",{"r":1}]}'


def test_a_zone_survives_with_its_rules_and_with_both_hours_of_the_night_the_clock_goes_back() -> None:
    codec = codec_for(dt.datetime)
    for fold in (0, 1):
        value = dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)
        back = codec.copy(value)
        assert back.tzinfo is BERLIN
        assert (back.fold, back.utcoffset()) == (fold, value.utcoffset())
    gap = dt.datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)
    assert codec.copy(gap) == gap


def test_a_zone_unknown_here_keeps_the_instant_and_changed_rules_do_too() -> None:
    nowhere = parse('{"$datetime":["2026-01-01T00:00:00+05:00","Nowhere/Land"]}')
    assert nowhere == dt.datetime(2025, 12, 31, 19, tzinfo=dt.UTC)
    changed = parse('{"$datetime":["2026-01-01T00:00:00+05:00","Europe/Berlin"]}')
    assert changed == nowhere
    assert changed.tzinfo is BERLIN


def test_the_text_of_a_set_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from ironflow.codec.values import encode_any\n"
        "print(encode_any([{'a', 'b', 'c', 1, 2.5, (1, 'x')}, frozenset(map(str, range(50)))]))"
    )
    texts = set()
    for seed in ("1", "2", "3"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
        )
        texts.add(done.stdout)
    assert len(texts) == 1


@pytest.mark.parametrize(("annotation", "value", "message"), REFUSED, ids=[case[2] for case in REFUSED])
def test_what_would_not_come_back_is_refused_with_its_path(annotation: Any, value: Any, message: str) -> None:
    with pytest.raises(PayloadRejected) as caught:
        codec_for(annotation).encode(value)
    assert caught.value.message.startswith(message)
    assert caught.value.path == message.split(": ")[0]
    assert caught.value.hint


def test_a_coroutine_is_refused_with_the_advice_to_await_it() -> None:
    forgotten = coroutine()
    with pytest.raises(PayloadRejected, match="Put `await` before the call"):
        encode_any(forgotten)
    forgotten.close()


def test_a_private_attribute_that_would_be_lost_is_refused() -> None:
    hidden = Hidden(a=1)
    hidden._cache = 5
    with pytest.raises(PayloadRejected, match=r"result\._cache: this int would come back changed"):
        codec_for(Hidden).encode(hidden)


def test_a_value_that_contains_itself_or_is_too_deep_is_refused_with_a_short_path() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PayloadRejected, match="contains itself") as caught:
        encode_any(loop)
    assert len(caught.value.path) < 60
    deep: Any = 1
    for _ in range(80):
        deep = (deep,)
    assert codec_for(Any).copy(deep) == deep
    for _ in range(20):
        deep = (deep,)
    with pytest.raises(PayloadRejected, match="nested deeper than 90 levels"):
        encode_any(deep)


def test_a_deep_list_takes_the_thorough_path_and_survives() -> None:
    deep: Any = 1
    for _ in range(85):
        deep = [deep]
    assert codec_for(Any).copy(deep) == deep


@pytest.mark.parametrize("annotation", [Any, str, Token, Flat])
def test_a_value_over_the_limit_is_refused_with_name_size_and_limit(annotation: Any) -> None:
    big = "é" * 600
    value = {Token: Token(big), Flat: Flat(big, 1, 1, True, [], {}, [])}.get(annotation, big)
    codec = codec_for(annotation)
    for call in (codec.encode, codec.snapshot):
        with pytest.raises(PayloadTooLarge) as caught:
            call(value, path="result of fetch", limit=700)
        assert (caught.value.what, caught.value.limit) == ("result of fetch", 700)
        assert caught.value.size == len(codec.encode(value).encode())
    assert codec.encode(value, limit=5000) == codec.encode(value)
    assert codec.snapshot(value, limit=1500)[1] == value
    with pytest.raises(PayloadTooLarge):
        encode_any([b"x" * 600], limit=700)
    assert encode_any([b"x" * 300], limit=700)


def test_the_limit_is_checked_before_a_large_text_is_read_back() -> None:
    with pytest.raises(PayloadTooLarge, match="result takes"):
        codec_for(Page).encode(Page("u" * 600, dt.datetime.now(dt.UTC), raw=b"x"), limit=100)


def test_a_whole_number_may_stand_where_a_float_is_expected() -> None:
    for annotation, value in ((Point, Point(1, 2)), (list[float], [1]), (dict[float, float], {1: 2})):
        back = codec_for(annotation).copy(value)
        assert back == value
    assert codec_for(tuple[float]).copy((3,)) == (3.0,)
    with pytest.raises(PayloadRejected, match="expected float, got int"):
        codec_for(tuple[float]).encode((2**53 + 1,))


def test_a_copy_shares_nothing_with_the_original() -> None:
    value = {"a": [1]}
    copy = codec_for(dict[str, list[int]]).copy(value)
    copy["a"].append(2)
    assert value == {"a": [1]}


def test_stored_text_that_cannot_be_read_is_refused() -> None:
    for text in (
        "{",
        '{"$later":1}',
        '{"$date":3}',
        '{"$bytes":"é"}',
        '{"$tuple":3}',
        '{"$timedelta":["x"]}',
    ):
        with pytest.raises(PayloadRejected, match="stored value: cannot be read"):
            parse(text)


def test_stored_values_that_no_longer_fit_are_refused_with_their_path() -> None:
    with pytest.raises(PayloadRejected, match=r"result\[0\]\.r: field required"):
        codec_for(list[Circle]).decode('[{"x":1}]', path="result")
    with pytest.raises(PayloadRejected, match="value: ZeroDivisionError"):
        codec_for(Annotated[int, AfterValidator(lambda v: 1 // 0)]).decode("1")
    with pytest.raises(PayloadRejected, match="has no stored form"):
        codec_for(threading.Thread).decode("1")


@pytest.mark.parametrize("now", [Circle | Square, Circle, Circle | None, Annotated[Circle, "round"]])
def test_an_object_is_never_read_as_another_class_than_it_was_stored_as(now: Any) -> None:
    with pytest.raises(PayloadRejected, match="stored as Oval, and none of that name"):
        codec_for(now).decode('{"$as":["Oval",{"r":1}]}')
    assert codec_for(now).decode('{"$as":["Circle",{"r":1}]}') == Circle(1)


def test_an_object_that_nothing_is_asked_of_is_plain_data() -> None:
    assert codec_for(Any).decode('{"$as":["Oval",{"r":1}]}') == {"r": 1}


def test_input_from_outside_may_use_aliases_and_iso_dates() -> None:
    assert codec_for(Order).decode('{"no":1,"tags":["a"]}') == Order(no=1, tags={"a"})
    assert codec_for(dt.datetime).decode('"2026-01-01T00:00:00"') == dt.datetime(2026, 1, 1)  # noqa: DTZ001


def test_there_is_one_codec_for_each_annotation_and_the_order_of_a_union_counts() -> None:
    assert codec_for(list[int]) is codec_for(list[int])
    assert codec_for(int | str) is not codec_for(str | int)
    assert isinstance(codec_for(Annotated[int, []]), Codec)
    assert codec_for(Annotated[int, []]).copy(1) == 1


def test_an_equality_that_fails_counts_as_a_difference() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError

        __hash__ = None  # type: ignore[assignment]

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
            return core_schema.no_info_plain_validator_function(
                lambda v: cls(),
                serialization=core_schema.plain_serializer_function_ser_schema(lambda v: "odd"),
            )

    with pytest.raises(PayloadRejected, match="this Odd would come back changed"):
        codec_for(Odd).encode(Odd())


def test_a_class_that_explains_itself_wrongly_is_refused_as_unknown() -> None:
    class Opaque:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> core_schema.CoreSchema:
            return core_schema.is_instance_schema(cls)

    with pytest.raises(PayloadRejected, match="Opaque has no stored form"):
        codec_for(Opaque).encode(Opaque())


def test_an_error_in_a_class_of_the_value_becomes_a_refusal_even_if_its_text_fails() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail(value: int) -> int:
        raise Mute

    with pytest.raises(PayloadRejected, match="result: Mute"):
        codec_for(Annotated[int, AfterValidator(fail)]).encode(1)


def test_a_callable_annotation_is_no_stored_form() -> None:
    with pytest.raises(PayloadRejected, match="a function is code"):
        codec_for(Callable[[int], int]).encode(len)
