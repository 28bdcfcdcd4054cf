"""Several processes on one SQLite file: turns are taken, nothing is lost, a frozen one stops nobody."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
from tests.journals import dense
from tests.store import processes
from tests.store.build import answer, create, leave, start

from ironflow.errors import StoreUnreachable
from ironflow.model.transition import APPLIED
from ironflow.store.base import Store
from ironflow.store.turnstile import give_back, turnstile_of

spawn = multiprocessing.get_context("spawn")


@contextlib.contextmanager
def child(work: Callable[..., None], *args: object) -> Iterator[tuple[SpawnProcess, Connection]]:
    """A spawned process and the end of the pipe it writes to; killed when the block ends, whatever it did."""
    ours, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=work, args=(*args, theirs))
    process.start()
    theirs.close()  # or a child that dies would leave the reader waiting for ever
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


async def test_two_processes_on_one_file_lose_nothing_and_share_the_queue(sqlite: Store, sqlite_url: str) -> None:
    for n in range(40):
        await answer(sqlite, create(f"q{n:02}", route="shared"))
    with (
        child(processes.work, sqlite_url, "p0", 10, 20) as (_, one),
        child(processes.work, sqlite_url, "p1", 10, 20) as (_, two),
    ):
        taken = [await asyncio.to_thread(pipe.recv) for pipe in (one, two)]
    assert sum(taken) == 40
    journals = await sqlite.journals([f"p{p}-{n}" for p in range(2) for n in range(10)])
    assert {len(events) for events in journals.values()} == {23}
    assert all(dense(events) for events in journals.values())
    assert len(await sqlite.leases()) == 60


async def test_the_turn_of_a_killed_process_is_free_at_once(sqlite: Store, tmp_path: Path) -> None:
    with child(processes.hold_turn, str(tmp_path / "iron.db")) as (holder, pipe):
        assert await asyncio.to_thread(pipe.recv) == "held"
        waiting = asyncio.ensure_future(answer(sqlite, start("r1")))
        await asyncio.sleep(0)
        assert not waiting.done()
        holder.kill()
        assert await waiting == APPLIED


async def test_a_frozen_holder_costs_the_patience_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "iron.db"
    with child(processes.hold_turn, str(path)) as (holder, pipe):
        assert await asyncio.to_thread(pipe.recv) == "held"
        turn = turnstile_of(path)
        os.kill(holder.pid or 0, signal.SIGSTOP)
        assert turn.try_acquire() is False
        for _ in range(2):
            with pytest.raises(StoreUnreachable, match="another process has been writing"):
                await asyncio.to_thread(turn.acquire, 0.05)
        holder.kill()
        await asyncio.to_thread(turn.acquire, 10)
        turn.release()
        give_back(turn)


async def test_a_turn_that_comes_after_the_patience_is_given_back(tmp_path: Path) -> None:
    path = tmp_path / "iron.db"
    turn = turnstile_of(path)
    with child(processes.hold_turn, str(path)) as (_, pipe):
        assert await asyncio.to_thread(pipe.recv) == "held"
        with pytest.raises(StoreUnreachable):
            await asyncio.to_thread(turn.acquire, 0.01)
    # Another process gets it, although the helper of the one that gave up had asked first.
    with child(processes.hold_turn, str(path)) as (_, pipe):
        assert await asyncio.to_thread(pipe.recv) == "held"
    give_back(turn)


async def ask_another_process(path: Path) -> str:
    """Whether the turn is free to somebody else."""
    with child(processes.try_turn, str(path)) as (_, pipe):
        found: str = await asyncio.to_thread(pipe.recv)
        return found


async def test_closing_one_store_does_not_drop_the_turn_of_another(tmp_path: Path) -> None:
    path = tmp_path / "iron.db"
    one, two = turnstile_of(path), turnstile_of(path)
    assert one is two
    one.acquire()
    give_back(two)
    assert await ask_another_process(path) == "taken"
    one.release()
    assert await ask_another_process(path) == "free"
    give_back(one)


async def test_what_a_killed_process_was_answered_is_there_and_what_it_was_not_is_not(
    sqlite: Store, sqlite_url: str
) -> None:
    with child(processes.die_in_the_middle, sqlite_url) as (process, _):
        await asyncio.to_thread(process.join)
        assert process.exitcode == -signal.SIGKILL
    row = await sqlite.run("r1")
    assert row is not None
    assert row.state == "running"
    assert await answer(sqlite, leave("r1", 4, "completed")) == APPLIED
    assert await sqlite.check() == []
