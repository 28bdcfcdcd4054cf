"""Ctrl-C, or a cancellation, while an engine is opened, used or closed: nothing of it is left behind."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import PATIENCE, quick, until
from tests.recovery.program import lines

import ironflow
import ironflow.runtime.engine
from ironflow import Engine
from ironflow.model import run as runs
from ironflow.runtime.thread import LoopThread
from ironflow.store import connect
from ironflow.store.base import Store

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Ctrl-C as a script has it, also where a test runner has made something else of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def threads() -> set[str]:
    """The threads of engines in this process."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("ironflow-")}


def interrupt() -> None:
    """Ctrl-C comes to the main thread, wherever it is."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


async def until_cancelled() -> None:
    """Return once a task of this loop is being cancelled, or was."""
    here = asyncio.current_task()
    others = asyncio.all_tasks() - {here}
    while not any(task.cancelling() for task in others) and not (here is not None and here.cancelling()):
        await asyncio.sleep(0)


class Opening:
    """A store's opening that is interrupted when the database is open already, and nobody has got hold of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
        self.opened: list[Store] = []
        self._meanwhile = meanwhile
        monkeypatch.setattr(ironflow.runtime.engine, "connect", self._connect)

    async def _connect(self, url: str, **options: Any) -> Store:
        store = await connect(url, **options)
        self.opened.append(store)
        self._meanwhile()
        await until_cancelled()
        return store


def test_ctrl_c_while_an_engine_is_opened_leaves_no_thread_behind(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threads()
    opening = Opening(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt), ironflow.open(sqlite_url, workflows=program.WORKFLOWS):
        pytest.fail("it was not interrupted")
    assert len(opening.opened) == 1
    assert threads() == before


async def test_an_opening_that_is_cancelled_is_undone(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads()
    engine = Engine(store_url, workflows=program.WORKFLOWS)
    entering: list[asyncio.Future[Engine]] = []
    opening = Opening(monkeypatch, lambda: [task.cancel() for task in entering])
    entering.append(asyncio.ensure_future(engine.__aenter__()))
    with pytest.raises(asyncio.CancelledError):
        await entering[0]
    assert opening.opened[0]._closed  # type: ignore[attr-defined]
    assert threads() == before
    monkeypatch.undo()
    async with Engine(store_url, worker=False) as client:
        assert await client.store.sessions() == []


async def test_a_worker_that_cannot_begin_is_stopped_again(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its heartbeat went on for ever, and renewed the session of a worker that there was not."""
    before = threads()

    async def fails(session: Any) -> None:
        raise LookupError("the peers could not be read")

    monkeypatch.setattr("ironflow.worker.store_session.StoreSession.look_around", fails)
    with pytest.raises(LookupError):
        await Engine(store_url, workflows=program.WORKFLOWS).__aenter__()
    assert threads() == before
    async with Engine(store_url, worker=False) as client:
        assert await client.store.sessions() == []


def test_ctrl_c_while_an_engine_is_closed_gives_everything_back_at_once(sqlite_url: str) -> None:
    before = threads()
    settings = quick(drain_timeout_ms=600_000)
    engine = ironflow.open(sqlite_url, workflows=program.WORKFLOWS, settings=settings)
    engine.__enter__()
    run = engine.wait(engine.start(program.line, "x"))
    engine.wait(until(lambda: lines("x-2")))
    worker = engine.worker
    assert worker is not None
    stop = worker.stop

    async def stops(*, drain_ms: int | None = None) -> None:
        if drain_ms is None:
            interrupt()
        await stop(drain_ms=drain_ms)

    worker.stop = stops  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.__exit__(None, None, None)
    assert threads() == before
    with ironflow.open(sqlite_url, worker=False) as client:
        assert client.wait(client.get(run.id)).state == runs.PENDING
        assert client.wait(client.store.sessions()) == []


async def test_a_closing_that_is_cancelled_gives_everything_back_at_once(store_url: str) -> None:
    before = threads()
    engine = Engine(store_url, workflows=program.WORKFLOWS, settings=quick(drain_timeout_ms=600_000))
    await engine.__aenter__()
    run = await engine.start(program.line, "x")
    await until(lambda: lines("x-2"))
    worker = engine.worker
    assert worker is not None
    closing = asyncio.create_task(engine.close())
    await until(lambda: worker.stopping)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert threads() == before
    async with Engine(store_url, worker=False) as client:
        assert (await client.get(run.id)).state == runs.PENDING
        assert await client.store.sessions() == []


def test_ctrl_c_waits_until_what_it_cut_short_has_undone_what_it_did() -> None:
    thread, undone = LoopThread(), []

    async def cut_short() -> None:
        interrupt()
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(100):
                await asyncio.sleep(0)
            undone.append(True)

    with pytest.raises(KeyboardInterrupt):
        thread.run(cut_short())
    assert undone
    thread.stop()


def test_what_is_left_on_a_loop_ends_with_it() -> None:
    thread, ended = LoopThread(), threading.Event()

    async def stays() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def begin() -> asyncio.Task[None]:
        task = asyncio.create_task(stays())
        await asyncio.sleep(0)
        return task

    task = thread.run(begin())
    thread.stop()
    assert ended.wait(PATIENCE)
    assert task.cancelled()
