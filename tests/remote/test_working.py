"""A worker over HTTP executes runs as one on the database does: the same steps, waits, holds and limits."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate
from tests.remote.kit import client, served, working

import ironflow
from ironflow.config import Settings
from ironflow.errors import RunFailed, RunPaused, Unauthenticated
from ironflow.model import journal as j
from ironflow.remote import batch, connection

pytestmark = pytest.mark.usefixtures("folder")

MIB = 1 << 20


@ironflow.step
def twice(n: int) -> int:
    return 2 * n


@ironflow.workflow
async def naps(ctx: ironflow.Context, n: int) -> int:
    n = await twice(n)
    await ctx.sleep("50ms")
    return await twice(n)


@ironflow.step
async def large(size: int) -> str:
    program.tell("large")
    return "x" * size


@ironflow.step
async def quoted(size: int) -> list[str]:
    return [""] * (size // 3)


@ironflow.workflow
async def output(ctx: ironflow.Context, size: int) -> str:
    return await large(size)


@ironflow.workflow
async def history(ctx: ironflow.Context, parts: list[int]) -> int:
    """A long journal, a hold, and one more step."""
    sizes = [len(await large(size)) for size in parts]
    await program.hold("history")
    return sum(sizes)


@ironflow.workflow
async def quotes(ctx: ironflow.Context, size: int) -> int:
    return len(await quoted(size))


@ironflow.workflow
async def crowd(ctx: ironflow.Context, sizes: list[int]) -> int:
    """Many large results at one moment: together more than one message may hold."""
    return sum(len(text) for text in await ctx.parallel([large(size) for size in sizes]))


@ironflow.workflow
async def outputs(ctx: ironflow.Context, sizes: list[int]) -> str:
    """Ends at once, with more than one message can hold in its first and only commit."""
    for size in sizes:
        ctx.set_output("x" * size)
    return "done"


@ironflow.step
def written(connection: Any, n: int) -> int:
    return n


@ironflow.workflow
async def transactional(ctx: ironflow.Context, n: int) -> int:
    return await ctx.transaction(written, n)


WORKFLOWS = [*program.WORKFLOWS, naps, output, history, quotes, crowd, outputs, transactional]


async def test_runs_are_executed_step_by_step_and_sleeping_ones_come_back(store_url: str) -> None:
    async with served(store_url) as server, client(store_url, WORKFLOWS) as looking:
        async with working(server.url, server.key, WORKFLOWS) as worker:
            runs = [await looking.start(naps, n) for n in range(10)]
            assert [await run.result(timeout=20) for run in runs] == [4 * n for n in range(10)]
            kinds = [event.kind async for event in runs[0].journal()]
            assert kinds.count(j.STEP_COMPLETED) == 2
            assert j.RUN_SUSPENDED in kinds
            (session,) = await looking.store.sessions()
            assert (session.kind, session.worker_id) == ("http", worker.session.worker_id)
        assert await looking.store.sessions() == [], "it said goodbye"
        assert await looking.store.leases() == []


async def test_a_pause_stops_the_body_and_a_resumed_run_goes_on(sqlite_url: str) -> None:
    """A long heartbeat interval: what stops the body is the word on the stream, and no heartbeat's verdict."""
    settings = Settings(suspect_after_ms=None)
    async with (
        served(sqlite_url, settings) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS),
    ):
        run = await looking.start(program.line, "x")
        await until(lambda: lines("x-2"))
        await run.cancel()
        await until(lambda: lines("cancelled x-2"))
        held = await looking.start(program.line, "y")
        await until(lambda: lines("y-2"))
        await held.pause()
        open_gate("y-2")
        await held.resume()
        assert await held.result(timeout=20) == ["y-1", "y-2", "y-3"]


async def test_r2_a_worker_whose_slots_are_all_busy_asks_for_nothing(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []
    send = connection.Connection.send

    async def counted(self: Any, method: str, path: str, data: Any, **options: Any) -> Any:
        def noted(again: bool) -> Any:
            body = data(again)
            if path == "/poll":
                asked.append(json.loads(body))
            return body

        return await send(self, method, path, noted, **options)

    monkeypatch.setattr(connection.Connection, "send", counted)
    async with (
        served(sqlite_url) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS, slots=2) as worker,
    ):
        full = [await looking.start(program.line, f"x{n}") for n in range(2)]
        await until(lambda: len(lines("x0-2") + lines("x1-2")) == 2)
        before = len(asked)
        assert before, "by asking it was given them"
        waiting = [await looking.start(program.short, f"w{n}") for n in range(5)]
        renewed = (await looking.store.sessions())[0].heartbeat_at
        await until(lambda: _beaten(looking, renewed + 300))
        assert (len(asked), len(worker.segments)) == (before, 2)
        assert {row.status for row in await looking.store.queue()} == {"ready"}
        for n in range(2):
            open_gate(f"x{n}-2")
        await asyncio.gather(*(run.result(timeout=20) for run in [*full, *waiting]))
        assert all(1 <= body["credits"] <= 2 for body in asked)


async def _beaten(looking: ironflow.Engine, at: int) -> bool:
    return (await looking.store.sessions())[0].heartbeat_at > at


async def test_r50_an_output_over_the_limit_fails_the_run_by_name_and_without_a_storm(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = batch.Batches._send

    async def counted(self: Any, items: Any) -> None:
        sent.append(len(items))
        await send(self, items)

    monkeypatch.setattr(batch.Batches, "_send", counted)
    async with (
        served(sqlite_url) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS) as worker,
    ):
        assert worker.settings.max_payload_bytes == 2 * MIB, "the server's word"
        run = await looking.start(output, 2 * MIB + 1)
        with pytest.raises(RunFailed, match=r"2,097,155 bytes, the limit is 2,097,152"):
            await run.result(timeout=20)
        assert len(sent) <= 3
        assert len(lines("large")) == 1
        assert len(await (await looking.start(output, 2 * MIB - 2)).result(timeout=20)) == 2 * MIB - 2
        assert await (await looking.start(quotes, 2 * MIB - 10)).result(timeout=20) == (2 * MIB - 10) // 3


async def test_what_one_message_cannot_hold_travels_in_several(sqlite_url: str) -> None:
    async with (
        served(sqlite_url) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS),
    ):
        run = await looking.start(crowd, [MIB] * 8)
        assert await run.result(timeout=30) == 8 * MIB
        assert len(lines("large")) == 8


async def test_r50_a_first_commit_that_no_message_can_hold_fails_the_run_at_once(
    sqlite_url: str,
) -> None:
    async with (
        served(sqlite_url) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS),
    ):
        run = await looking.start(outputs, [2 * MIB - 10 - n for n in range(3)])
        with pytest.raises(RunFailed, match=r"one commit of the run takes 6,\d{3},\d{3} bytes, the limit is 4,"):
            await run.result(timeout=20)
        assert (await looking.get(run.id)).row.execution_seq == 1


async def test_a_long_journal_comes_in_pages(sqlite_url: str) -> None:
    async with served(sqlite_url) as server, client(sqlite_url, WORKFLOWS) as looking:
        async with working(server.url, server.key, WORKFLOWS):
            run = await looking.start(history, [MIB] * 6 + [10] * 50)
            await until(lambda: lines("history"))
        open_gate("history")
        async with working(server.url, server.key, WORKFLOWS):
            assert await run.result(timeout=30) == 6 * MIB + 500
        assert len(lines("large")) == 56, "nothing that had ended was executed again"


async def test_a_run_that_comes_to_a_transactional_step_is_kept_for_a_worker_with_the_database(sqlite_url: str) -> None:
    async with served(sqlite_url) as server, client(sqlite_url, WORKFLOWS) as looking:
        async with working(server.url, server.key, WORKFLOWS):
            run = await looking.start(transactional, 1)
            with pytest.raises(RunPaused):
                await run.result(timeout=20)
        (hold,) = await run.why()
        assert "needs a worker that has the database" in hold.message
        assert hold.details["reason"] == "NEEDS_DATABASE"
        kinds = [event.kind for event in await looking.store.journal(run.id)]
        assert kinds == ["run_created", "run_started", "run_paused"], "nothing of the step has begun"
        async with ironflow.open(sqlite_url, workflows=WORKFLOWS):
            await run.resume()
            assert await run.result(timeout=20) == 1


async def test_the_servers_clocks_and_limits_replace_the_workers_own(sqlite_url: str) -> None:
    own = Settings(renewal_interval_ms=1_000, lease_ttl_ms=4_000, session_ttl_ms=9_000)
    theirs = quick(renewal_interval_ms=200, lease_ttl_ms=700, session_ttl_ms=800, max_payload_bytes=4_096)
    async with (
        served(sqlite_url, theirs) as server,
        client(sqlite_url, WORKFLOWS) as looking,
        working(server.url, server.key, WORKFLOWS, settings=own) as worker,
    ):
        settings = worker.settings
        assert (settings.renewal_interval_ms, settings.lease_ttl_ms, settings.session_ttl_ms) == (200, 700, 800)
        run = await looking.start(output, 5_000)
        with pytest.raises(RunFailed, match="the limit is 4,096"):
            await run.result(timeout=20)


async def test_a_wrong_key_is_refused_at_once(sqlite_url: str) -> None:
    async with served(sqlite_url) as server:
        with pytest.raises(Unauthenticated):
            async with working(server.url, "ifworker_" + "0" * 43, WORKFLOWS):
                pass


async def test_a_drained_session_takes_nothing_more_and_lets_what_executes_end(sqlite_url: str) -> None:
    async with served(sqlite_url) as server, client(sqlite_url, WORKFLOWS) as looking:
        async with working(server.url, server.key, WORKFLOWS) as worker:
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            await looking.store.drain(worker.session.row.session_id)
            await asyncio.wait_for(worker.dismissed.wait(), 10)
            later = await looking.start(program.short, "later")
            open_gate("x-2")
            assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
            assert (await looking.get(later.id)).row.state == "pending"
        async with working(server.url, server.key, WORKFLOWS):
            assert await later.result(timeout=20) == "later"
    assert Counter(told for told, _, _ in lines())["x-2"] == 1
