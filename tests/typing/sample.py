"""Not a test by itself: checked by mypy in test_typing.py. What is inferred is asserted; each planted mistake
is marked with the error code that must be reported on its line."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, assert_type

from ironflow import Contxt  # error: attr-defined
from ironflow.client import Clientt  # error: attr-defined
from ironflow.context import (
    Call,
    Context,
    Done,
    NotDone,
    Outcome,
    Reconciled,
    Unknown,
    Workflow,
    step,
    workflow,
)


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    text: str


@step
async def charge(order: Order, *, currency: str = "EUR") -> Receipt:
    return Receipt(str(order.id))


@step(retry=3, timeout="5s")
def count(text: str) -> int:
    return len(text)


@step(name="later")
async def later(n: int) -> str:
    return str(n)


@charge.reconcile
async def look_up(order: Order, *, currency: str = "EUR") -> Reconciled[Receipt]:
    return Done(Receipt("x")) if order.id else NotDone() if currency else Unknown()


@workflow
async def buy(ctx: Context, order: Order) -> Receipt:
    assert_type(charge(order), Call[Receipt])
    assert_type(await charge(order), Receipt)
    assert_type(await count("a"), int)
    assert_type(await later(1), str)
    assert_type(await charge.using(timeout="5s")(order), Receipt)
    assert_type(await ctx.step(plain, "a"), int)
    assert_type(await ctx.step(plain_async, "a"), bytes)
    assert_type(await ctx.map(charge, [order], concurrency=8), list[Receipt])
    assert_type(await ctx.map(count, ["a"], on_error="collect"), list[int | Exception])
    assert_type(await ctx.parallel([count("a"), count("b")]), list[int])
    assert_type(await ctx.first(charge(order), ctx.sleep("1h")), tuple[Literal[0], Receipt] | tuple[Literal[1], None])
    assert_type(await ctx.first(count("a"), count("b"), count("c")), tuple[int, int])
    assert_type(ctx.as_completed([count("a")]), AsyncIterator[Outcome[int]])
    assert_type(await ctx.transaction(book, 5), bool)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(charge(order))
    assert_type(task.result(), Receipt)
    assert_type(await asyncio.gather(charge(order), count("a")), tuple[Receipt, int])
    assert_type(await asyncio.wait_for(count("a"), 5), int)
    ctx.compensate(charge, order)

    await charge(5)  # error: arg-type
    await charge(order, money="EUR")  # error: call-arg
    await count(text=5)  # error: arg-type
    await ctx.step(plain, 5)  # error: call-overload
    await ctx.step(count.fn, 5)  # error: call-overload
    await ctx.map(count, [5])  # error: arg-type
    await ctx.transaction(book, "x")  # error: call-overload
    await ctx.sleep([5])  # error: arg-type
    await ctx.parallel([count("a")], on_error="ignore")  # error: call-overload
    ctx.compensate(charge, "x")  # error: arg-type
    charge.using(timeouts="5s")  # error: call-arg
    result: str = await charge(order)  # error: assignment
    return await charge(order) if result else Receipt("")


def plain(text: str) -> int:
    return len(text)


async def plain_async(text: str) -> bytes:
    return text.encode()


def book(connection: Any, order: int) -> bool:
    return True


@workflow(lane=3)
def total(ctx: Context, texts: list[str]) -> int:
    assert_type(ctx.wait(count("a")), int)
    assert_type(ctx.wait(ctx.map(count, texts)), list[int])
    return sum(ctx.wait(ctx.map(count, texts)))


@workflow
async def nothing(ctx: Context) -> None: ...


@workflow(version="2")
async def named(ctx: Context, n: int) -> str:
    return str(n)


assert_type(buy, Workflow[Order, Receipt])
assert_type(total, Workflow[list[str], int])
assert_type(nothing, Workflow[None, None])
assert_type(named, Workflow[int, str])

named(1)  # error: operator
step(retries=3)  # error: call-overload
workflow(lanes=3)  # error: call-overload

misspelt = (Contxt, Clientt)
