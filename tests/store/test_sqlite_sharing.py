"""What stores on one SQLite file share: the turn to write, the log, the sockets by which they wake each other."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import socket
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from tests.store.build import answer, answers, append, leave, session, start
from tests.store.conftest import Open
from tests.store.test_sqlite import path_of

from ironflow.errors import StoreUnreachable
from ironflow.model.transition import APPLIED, EXISTS
from ironflow.store import sqlite_log, turnstile
from ironflow.store.base import Store


# ---- the turn
async def test_two_stores_of_one_process_share_one_turnstile(sqlite: Store, sqlite_url: str, open_store: Open) -> None:
    other = await open_store(sqlite_url)
    assert sqlite._turnstile is other._turnstile  # type: ignore[attr-defined]
    stores = [sqlite, other]
    for store in stores:
        store.concurrent_writers = 20
    found = await asyncio.gather(*[stores[n % 2].submit(start(f"r{n // 2}")) for n in range(40)])  # type: ignore[arg-type]
    assert sorted(found) == [APPLIED] * 20 + [EXISTS] * 20
    await other.close()
    assert await answer(sqlite, leave("r0", 4, "completed")) == APPLIED


def test_a_deadlock_that_the_kernel_believes_in_is_waited_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turn = turnstile.turnstile_of(tmp_path / "iron.db")
    lockf, waits = fcntl.lockf, 0

    def refused(fd: int, how: int) -> None:
        nonlocal waits
        if how == fcntl.LOCK_EX | fcntl.LOCK_NB:
            raise OSError(errno.EAGAIN, "somebody has it")
        if how == fcntl.LOCK_EX:
            waits += 1
            if waits <= 2:
                raise OSError(errno.EDEADLK, "Resource deadlock avoided")
        lockf(fd, how)

    monkeypatch.setattr(fcntl, "lockf", refused)
    began = time.monotonic()
    turn.acquire(timeout=30)
    assert waits == 3
    assert time.monotonic() - began < 10
    turn.release()
    turnstile.give_back(turn)


def test_nobody_goes_on_asking_for_a_turn_that_is_not_wanted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = turnstile.turnstile_of(tmp_path / "iron.db")

    def refused(fd: int, how: int) -> None:
        raise OSError(errno.EDEADLK, "Resource deadlock avoided")

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "lockf", refused)
        with pytest.raises(StoreUnreachable):
            turn.acquire(timeout=0.02)
        for helper in [one for one in threading.enumerate() if one.name == "ironflow-turn"]:
            helper.join(10)
            assert not helper.is_alive()
    turn.acquire(timeout=5)
    turn.release()
    turnstile.give_back(turn)


# ---- the log
async def test_the_log_is_written_over_and_does_not_grow(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    log = sqlite._log  # type: ignore[attr-defined]
    monkeypatch.setattr("ironflow.store.sqlite_log.LOG_BYTES", 1 << 20)
    await answers(sqlite, *[start(f"r{n}") for n in range(60)])
    connection = log._open()
    log._round(connection)
    wal = path_of(sqlite).with_name("iron.db-wal")
    size = wal.stat().st_size
    assert size >= 1 << 20
    for round_ in range(20):
        await answers(sqlite, *[append(f"r{n}", 4 + round_) for n in range(60)])
        log._round(connection)
    connection.close()
    assert wal.stat().st_size == size
    assert await sqlite.check() == []
    assert await sqlite.counts() == {"running": 60}


async def test_the_log_is_looked_after_once_there_is_something_to_look_after(sqlite: Store) -> None:
    log = sqlite._log  # type: ignore[attr-defined]
    assert log._thread is None
    done = threading.Event()
    log._round = lambda connection: done.set()
    for n in range(60):
        await answer(sqlite, start(f"r{n}"))
    assert await asyncio.to_thread(done.wait, 10)


async def test_the_log_is_looked_after_again_when_the_file_could_not_be_opened_at_first(sqlite: Store) -> None:
    log = sqlite._log  # type: ignore[attr-defined]
    open_connection, opened, rounds = log._open, [], threading.Semaphore(0)

    def refuse_once() -> sqlite3.Connection:
        opened.append(1)
        if len(opened) == 1:
            rounds.release()
            raise sqlite3.OperationalError("unable to open database file")
        return open_connection()  # type: ignore[no-any-return]

    log._open, log._round = refuse_once, lambda connection: rounds.release()
    for _ in range(2):
        log.wrote(sqlite_log.ROUND)
        assert await asyncio.to_thread(rounds.acquire, timeout=10)
    assert len(opened) == 2


# ---- waking others
async def test_a_wake_up_reaches_the_other_store_on_the_file(sqlite: Store, sqlite_url: str, open_store: Open) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    address = await sqlite.listen(heard.put_nowait)
    assert address is not None
    assert await sqlite.listen(heard.put_nowait) == address
    assert Path(address).parent.stat().st_mode & 0o777 == 0o700
    other = await open_store(sqlite_url)
    listener = session(sqlite, wake_address=address)
    gone = session(sqlite, "s2", wake_address=f"{address}-gone")
    deaf = session(sqlite, "s3")
    other.notify("runs:r1", [gone, deaf, listener])
    sqlite.notify("own", [listener])
    other.notify("queue", [listener])
    assert [await asyncio.wait_for(heard.get(), 10) for _ in range(2)] == ["runs:r1", "queue"]
    await sqlite.close()
    assert not Path(address).exists()


async def test_a_closed_store_tells_nobody_and_opens_no_socket_to_do_so(
    sqlite: Store, sqlite_url: str, open_store: Open
) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = session(sqlite, wake_address=await sqlite.listen(heard.put_nowait))
    other = await open_store(sqlite_url)
    await other.close()
    other.notify("late", [listener])
    assert await other.listen(print) is None
    another = await open_store(sqlite_url)
    another.notify("queue", [listener])
    assert await asyncio.wait_for(heard.get(), 10) == "queue"


async def test_sockets_of_killed_processes_are_cleared_away(sqlite: Store, sqlite_url: str, open_store: Open) -> None:
    address = await sqlite.listen(lambda topic: None)
    assert address is not None
    folder = Path(address).parent
    names = [f"{Path(address).name}-{what}" for what in ("dead", "young", "file")]
    dead, young, file = (folder / name for name in names)
    for path in (dead, young):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left:
            left.bind(str(path))
    file.touch()
    long_ago = time.time() - 3_600
    for path in (dead, file, Path(address)):
        os.utime(path, (long_ago, long_ago))
    try:
        other = await open_store(sqlite_url)
        await other.listen(lambda topic: None)
        assert not dead.exists()
        assert young.exists(), "it may be about to be bound"
        assert file.exists(), "not a socket: not ours"
        assert Path(address).exists(), "somebody listens there, however old it is"
    finally:
        for path in (young, file):
            path.unlink()


async def test_without_a_place_for_sockets_there_is_no_address(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/" + "x" * 120)
    assert await sqlite.listen(print) is None
