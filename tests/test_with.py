"""`with` is for scripts: what is opened so and awaited in asynchronous code says which form belongs there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import ironflow
from ironflow.client import Client
from ironflow.config import Settings


@ironflow.workflow
async def add(ctx: ironflow.Context, n: int) -> int:
    return n + 1


USES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "run": lambda engine: engine.run(add, 1),
    "start": lambda engine: engine.start(add, 1),
    "get": lambda engine: engine.get("r"),
    "result": lambda engine: engine.handle("r", add).result(timeout=20),
    "cancel": lambda engine: engine.cancel("r"),
}


@pytest.mark.parametrize("use", USES)
async def test_an_engine_opened_with_with_says_async_with_where_it_is_awaited(use: str, sqlite_url: str) -> None:
    with (
        pytest.raises(RuntimeError, match=r"open it with `async with`, or call `wait\(\.\.\.\)`") as refused,
        ironflow.open(sqlite_url, workflows=[add]) as engine,
    ):
        await USES[use](engine)
    assert refused.value.__context__ is None, "closing it adds no error of its own"


async def test_a_client_opened_with_with_says_the_same() -> None:
    with (
        pytest.raises(RuntimeError, match="open it with `async with`"),
        Client("http://127.0.0.1:1", "ifk_" + "0" * 40, settings=Settings()) as client,
    ):
        await client.get("r")


async def test_the_synchronous_form_goes_on_working_where_a_loop_runs_as_in_a_notebook(sqlite_url: str) -> None:
    with ironflow.open(sqlite_url, workflows=[add]) as engine:
        assert engine.wait(engine.run(add, 1)) == 2
    assert ironflow.run(add, 2, url=sqlite_url) == 3


OPENABLE: dict[str, Callable[[str], Any]] = {
    "an engine": lambda url: ironflow.open(url, workflows=[add]),
    "a client": lambda _: Client("http://127.0.0.1:1", "ifk_" + "0" * 40, settings=Settings()),
}


@pytest.mark.parametrize("what", OPENABLE)
def test_wait_before_the_with_says_to_open_it_first(what: str, sqlite_url: str) -> None:
    it = OPENABLE[what](sqlite_url)
    with pytest.raises(RuntimeError) as refused:
        it.wait(it.get("r"))
    assert str(refused.value) == "this is not open yet: wait(...) works inside its `with` block"


@pytest.mark.parametrize("what", OPENABLE)
async def test_wait_inside_async_with_says_to_await(what: str, sqlite_url: str) -> None:
    async with OPENABLE[what](sqlite_url) as it:
        with pytest.raises(RuntimeError, match="inside `async with`, await the coroutine instead"):
            it.wait(it.get("r"))
