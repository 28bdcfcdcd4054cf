"""Several processes on one SQLite file: turns are taken, nothing is lost, and a frozen one stops nobody for ever."""

from __future__ import annotations

import asyncio
import fcntl
import multiprocessing
import os
import signal
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from tests.store.build import activate, answer, append, create, leave, start

from ironflow.errors import StoreUnreachable
from ironflow.model.journal import dense
from ironflow.model.transition import APPLIED
from ironflow.store import connect
from ironflow.store.base import Store
from ironflow.store.turnstile import give_back, turnstile_of

spawn = multiprocessing.get_context("spawn")


async def _work(url: str, name: str, runs: int, appends: int) -> int:
    """Start runs and append to them, all at once; then race for the queue. Returns how many were taken from it."""
    store = await connect(url)
    try:
        store.live_segments = runs  # type: ignore[attr-defined]

        async def one(n: int) -> None:
            assert await answer(store, start(f"{name}-{n}")) == APPLIED
            for k in range(appends):
                assert await answer(store, append(f"{name}-{n}", 4 + k)) == APPLIED

        await asyncio.gather(*[one(n) for n in range(runs)])
        taken = 0
        while heads := await store.peek(["shared"], 8):
            found = await asyncio.gather(*[answer(store, activate(head, 2, token=name)) for head in heads])
            taken += found.count(APPLIED)
        return taken
    finally:
        await store.close()


def _process(url: str, name: str, runs: int, appends: int, out: Connection) -> None:
    out.send(asyncio.run(_work(url, name, runs, appends)))
    out.close()


async def test_two_processes_on_one_file_lose_nothing_and_share_the_queue(
    sqlite: Store, sqlite_url: str
) -> None:
    for n in range(40):
        await answer(sqlite, create(f"q{n:02}", route="shared"))
    pipes = [spawn.Pipe(duplex=False) for _ in range(2)]
    workers = [
        spawn.Process(target=_process, args=(sqlite_url, f"p{n}", 10, 20, pipe[1]))
        for n, pipe in enumerate(pipes)
    ]
    for worker in workers:
        worker.start()
    taken = [await asyncio.to_thread(pipe[0].recv) for pipe in pipes]
    for worker in workers:
        await asyncio.to_thread(worker.join)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert sum(taken) == 40
    journals = await sqlite.journals([f"p{p}-{n}" for p in range(2) for n in range(10)])
    assert {len(events) for events in journals.values()} == {23}
    assert all(dense(events) for events in journals.values())
    assert len(await sqlite.leases()) == 60


def _hold_turn(path: str, out: Connection) -> None:
    turnstile_of(Path(path)).acquire()
    out.send("held")
    signal.pause()


async def test_the_turn_of_a_killed_process_is_free_at_once(sqlite: Store, tmp_path: Path) -> None:
    pipe, theirs = spawn.Pipe(duplex=False)
    holder = spawn.Process(target=_hold_turn, args=(str(tmp_path / "iron.db"), theirs))
    holder.start()
    assert await asyncio.to_thread(pipe.recv) == "held"
    waiting = asyncio.ensure_future(answer(sqlite, start("r1")))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    os.kill(holder.pid or 0, signal.SIGKILL)
    assert await waiting == APPLIED
    await asyncio.to_thread(holder.join)


async def test_a_frozen_holder_costs_the_patience_and_no_more(tmp_path: Path) -> None:
    path = tmp_path / "iron.db"
    pipe, theirs = spawn.Pipe(duplex=False)
    holder = spawn.Process(target=_hold_turn, args=(str(path), theirs))
    holder.start()
    assert await asyncio.to_thread(pipe.recv) == "held"
    turn = turnstile_of(path)
    os.kill(holder.pid or 0, signal.SIGSTOP)
    assert turn.try_acquire() is False
    for _ in range(2):
        with pytest.raises(StoreUnreachable, match="another process has been writing"):
            await asyncio.to_thread(turn.acquire, 0.05)
    os.kill(holder.pid or 0, signal.SIGKILL)
    await asyncio.to_thread(turn.acquire, 10)
    turn.release()
    assert turn.try_acquire() is True
    turn.release()
    give_back(turn)
    await asyncio.to_thread(holder.join)


def _try_turn(path: str, out: Connection) -> None:
    with open(path + "-turn", "rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            out.send("free")
        except OSError:
            out.send("taken")


def _ask_other_process(path: Path) -> str:
    pipe, theirs = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_try_turn, args=(str(path), theirs))
    process.start()
    found: str = pipe.recv()
    process.join()
    return found


async def test_closing_one_store_does_not_drop_the_turn_of_another(tmp_path: Path) -> None:
    path = tmp_path / "iron.db"
    one, two = turnstile_of(path), turnstile_of(path)
    assert one is two
    one.acquire()
    give_back(two)
    assert _ask_other_process(path) == "taken"
    one.release()
    assert _ask_other_process(path) == "free"
    give_back(one)


def _die_in_the_middle(url: str, path: str) -> None:
    async def go() -> None:
        store = await connect(url)
        assert await answer(store, start("r1")) == APPLIED
        writer = store._writer  # type: ignore[attr-defined]

        def work(connection: sqlite3.Connection, now: int) -> None:
            connection.execute("update runs set state = 'completed'")
            os.kill(os.getpid(), signal.SIGKILL)

        writer.perform(lambda: writer.transaction(work))

    asyncio.run(go())


async def test_what_a_killed_process_was_answered_is_there_and_what_it_was_not_is_not(
    sqlite: Store, sqlite_url: str, tmp_path: Path
) -> None:
    process = spawn.Process(target=_die_in_the_middle, args=(sqlite_url, str(tmp_path)))
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode == -signal.SIGKILL
    row = await sqlite.run("r1")
    assert row is not None
    assert row.state == "running"
    assert await answer(sqlite, leave("r1", 4, "completed")) == APPLIED
    assert await sqlite.check() == []
