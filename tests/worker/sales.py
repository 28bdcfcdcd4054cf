"""Workflows with transactional steps for both databases, and a process that dies around the commit of one.

Each body leaves a line outside the database before it writes: what ran can be counted whatever was undone.
`python -m tests.worker.sales` is the process that dies.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from typing import Any

from tests.recovery.kit import quick
from tests.recovery.program import folder, mark, tell

import ironflow
import ironflow.runtime.engine
from ironflow import Context
from ironflow.model.transition import Transition
from ironflow.store import connect

SHOP = "create table if not exists shop (item text primary key)"


def sell_sqlite(connection: sqlite3.Connection, item: str, then: str = "") -> str:
    """A sale; `then` is an extra statement, or `fail`."""
    tell(f"sale {item}")
    connection.execute(SHOP)
    connection.execute("insert into shop values (?)", (item,))
    then = _failing(then)
    if then:
        connection.execute(then)
    return item.upper()


async def sell_postgres(connection: Any, item: str, then: str = "") -> str:
    """As above; `hold` waits until the test opens the gate of the item, `once …` is executed by the first try only."""
    tell(f"sale {item}")
    await connection.execute("insert into shop values ($1)", item)
    then = _failing(then)
    if then == "hold":
        while not (folder() / item).exists():
            await asyncio.sleep(0.005)
    elif then.startswith("once "):
        first = not (folder() / "once").exists()
        (folder() / "once").touch()
        if first:
            await connection.execute(then.removeprefix("once "))
    elif then:
        await connection.execute(then)
    return item.upper()


def _failing(then: str) -> str:
    """Raise if that is asked for; otherwise the statement to go on with."""
    if then == "fail":
        raise LookupError("sold out")
    if then == "fail at first":
        if ironflow.step_info().attempt == 1:
            raise LookupError("not yet")
        return ""
    return then


SELL: dict[str, Any] = {"sqlite": sell_sqlite, "postgres": sell_postgres}
PATIENT = {
    name: ironflow.step(name="sale", retry=ironflow.Retry(2, backoff="1ms"), timeout="10s")(sell)
    for name, sell in SELL.items()
}


@ironflow.workflow
async def sale(ctx: Context, order: dict[str, str]) -> str:
    """One transactional step."""
    return str(await ctx.transaction(SELL[order["on"]], order["item"], order.get("then", "")))


@ironflow.workflow
async def patient_sale(ctx: Context, order: dict[str, str]) -> str:
    """One with the options of a step."""
    return str(await ctx.transaction(PATIENT[order["on"]], order["item"], "fail at first"))


@ironflow.workflow
async def market(ctx: Context, order: dict[str, str]) -> list[str]:
    """Many at once, among plain steps that end while they write."""
    sell = SELL[order["on"]]
    sales = [ctx.transaction(sell, f"{order['item']}{n}") for n in range(5)]
    plain = [mark(f"plain {n}") for n in range(10)]
    return list(await ctx.parallel([*plain[:5], *sales, *plain[5:]]))


@ironflow.workflow
async def fiasco(ctx: Context, order: dict[str, str]) -> str:
    """Two side by side, of which one fails: the other one is cancelled."""
    sell = SELL[order["on"]]
    other = "hold" if order["on"] == "postgres" else ""
    try:
        await ctx.parallel([ctx.transaction(sell, "first", "fail"), ctx.transaction(sell, "second", other)])
    except LookupError as error:
        return str(error)
    return "sold"


WORKFLOWS = (sale, patient_sale, market, fiasco)


# ---- the process that dies


class Dying:
    """An open transaction whose commit is the end of the process, before or after it."""

    def __init__(self, opened: Any, when: str) -> None:
        self._opened = opened
        self._when = when

    async def commit(self, transition: Transition) -> str:
        """See `OpenTransaction.commit`."""
        if self._when == "after":
            assert await self._opened.commit(transition) == "applied"
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    async def rollback(self) -> None:
        """See `OpenTransaction.rollback`."""
        await self._opened.rollback()


async def execute(request: dict[str, Any]) -> None:
    """Start the run and die on the way."""

    async def connect_to_die(url: str, **options: Any) -> Any:
        store: Any = await connect(url, **options)
        begin = store.begin

        async def begin_to_die(body: Any, *, deadline_ms: int) -> Any:
            value, opened = await begin(body, deadline_ms=deadline_ms)
            return value, Dying(opened, request["when"])

        store.begin = begin_to_die
        return store

    ironflow.runtime.engine.connect = connect_to_die  # type: ignore[attr-defined]
    async with ironflow.open(request["url"], workflows=WORKFLOWS, settings=quick()) as engine:
        run = await engine.start(sale, request["order"], id=request["id"])
        await run.result(timeout=20)


def main() -> None:
    """Under the module's own name, or its workflows would be other ones than the test's."""
    from tests.worker import sales

    asyncio.run(sales.execute(json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
