"""Hosts that cannot say a word: cut off, or frozen with their supervisor. Others go on in time; who is back is fenced.

Nobody reports these, because nobody died. A broken connection is a suspicion, which acts after `suspect_after`; a host
that stands still keeps its connections, and only its clocks tell.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import until
from tests.recovery.program import WORKFLOWS, lines, open_gate
from tests.remote.kit import client, served
from tests.remote.processes import Running, running

from ironflow.config import Settings
from ironflow.engine import doctor
from ironflow.model import journal as j
from ironflow.model import recovery
from ironflow.testing.relay import Relay

pytestmark = pytest.mark.usefixtures("folder")

#: What is promised beyond `suspect_after`, and beyond the time to live, seconds.
SUSPICION_S, CLOCK_S = 1.0, 2.0


async def event(process: Running, name: str) -> dict[str, Any]:
    return await asyncio.to_thread(process.event, name)


@contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """These processes stand still, the first one first."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


async def elsewhere(step: str, since: int) -> tuple[int, float]:
    """Wait for the second body of a step: in which process it began, and how long after that time (ns), seconds."""
    _, (_, pid, at) = await until(lambda: len(lines(step)) == 2 and lines(step))
    return pid, (at - since) / 1e9


async def check(looking: Any, run: Any, reason: str) -> None:
    """The run was lost once, for this reason; each step ended once; and the zombie wrote nothing."""
    assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
    assert Counter(told for told, _, _ in lines("x-")) == {"x-1": 1, "x-2": 2, "x-3": 1}
    events = [one async for one in run.journal()]
    assert [one.data()["reason"] for one in events if one.kind == j.RUN_RECOVERED] == [reason]
    assert Counter(one.step_id for one in events if one.kind == j.STEP_COMPLETED).most_common(1)[0][1] == 1
    assert [found for found in await doctor.examine(looking.store) if found.run_id is not None] == []


async def known(looking: Any, *names: str) -> bool:
    return {session.worker_id for session in await looking.store.sessions()} == set(names)


async def test_a_step_of_a_worker_that_is_cut_off_begins_elsewhere_a_second_after_it_is_suspect(store_url: str) -> None:
    settings = Settings(renewal_interval_ms=400, suspect_after_ms=1_500)
    async with (
        served(store_url, settings) as server,
        Relay(server.url) as relay,
        client(store_url, WORKFLOWS) as looking,
    ):
        with running(relay.url, server.key, "--worker-id", "cut") as cut:
            await event(cut, "ready")
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            with running(server.url, server.key, "--worker-id", "other") as other:
                await event(other, "ready")
                at = time.monotonic_ns()
                relay.cut()
                pid, took = await elsewhere("x-2", at)
                assert pid == other.pid
                assert 1.5 <= took <= 1.5 + SUSPICION_S
                await relay.up()
                await until(lambda: lines("cancelled x-2"), "the worker that is back gives its step up")
                open_gate("x-2")
                await check(looking, run, recovery.SUSPICION)
                await until(lambda: known(looking, "cut", "other"))


async def test_a_step_of_a_frozen_host_begins_elsewhere_two_seconds_after_its_lease_at_the_latest(
    store_url: str,
) -> None:
    """The supervisor stands still with its worker: it reports nothing. Thawed, they work on, and the step is lost."""
    settings = Settings(renewal_interval_ms=400, lease_ttl_ms=1_500, session_ttl_ms=1_500, suspect_after_ms=None)
    async with served(store_url, settings) as server, client(store_url, WORKFLOWS) as looking:
        with running(server.url, server.key, "--processes", "1", "--worker-id", "host") as host:
            worker = (await event(host, "ready"))["pid"]
            run = await looking.start(program.line, "x")
            await until(lambda: lines("x-2"))
            with running(server.url, server.key, "--worker-id", "other") as other:
                await event(other, "ready")
                with frozen(host.pid, worker):
                    pid, took = await elsewhere("x-2", time.monotonic_ns())
                    assert pid == other.pid
                    assert took <= 1.5 + CLOCK_S
                    # Both bodies wait for it: the zombie's has ended before it can hear that it is one.
                    open_gate("x-2")
                    assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
                await until(lambda: known(looking, "host-1", "other"))
                await check(looking, run, recovery.EXPIRED)
                other.send(signal.SIGTERM)
                assert await asyncio.to_thread(other.process.wait, 20) == 0
            await looking.run(program.short, "later")
            assert [told[1] for told in lines("later")] == [worker], "it is the same process, and it works"
