"""What a worker may hold in name only, and giving it back; and what one that asks nothing says of an outage."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recovery import program
from tests.recovery.kit import quick, until
from tests.recovery.program import lines, open_gate
from tests.worker.test_holding import engine, worker_of

from ironflow.errors import StoreUnreachable
from ironflow.model import journal as j

pytestmark = pytest.mark.usefixtures("folder")


async def test_a_run_whose_activation_was_committed_unheard_does_not_stand_still_for_a_lease(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker gave a run up while the database was away, and the write was carried out: it stood still for 20 s."""
    settings = quick(lease_ttl_ms=60_000, session_ttl_ms=60_000)
    async with engine(store_url, settings) as one, engine(store_url, settings, worker=False) as client:
        port = worker_of(one).port
        real, unheard = port.submit, []

        async def carried_out(change: Any) -> str:
            answer = real(change)
            unheard.append(answer if isinstance(answer, str) else await answer)
            raise StoreUnreachable("the answer was lost")

        monkeypatch.setattr(
            port, "submit", lambda change: real(change) if unheard or not change.lease else carried_out(change)
        )
        run = await client.start(program.short, "x")
        assert await run.result(timeout=20) == "x"
        assert unheard == ["applied"]
        assert (await client.get(run.id)).row.lease_recoveries == 0
        kinds = [event.kind for event in await client.store.journal(run.id)]
        assert (kinds.count(j.RUN_RELEASED), kinds.count(j.RUN_RECOVERED)) == (1, 0)


async def test_giving_back_names_the_fence_of_what_is_given_back(store_url: str) -> None:
    """The same worker may have taken the run again since: that segment is none of the first one's affair."""
    async with engine(store_url) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        worker = worker_of(one)
        ((run_id, seq, token),) = worker._held().values()
        session_id = worker.session.row.session_id
        await worker.port.release([(run_id, seq, token[::-1])], session_id)
        await worker.port.release([(run_id, seq - 1, token)], session_id)
        assert [lease.run_id for lease in await one.store.leases()] == [run.id]
        open_gate("x-2")
        assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]
        assert j.RUN_RELEASED not in [event.kind for event in await one.store.journal(run.id)]


async def test_a_worker_that_asks_nothing_does_not_say_that_its_looks_succeed_again(sqlite_url: str) -> None:
    async with engine(sqlite_url, quick(concurrency=1)) as one:
        run = await one.start(program.line, "x")
        await until(lambda: lines("x-2"))
        dispatcher = worker_of(one).dispatcher
        dispatcher._outage.lasts = True
        for _ in range(3):
            dispatcher.wake()
            await until(lambda: not dispatcher._kick.is_set())
        assert dispatcher._outage.lasts, "it has no free slot, so it has not looked"
        open_gate("x-2")
        await run.result(timeout=20)
        await until(lambda: not dispatcher._outage.lasts)
