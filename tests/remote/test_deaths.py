"""Worker processes over HTTP that are killed, stopped, and cut off: nothing is done by hand, nothing is done twice.

Settings are the defaults unless a test says otherwise (a lease lasts 20 s), so what goes on within a second was proven.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import WORKFLOWS, lines, open_gate
from tests.remote.kit import client, served
from tests.remote.processes import running

from ironflow.cli.words import WORDS_VARIABLE, Words
from ironflow.config import Settings
from ironflow.model import journal as j
from ironflow.testing.relay import Relay

pytestmark = pytest.mark.usefixtures("folder")

#: Far above what proof takes on a busy machine, far below what any clock of the default settings allows, seconds.
PROVEN_S = 3.0


async def event(process: Any, name: str) -> dict[str, Any]:
    return await asyncio.to_thread(process.event, name)


async def test_g3_g4_r3_a_killed_childs_run_goes_on_elsewhere_at_once(store_url: str) -> None:
    settings = Settings(suspect_after_ms=None)
    async with served(store_url, settings) as server, client(store_url, WORKFLOWS) as looking:
        with running(server.url, server.key, "--processes", "2", "--worker-id", "w") as supervisor:
            await event(supervisor, "ready")
            await event(supervisor, "ready")
            run = await looking.start(program.line, "x")
            _, victim, _ = (await until(lambda: lines("x-2")))[0]
            killed = time.monotonic_ns()
            os.kill(victim, signal.SIGKILL)
            again = (await until(lambda: len(lines("x-2")) == 2 and lines("x-2")))[1]
            assert (again[2] - killed) / 1e9 < PROVEN_S
            assert again[1] != victim
            assert (await event(supervisor, "died"))["pid"] == victim
            open_gate("x-2")
            assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
            assert Counter(told for told, _, _ in lines("x-")) == {"x-1": 1, "x-2": 2, "x-3": 1}
            events = [event async for event in run.journal()]
            (recovered,) = [one for one in events if one.kind == j.RUN_RECOVERED]
            assert recovered.data()["reason"] == "the process is gone"
            await event(supervisor, "ready")  # the next child
            supervisor.send(signal.SIGTERM)
            assert await asyncio.to_thread(supervisor.process.wait, 20) == 0
        assert await looking.store.sessions() == []


@pytest.mark.parametrize("code", [0, 79])
async def test_a_step_that_ends_its_process_with_any_code_has_not_left_in_order(sqlite_url: str, code: int) -> None:
    """Its runs go on at once, and the process is replaced: what a code says, a step can say, too."""
    settings = Settings(suspect_after_ms=None)
    async with served(sqlite_url, settings) as server, client(sqlite_url, WORKFLOWS) as looking:
        with running(server.url, server.key, "--processes", "2") as supervisor:
            await event(supervisor, "ready")
            await event(supervisor, "ready")
            run = await looking.start(program.quits, f"q-{code}")
            await run.result(timeout=20)
            first, second = lines("q")
            assert (second[2] - first[2]) / 1e9 < PROVEN_S
            assert (await event(supervisor, "died"))["code"] == code
            await event(supervisor, "ready")  # the next child
            supervisor.send(signal.SIGTERM)
            assert await asyncio.to_thread(supervisor.process.wait, 20) == 0
        assert await looking.store.sessions() == []


async def test_a_supervisor_ends_when_its_children_cannot_begin_with_what_it_was_told(sqlite_url: str) -> None:
    async with served(sqlite_url) as server:
        with running(server.url, server.key, "--processes", "2", "--tag", "no tag") as supervisor:
            assert await asyncio.to_thread(supervisor.process.wait, 30) == 2


async def test_g13_a_thawed_worker_writes_nothing_and_works_on(sqlite_url: str) -> None:
    """Stopped for longer than its lease lasts: another takes the run; thawed, it stops its body and is known again."""
    settings = quick(suspect_after_ms=None)
    async with served(sqlite_url, settings) as server, client(sqlite_url, WORKFLOWS) as looking:
        with running(server.url, server.key, "--worker-id", "frozen") as frozen:
            await event(frozen, "ready")
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            frozen.send(signal.SIGSTOP)
            with running(server.url, server.key, "--worker-id", "other") as other:
                await event(other, "ready")
                told = await until(lambda: len(lines("x-2")) == 2 and lines("x-2"))
                assert (told[0][1], told[1][1]) == (frozen.pid, other.pid)
                frozen.send(signal.SIGCONT)
                await until(lambda: lines("cancelled x-2"))
                open_gate("x-2")
                assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
                assert Counter(told for told, _, _ in lines("x-")) == {"x-1": 1, "x-2": 2, "x-3": 1}
                other.send(signal.SIGTERM)
                await asyncio.to_thread(other.process.wait, 20)
            await until(lambda: _names(looking, {"frozen"}))
            assert await looking.run(program.short, "later") == "later"


async def _names(looking: Any, names: set[str]) -> bool:
    return {session.worker_id for session in await looking.store.sessions()} == names


async def test_a_run_whose_own_code_kills_its_worker_is_charged_and_then_executed_alone(sqlite_url: str) -> None:
    """The supervisor reads what the dead was opening; a suspect then kills a process that executes nothing else.

    A reservation lasts for less than such a process takes to start: its parent keeps it meanwhile.
    """
    settings = Settings(suspect_after_ms=None, recovery_ceiling=2, reservation_ttl_ms=300)
    async with served(sqlite_url, settings) as server, client(sqlite_url, WORKFLOWS) as looking:
        with running(server.url, server.key, "--processes", "1") as supervisor:
            await event(supervisor, "ready")
            run = await looking.start(program.poison, "p")
            await until(lambda: _ended(looking, run.id), "it was found out", 60)
            row = (await looking.get(run.id)).row
            assert (row.state, row.reason) == ("failed", "EXECUTION_RECOVERY_EXHAUSTED")
            killed = [pid for _, pid, _ in lines("p")]
            assert len(killed) == 3
            children = [json["pid"] for json in [await event(supervisor, "died") for _ in range(2)]]
            assert children == killed[:2], "after two losses it is alone"
            await event(supervisor, "ready")
            assert await looking.run(program.short, "later") == "later"


async def _ended(looking: Any, run_id: str) -> bool:
    return bool((await looking.get(run_id)).row.ended)


@pytest.mark.parametrize("signals", [1, 2])
async def test_a_worker_leaves_within_its_limit_although_the_server_is_away(sqlite_url: str, signals: int) -> None:
    settings = Settings(suspect_after_ms=None)
    async with served(sqlite_url, settings) as server, Relay(server.url) as relay, client(sqlite_url, WORKFLOWS) as c:
        with running(relay.url, server.key, drain_timeout="1s") as process:
            await event(process, "ready")
            await c.start(program.line, "x")
            await until(lambda: lines("x-2"))
            relay.cut()
            await _stopped(process, signals)


async def test_a_worker_that_has_not_begun_leaves_at_a_signal(sqlite_url: str) -> None:
    """A server that takes the connection and never answers: the registration would go on for a minute."""
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    with running(f"http://127.0.0.1:{port}", "ifworker_" + "0" * 43, drain_timeout="1s") as process:
        await asyncio.wait_for(asked.wait(), 30)
        began = time.monotonic()
        process.send(signal.SIGTERM)
        assert await asyncio.to_thread(process.process.wait, 20) == 0
        assert time.monotonic() - began < 1 + 2 + 1.5
    listening.close()


async def _stopped(process: Any, signals: int) -> None:
    began = time.monotonic()
    process.send(signal.SIGTERM)
    if signals == 2:
        await event(process, "draining")
        process.send(signal.SIGTERM)
    code = await asyncio.to_thread(process.process.wait, 20)
    assert time.monotonic() - began < 1 + 2 + 1.5  # and the start and end of an interpreter on a busy machine
    assert code == (0 if signals == 1 else 75)


async def test_a_child_that_has_just_died_does_not_spoil_the_end_of_the_others(sqlite_url: str) -> None:
    async with served(sqlite_url, quick()) as server:
        with running(server.url, server.key, "--processes", "2") as supervisor:
            victim = await event(supervisor, "ready")
            await event(supervisor, "ready")
            os.kill(victim["pid"], signal.SIGKILL)
            await event(supervisor, "died")
            supervisor.send(signal.SIGTERM)
            assert await asyncio.to_thread(supervisor.process.wait, 20) == 0


async def test_a_child_that_is_asked_to_leave_leaves_and_is_not_replaced(sqlite_url: str) -> None:
    async with served(sqlite_url, quick()) as server, client(sqlite_url, WORKFLOWS) as looking:
        with running(server.url, server.key, "--processes", "2") as supervisor:
            asked = await event(supervisor, "ready")
            other = await event(supervisor, "ready")
            await looking.store.drain(asked["session_id"])
            assert (await event(supervisor, "stopped"))["worker_id"] == asked["worker_id"]
            assert await looking.run(program.short, "later") == "later"
            await looking.store.drain(other["session_id"])
            assert await asyncio.to_thread(supervisor.process.wait, 20) == 0, "nobody is left to be supervised"


@pytest.mark.parametrize(
    ("servers", "key", "code"),
    [(["http://127.0.0.1:9"], "ifworker_" + "0" * 43, 5), (None, "ifworker_" + "0" * 43, 7), (["ftp://x"], "x" * 9, 2)],
)
async def test_a_worker_that_cannot_begin_says_why_with_its_exit_code(
    sqlite_url: str, servers: list[str] | None, key: str, code: int
) -> None:
    async with served(sqlite_url) as server:
        with running(servers or server.url, key) as process:
            assert await asyncio.to_thread(process.process.wait, 30) == code


def test_a_child_does_not_wait_for_a_supervisor_that_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    monkeypatch.setenv(WORDS_VARIABLE, str(write))
    by = Words.of_this_process().supervised()
    assert by is not None
    telling = threading.Thread(target=lambda: [by.announce("s" * 36) for _ in range(10_000)], daemon=True)
    telling.start()
    telling.join(10)
    assert not telling.is_alive(), "it waits for room in the pipe"
    assert os.read(read, 45) == b"session " + b"s" * 36 + b"\n"
    os.close(read)
    os.close(write)
