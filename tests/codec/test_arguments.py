"""Arguments: one text for one call however it is written, copies for the body, clear errors."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from ironflow.codec.arguments import Arguments, digest, result_codec
from ironflow.errors import InvalidInput, PayloadRejected, PayloadTooLarge

if TYPE_CHECKING:
    from somewhere import Unknown


@dataclass
class Order:
    id: int
    price: Decimal = Decimal(0)


def nothing() -> None: ...
def one(name: str) -> int: ...  # type: ignore[empty-body]
def charge(order: Order, amount: int = 1, *, dry: bool = False) -> Order: ...  # type: ignore[empty-body]
def named(*, order: Order) -> None: ...
def loose(first, *rest: Order, **more: Order): ...  # type: ignore[no-untyped-def]
def unresolved(a: Unknown, b: Order) -> Unknown: ...
def position_only(a: int, /, b: int = 2, c: int = 3) -> None: ...
def with_connection(conn: Unknown, order: Order) -> None: ...


class Callable_:  # noqa: N801
    def __call__(self, order: Order) -> Order: ...  # type: ignore[empty-body]

    def method(self, order: Order) -> Order: ...  # type: ignore[empty-body]


ORDER = Order(7, Decimal("1.10"))


@pytest.mark.parametrize(("fn", "args", "kwargs", "tree"), [
    (nothing, (), {}, []),
    (one, ("x",), {}, ["x"]),
    (one, (), {"name": "x"}, ["x"]),
    (charge, (Order(1),), {}, [{"id": 1, "price": {"$decimal": "0"}}]),
    (charge, (), {"amount": 3, "order": Order(1)}, [{"id": 1, "price": {"$decimal": "0"}}, 3]),
    (charge, (Order(1),), {"dry": True}, {"args": [{"id": 1, "price": {"$decimal": "0"}}],
                                            "kwargs": [["dry", True]]}),
    (position_only, (1,), {"c": 5}, {"args": [1], "kwargs": [["c", 5]]}),
    (loose, (1,), {}, [1]),
    (loose, (1, Order(2)), {"$x": Order(3)}, {"args": [1, {"id": 2, "price": {"$decimal": "0"}}],
                                               "kwargs": [["$x", {"id": 3, "price": {"$decimal": "0"}}]]}),
    (unresolved, ({"any": 1}, ORDER), {}, [{"any": 1}, {"id": 7, "price": {"$decimal": "1.10"}}]),
    (Callable_(), (Order(1),), {}, [{"id": 1, "price": {"$decimal": "0"}}]),
    (Callable_().method, (Order(1),), {}, [{"id": 1, "price": {"$decimal": "0"}}]),
    (functools.partial(charge, amount=2), (Order(1),), {}, [{"id": 1, "price": {"$decimal": "0"}}]),
    (dict, (), {"a": 1}, {"args": [], "kwargs": [["a", 1]]}),
])  # fmt: skip
def test_the_text_follows_the_signature_and_reads_back(fn: Any, args: Any, kwargs: Any, tree: Any) -> None:
    arguments = Arguments(fn)
    text, args_copy, kwargs_copy = arguments.snapshot(args, kwargs)
    assert json.loads(text) == tree
    assert arguments.encode(args, kwargs) == text
    assert arguments.decode(text) == (args_copy, kwargs_copy)
    again = arguments.encode(args_copy, kwargs_copy)
    assert again == text


def test_one_call_has_one_text_however_it_is_written_and_defaults_are_left_out() -> None:
    def charge_later(order: Order, amount: int = 1, currency: str = "EUR", *, dry: bool = False) -> None: ...

    calls = [((ORDER, 3), {}), ((ORDER,), {"amount": 3}), ((), {"amount": 3, "order": ORDER})]
    texts = {Arguments(charge).encode(args, kwargs) for args, kwargs in calls}
    texts |= {Arguments(charge_later).encode(args, kwargs) for args, kwargs in calls}
    assert len(texts) == 1


def test_the_body_gets_copies() -> None:
    order = Order(1)
    _, (copy,), _ = Arguments(charge).snapshot((order,), {})
    assert copy == order
    assert copy is not order
    (decoded,), _ = Arguments(charge).decode(Arguments(charge).encode((order,), {}))
    assert decoded == order


def test_leading_parameters_can_be_left_to_the_engine() -> None:
    arguments = Arguments(with_connection, skip=1)
    assert json.loads(arguments.encode((Order(1),), {})) == [{"id": 1, "price": {"$decimal": "0"}}]
    assert arguments.encode((), {"order": Order(1)}) == arguments.encode((Order(1),), {})


@pytest.mark.parametrize(("fn", "args", "kwargs", "reason"), [
    (one, (), {}, "missing a required argument: 'name'"), (one, ("a", "b"), {}, "too many positional"),
    (one, ("a",), {"x": 1}, "unexpected keyword argument 'x'"),
    (one, ("a",), {"name": "b"}, "multiple values"),
    (named, (), {}, "missing a required"), (nothing, (1,), {}, "too many positional"),
])  # fmt: skip
def test_a_call_of_the_wrong_shape_names_the_function(fn: Any, args: Any, kwargs: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as caught:
        Arguments(fn).encode(args, kwargs)
    assert caught.value.message.startswith(f"{fn.__name__}(")


def test_a_refused_argument_is_named_by_its_path() -> None:
    cases: list[tuple[Any, Any, Any, str]] = [
        (charge, ({"id": 1},), {}, "args.order: expected Order, got dict"),
        (charge, (ORDER,), {"dry": 1}, "args.dry: expected bool, got int"),
        (loose, (1, ORDER, 2), {}, "args.rest[1]: expected Order, got int"),
        (loose, (1,), {"x": 2}, "args.x: expected Order, got int"),
        (unresolved, (ORDER, ORDER), {}, "args.a: Order would not come back as Order"),
    ]
    for fn, args, kwargs, message in cases:
        with pytest.raises(PayloadRejected) as caught:
            Arguments(fn).encode(args, kwargs)
        assert caught.value.message.startswith(message)


def test_the_limit_holds_for_one_argument_and_for_all_together() -> None:
    with pytest.raises(PayloadTooLarge, match=r"args\.name takes 102 bytes, the limit is 50"):
        Arguments(one).encode(("x" * 100,), {}, limit=50)
    pair = Arguments(loose)
    with pytest.raises(PayloadTooLarge, match="args of step loose takes 107 bytes"):
        pair.encode(("x" * 40,), {"more": Order(1)}, limit=60, path="args of step loose")
    assert pair.encode(("x" * 40,), {}, limit=60)


def test_stored_arguments_that_do_not_fit_the_signature_are_refused() -> None:
    for text in ('["a","b"]', "3", '{"args":[]}'):
        with pytest.raises(InvalidInput, match="the stored arguments do not fit one"):
            Arguments(one).decode(text)
    with pytest.raises(InvalidInput, match="no parameter gone"):
        Arguments(one).decode('{"args":[],"kwargs":[["gone",1]]}')
    with pytest.raises(PayloadRejected, match=r"args\.order: input should be"):
        Arguments(charge).decode("[3]")


def test_a_digest_is_short_stable_and_differs_with_the_text() -> None:
    assert digest("[]") == "4f53cda18c2baa0c"
    assert digest("[1]") != digest("[2]")


def test_the_result_is_read_by_the_return_annotation() -> None:
    assert result_codec(charge).copy(ORDER) == ORDER
    assert result_codec(Callable_()).annotation is Order
    assert result_codec(unresolved).annotation is Any
    assert result_codec(loose).annotation is Any


def test_classes_of_an_enclosing_function_are_found_when_it_is_a_closure() -> None:
    @dataclass
    class Local:
        a: int

    later: int

    def made() -> Local:
        return Local(later)

    assert result_codec(made).annotation is Local
    later = 1
    assert result_codec(made).copy(made()) == Local(1)


def test_a_decorated_function_is_read_through_its_wrapper() -> None:
    @functools.wraps(charge)
    def wrapper(*args: Any, **kwargs: Any) -> Any: ...

    assert json.loads(Arguments(wrapper).encode((Order(1), 2), {})) == [
        {"id": 1, "price": {"$decimal": "0"}},
        2,
    ]
