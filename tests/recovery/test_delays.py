"""A delay over the death of everything that could have kept it in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.recovery import program
from tests.recovery.kit import until

import ironflow
from ironflow.model import journal as j
from ironflow.testing.postgres import PostgresServer

pytestmark = pytest.mark.usefixtures("folder")


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer | None]:
    """A server of this test alone, which may kill it; None: the test is about SQLite, which has none."""
    if request.param == "sqlite":
        yield None
        return
    if os.environ.get("IRONFLOW_TEST_NO_POSTGRES") == "1":
        pytest.skip("IRONFLOW_TEST_NO_POSTGRES=1")
    with PostgresServer(fsync=False) as own:
        yield own


async def test_r27_a_delay_survives_the_death_of_every_process_that_of_the_database_too(
    server: PostgresServer | None, sqlite_url: str
) -> None:
    url = sqlite_url if server is None else server.create_database("delays")
    async with ironflow.open(url, worker=False) as client:
        with program.workers(url, 1) as (worker,):
            run = await client.start(program.nap, "x")
            (wait,) = await until(lambda: client.store.waits(run.id))
            worker.kill()
    if server is not None:
        server.kill()
        server.start()
    async with ironflow.open(url, worker=False) as client:
        assert [(one.status, one.due_at) for one in await client.store.waits(run.id)] == [("sleeping", wait.due_at)]
        assert await client.store.next_due() == wait.due_at
        with program.workers(url, 1):
            assert await client.handle(run.id, program.nap).result(timeout=20) == ["x-1", "x-2"]
        (fired,) = [event.at for event in await client.store.journal(run.id) if event.kind == j.TIMER_FIRED]
        assert wait.due_at is not None
        assert fired >= wait.due_at
        assert [told for told, _, _ in program.lines("x-")] == ["x-1", "x-2"]
