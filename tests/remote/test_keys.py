"""A worker whose key is taken back stops by itself, says so, and is not started again and again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.recovery import program
from tests.recovery.kit import until
from tests.remote.kit import Served, client, served, working
from tests.remote.processes import running

from ironflow.cli import exits
from ironflow.errors import Unauthenticated
from ironflow.model import key as kinds
from ironflow.server import keys


async def revoke(here: Served, key_id: str | None = None) -> None:
    """Take the key of the workers back."""
    found = [row.key_id for row in await here.node.store.keys(None) if row.revoked_at is None]
    for one in found if key_id is None else [key_id]:
        assert await here.node.store.revoke_key(one, "tests")


async def new_key(here: Served) -> str:
    """Another key for workers."""
    row, secret = keys.issue(kinds.WORKER, "another", now=here.node.store.now(), by="tests")
    assert await here.node.store.add_key(row, keys.audit_of(row))
    return secret


async def test_a_worker_whose_key_is_revoked_is_told_and_takes_nothing_more(store_url: str) -> None:
    async with served(store_url) as here, working(here.url, here.key, [program.line]) as worker:
        assert worker.free > 0
        assert worker.refused is None
        await revoke(here)
        await until(lambda: worker.refused)  # by the next heartbeat, although a poll is held
        assert isinstance(worker.refused, Unauthenticated)
        assert here.url in worker.refused.message
        assert here.key not in str(worker.refused)
        assert "--key-file" in str(worker.refused)
        assert (worker.dismissed.is_set(), worker.free) == (True, 0)


async def test_a_key_that_never_counted_is_the_error_of_the_start(store_url: str) -> None:
    async with served(store_url) as here:
        with pytest.raises(Unauthenticated, match=here.url):  # of several nodes one may be on another database
            async with working(here.url, f"ifworker_{'0' * 43}", [program.line]):
                pass


async def test_what_a_proxy_refuses_does_not_end_a_worker(sqlite_url: str) -> None:
    async with served(sqlite_url) as here, working(here.url, here.key, [program.line]) as worker:
        connection = worker.port.connection  # type: ignore[attr-defined]
        for status in (401, 403):
            error = connection.refused(status, "<html>Please log in</html>", here.url)
            assert (error.code, error.status) == ("SERVER_FAILED", status)
        await asyncio.sleep(0)
        assert worker.refused is None


async def test_a_worker_process_ends_with_the_error_and_its_run_goes_on_with_whoever_has_a_key(
    store_url: str, folder: Path
) -> None:
    async with served(store_url) as here, client(store_url, [program.line]) as engine:
        with running(here.url, here.key) as one:
            await asyncio.to_thread(one.event, "ready")
            run = await engine.start(program.line, "x")
            await until(lambda: program.lines("x-2"))
            await revoke(here)
            said, _ = await asyncio.to_thread(one.process.communicate)
            assert one.process.returncode == exits.ACCESS
        assert '"code": "UNAUTHENTICATED"' in said
        assert here.key not in said
        program.open_gate("x-2")
        async with working(here.url, await new_key(here), [program.line]):
            assert await run.result(timeout=20) == ["x-1", "x-2", "x-3"]


async def test_a_supervisor_does_not_start_refused_workers_again(store_url: str, folder: Path) -> None:
    async with served(store_url) as here:
        with running(here.url, here.key, "--processes", "2") as supervisor:
            for _ in range(2):
                await asyncio.to_thread(supervisor.event, "ready")
            await revoke(here)
            told = await asyncio.to_thread(supervisor.process.communicate)
            assert supervisor.process.returncode == exits.ACCESS, told
            assert told[0].count('"event": "refused"') == 2
            assert '"event": "died"' not in told[0]


async def test_a_supervisor_starts_a_refused_worker_again_where_its_key_file_holds_another_key(
    sqlite_url: str, folder: Path, tmp_path: Path
) -> None:
    async with served(sqlite_url) as here:
        file = tmp_path / "key"
        file.write_text(here.key)
        with running(here.url, "", "--processes", "1", "--key-file", str(file)) as supervisor:
            first = await asyncio.to_thread(supervisor.event, "ready")
            file.write_text(await new_key(here))
            (old,) = [row.key_id for row in await here.node.store.keys(None) if row.name == "worker"]
            await revoke(here, old)
            assert (await asyncio.to_thread(supervisor.event, "died"))["code"] == exits.ACCESS
            second = await asyncio.to_thread(supervisor.event, "ready")
            assert first["pid"] != second["pid"]
