"""What a divergence says: where, what is recorded there, and what the code does instead; in one text everywhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.harness import RUN, Harness
from tests.engine.letters import a, b, c

from ironflow.context import Context, workflow
from ironflow.engine.why import paused_because
from ironflow.errors import ReplayDivergence
from ironflow.model import journal as j


def flow(fn: Any) -> Any:
    return workflow(name="flow")(fn)


async def returns(ctx: Context) -> Any:
    await a()
    return "done"


async def raises(ctx: Context) -> Any:
    await a()
    raise LookupError("no such customer")


async def sleeps_in_a_limit(ctx: Context) -> Any:
    await a()
    async with asyncio.timeout(60):
        await asyncio.create_task(asyncio.sleep(5))


async def many(ctx: Context) -> Any:
    await a()
    await asyncio.gather(*[asyncio.create_task(one(n)) for n in range(5)])


async def waits(ctx: Context) -> Any:
    await a()
    await asyncio.Event().wait()


async def one(n: int) -> Any:
    return await c(n)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (returns, "nothing any more (it has returned)"),
        (raises, "nothing any more (it has raised LookupError: no such customer)"),
        (sleeps_in_a_limit, "a sleep (main.1/t1) instead"),
        (many, "main.1/1:c, main.2/1:c, main.3/1:c and 2 more instead"),
        (waits, "nothing (it waits for something else)"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_a_step_that_is_gone_is_told_with_what_the_code_does_instead(code: Any, expected: str, ended: bool) -> None:
    @workflow(name="flow")
    async def before(ctx: Context) -> Any:
        await a()
        await b()
        await c()

    h = Harness(before).fresh().end("a")
    if ended:
        h.end("b")
    h.recover(flow(code))
    told = h.last(j.RUN_PAUSED)
    assert (told["step_id"], told["expected"]) == ("main/2:b", expected)
    assert told["recorded"] == ("step_completed at seq 6" if ended else "a step that has begun")
    assert told["message"].startswith(f"at main/2:b the code asks for {expected}, and the journal recorded ")


def test_what_the_journal_knows_of_is_not_what_the_code_asks_for_instead() -> None:
    async def both(ctx: Context) -> Any:
        await asyncio.gather(one(1), one(2))

    async def fewer(ctx: Context) -> Any:
        await asyncio.gather(asyncio.create_task(asyncio.sleep(5)), one(2))

    h = Harness(flow(both)).fresh().end("main.2/1:c").end("main.1/1:c")
    del h.journal[-1]
    h.recover(flow(fewer))
    assert h.last(j.RUN_PAUSED)["expected"] == "a sleep (main.1/t1) instead"


def test_the_run_s_pause_and_the_error_say_the_same() -> None:
    @workflow(name="flow")
    async def before(ctx: Context) -> Any:
        await a()
        await b()

    h = Harness(before).fresh().end("a")
    h.recover(flow(returns))
    told = h.last(j.RUN_PAUSED)
    error = ReplayDivergence(told["step_id"], told["expected"], told["recorded"])
    assert str(error) == told["message"]
    assert paused_because(told, RUN) == f"REPLAY_DIVERGENCE: {error}".replace("RUN", RUN).removesuffix(".")
    assert f"`ironflow runs resume {RUN}`" in paused_because(told, RUN)


def test_another_call_at_a_place_is_told_with_the_line_that_makes_it() -> None:
    async def before(ctx: Context) -> Any:
        await a()
        await b()

    async def after(ctx: Context) -> Any:
        await a()
        await c(1)

    h = Harness(flow(before)).fresh().end("a")
    h.recover(flow(after))
    told = h.last(j.RUN_PAUSED)
    line = f"{__file__}:{after.__code__.co_firstlineno + 2}"
    assert (told["step_id"], told["expected"], told["where"]) == ("main/2", "main/2:c", line)
    assert told["message"].startswith(
        f"at main/2 the code asks for main/2:c, and the journal recorded main/2:b; the code asks at {line}. "
    )
    assert f"; the code asks at {line}. " in paused_because(told, RUN)
