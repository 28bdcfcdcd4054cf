"""A turn is begun in a body's last moment. It is the segment's turn all the same, and what goes wrong in it is told."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.recovery.kit import quick, until

import ironflow
from ironflow.engine.plan import Leave
from ironflow.engine.segment import Segment
from ironflow.store import committer
from ironflow.store.postgres_transaction import PostgresTransaction

OF_A_BODY: contextvars.ContextVar[int] = contextvars.ContextVar("OF_A_BODY", default=0)


@ironflow.step
async def number(n: int) -> int:
    OF_A_BODY.set(n)
    return n


@ironflow.workflow
async def chain(ctx: ironflow.Context) -> int:
    last = 0
    for n in range(1, 5):
        last = await number(n)
        ctx.log.warning("so far %d", last)
    return last


def write(connection: Any) -> str:
    connection.execute("create table if not exists written (n)")
    return "written"


async def write_there(connection: Any) -> str:
    await connection.execute("create table if not exists written (n int)")
    return "written"


@ironflow.workflow
async def computes_before_it_writes(ctx: ironflow.Context, on: str) -> str:
    await number(1)
    until_then = time.perf_counter() + 0.02
    while time.perf_counter() < until_then:
        pass
    body: Any = write_there if on == "postgres" else write
    text: str = await ctx.transaction(body)
    await number(2)
    await ctx.transaction(body)
    return text


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite commits on the spot, however slow this machine is: only then does a turn end where it began."""
    monkeypatch.setattr(committer, "INLINE_MEAN_S", 60.0)


class Breaking(logging.Handler):
    """What an author wrote, and what raises."""

    def emit(self, record: logging.LogRecord) -> None:
        raise ConnectionError("the log is away")


@pytest.fixture
def lines() -> Iterator[list[tuple[str, int, bool]]]:
    """What is in the context where a line of the workflow comes out: a body's variable, and whether it is a body."""
    found: list[tuple[str, int, bool]] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.getMessage(), OF_A_BODY.get(), in_a_body()))

    logger, handler = logging.getLogger("ironflow.workflow.chain"), Keeping()
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def in_a_body() -> bool:
    try:
        ironflow.step_info()
    except Exception:
        return False
    return True


async def test_a_log_handler_that_raises_stops_no_run(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    logger, handler = logging.getLogger("ironflow.workflow.chain"), Breaking()
    logger.addHandler(handler)
    try:
        async with ironflow.open(store_url, settings=quick()) as engine:
            run = await engine.start(chain)
            assert await run.result(timeout=10) == 4
            assert "run_recovered" not in {event.kind for event in await engine.store.journal(run.id)}
    finally:
        logger.removeHandler(handler)
    told = capsys.readouterr().err
    assert told.count("ConnectionError: the log is away") == 4  # as logging tells of handlers that fail


async def test_a_line_of_the_workflow_is_no_line_of_the_step_before_it(
    store_url: str, lines: list[tuple[str, int, bool]]
) -> None:
    async with ironflow.open(store_url, settings=quick()) as engine:
        assert await engine.run(chain) == 4
    assert lines == [(f"so far {n}", 0, False) for n in range(1, 5)]


async def test_steps_go_on_after_a_transaction_whose_end_slow_code_had_to_wait_for(store_url: str) -> None:
    on = store_url.partition("://")[0].replace("postgresql", "postgres")
    async with ironflow.open(store_url, settings=quick()) as engine:
        run = await engine.start(computes_before_it_writes, on)
        assert await run.result(timeout=10) == "written"


async def test_a_body_that_cannot_be_begun_costs_the_segment_and_not_the_run(
    store_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ironflow.open(store_url, settings=quick()) as engine:
        assert engine.worker is not None
        start, failures = engine.worker.bodies.start, iter([None, None, MemoryError("no room for a body")])

        def begin(*arguments: Any) -> Any:
            failure = next(failures, None)
            if failure is not None:
                raise failure
            return start(*arguments)

        monkeypatch.setattr(engine.worker.bodies, "start", begin)
        run = await engine.start(chain)
        assert await run.result(timeout=10) == 4  # its lease ran out, and the scanner gave it back
        journal = [event.kind for event in await engine.store.journal(run.id)]
        assert journal.count("run_recovered") == 1
    assert "no room for a body" in caplog.text


async def test_an_error_while_a_segment_leaves_is_told(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ironflow.open(sqlite_url, settings=quick()) as engine:
        worker = engine.worker
        assert worker is not None
        left: Callable[[Segment, Leave], None] = worker.left

        def leaves(segment: Segment, leave: Leave) -> None:
            left(segment, leave)
            raise ValueError("somebody told of the end")

        monkeypatch.setattr(worker, "left", leaves)
        assert await engine.run(chain) == 4
        await until(lambda: [r for r in caplog.records if (r.name, r.levelname) == ("ironflow.worker", "ERROR")])
        assert "somebody told of the end" in caplog.text
        assert worker.segments == {}


async def no_result(connection: Any) -> object:
    return iter([])  # which cannot be stored


async def test_a_body_cancelled_while_its_transaction_is_undone_has_ended(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollback = PostgresTransaction.rollback

    async def slowly(self: PostgresTransaction) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await rollback(self)

    monkeypatch.setattr(PostgresTransaction, "rollback", slowly)

    @ironflow.workflow
    async def gives_up(ctx: ironflow.Context) -> str:
        try:
            async with asyncio.timeout(0.3):
                await ctx.transaction(no_result)
        except TimeoutError:
            return "gave up"
        return "had a result"

    async with ironflow.open(postgres_url, settings=quick()) as engine:
        run = await engine.start(gives_up)
        assert await run.result(timeout=10) == "gave up"


async def test_what_the_engine_begins_waits_for_its_turn_whatever_the_program_s_task_factory(store_url: str) -> None:
    """An eager factory (Python 3.12) would let a body end before its segment knows of it."""
    made: list[str] = []

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(coroutine.cr_code.co_filename)
        return asyncio.Task(coroutine, loop=loop, **more)

    loop = asyncio.get_running_loop()
    loop.set_task_factory(factory)
    try:
        async with ironflow.open(store_url, settings=quick()) as engine:
            assert await engine.run(chain) == 4
        async with ironflow.open(store_url, worker=False) as client:
            await client.start(chain)
    finally:
        loop.set_task_factory(None)
    assert [name for name in made if "/ironflow/engine/" in name or name.endswith("/bell.py")] == []
