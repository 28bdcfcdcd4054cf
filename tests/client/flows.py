"""Workflows that the tests start from outside."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

from ironflow import Context, Lane, step, workflow


@dataclass
class Order:
    """An input of kinds that JSON has no form for."""

    price: Decimal
    sizes: tuple[int, ...]
    tags: set[str]
    days: dict[int, str]
    at: dt.datetime
    label: bytes


@dataclass
class Receipt:
    total: Decimal
    order: Order


@step
async def add(a: int, b: int) -> int:
    return a + b


@step
async def refuse(reason: str) -> None:
    raise LookupError(reason)


@step
async def undo(n: int) -> None:
    raise ValueError(f"cannot undo {n}")


@workflow
async def double(ctx: Context, n: int) -> int:
    return await add(n, n)


@workflow
async def buy(ctx: Context, order: Order) -> Receipt:
    return Receipt(order.price * len(order.sizes), order)


@workflow
async def anything(ctx: Context, value: object) -> object:
    return value


@workflow
async def failing(ctx: Context, reason: str) -> None:
    await add(1, 2)
    await refuse(reason)


@workflow
async def long(ctx: Context, steps: int) -> int:
    total = 0
    for n in range(steps):
        total = await add(total, n)
    return total


@workflow
async def sleeping(ctx: Context) -> str:
    await ctx.sleep(3600)
    return "slept"


@workflow(lane=Lane(2, key=lambda customer: customer))
async def in_turn(ctx: Context, customer: str) -> str:
    return customer


ALL = [double, buy, anything, failing, long, sleeping, in_turn]
