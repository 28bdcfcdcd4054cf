"""What other processes do in the tests: in a module of its own, which a spawned process can import by its name."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sqlite3
from multiprocessing.connection import Connection
from pathlib import Path

from tests.store.build import activate, answer, append, start

from ironflow.model.transition import APPLIED
from ironflow.store import connect
from ironflow.store.turnstile import turnstile_of


async def _work(url: str, name: str, runs: int, appends: int) -> int:
    """Start runs and append to them, all at once; then race for the queue. Returns how many it got."""
    store = await connect(url)
    try:
        store.concurrent_writers = runs

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


def work(url: str, name: str, runs: int, appends: int, out: Connection) -> None:
    """See `_work`."""
    out.send(asyncio.run(_work(url, name, runs, appends)))
    out.close()


def hold_turn(path: str, out: Connection) -> None:
    """Take the turn and keep it."""
    turnstile_of(Path(path)).acquire()
    out.send("held")
    signal.pause()


def try_turn(path: str, out: Connection) -> None:
    """Say whether the turn can be had."""
    with open(path + "-turn", "rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            out.send("free")
        except OSError:
            out.send("taken")


def die_in_the_middle(url: str, out: Connection) -> None:
    """Get one answer, then be killed inside the next transaction."""

    async def go() -> None:
        store = await connect(url)
        assert await answer(store, start("r1")) == APPLIED
        writer = store._writer  # type: ignore[attr-defined]

        def half(connection: sqlite3.Connection, now: int) -> None:
            connection.execute("update runs set state = 'completed'")
            os.kill(os.getpid(), signal.SIGKILL)

        writer.perform(lambda: writer.transaction(half))

    asyncio.run(go())
