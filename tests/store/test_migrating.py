"""A database that an earlier release has written comes through with everything that was in it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.store.build import answer, create, peek_one, start
from tests.store.conftest import Open

from ironflow.model.capacity import EMBEDDED
from ironflow.model.scope import DEFAULT, Scope
from ironflow.store import migrate
from ironflow.store.base import Store
from ironflow.store.sqlite_connection import statements
from ironflow.testing.postgres import PostgresServer

#: What was written under schema 1.
WRITTEN = """
insert into workflow_pauses (org, workflow, paused_at, paused_by) values ('default', 'report', 5, 'ann');
insert into workflows_seen (name, version, worker_tags, first_seen_at, seen_at) values ('order', '2', 'gpu', 3, 4);
insert into audit_log (audit_id, org, at, action, actor, fields)
values ('00', 'default', 5, 'workflow_paused', 'ann', '{"workflow":"report"}');
insert into worker_sessions (session_id, worker_id, host, boot_id, pid, process_id, routes, slots, credits, started_at,
    heartbeat_at, expires_at)
values ('s1', 'w', 'h', 'b', 1, 'p', 'order', 1, 1, 1, 2, 3);
"""


def script(dialect: str) -> str:
    first = migrate.migrations(dialect)[0].text.rstrip().removesuffix(";")
    applied = "insert into ironflow_migrations (version, name, applied_at) values (1, 'foundation', 1)"
    return ";\n".join((migrate.BOOKKEEPING, first, applied, WRITTEN))


def _sqlite(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements(script("sqlite")):
            connection.execute(statement)
    return f"sqlite:///{path}"


async def _postgres(url: str) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(script("postgres"))
    finally:
        await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def old_url(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "sqlite":
        yield _sqlite(tmp_path / "old.db")
        return
    server: PostgresServer = request.getfixturevalue("postgres_server")
    url = server.create_database("schema_one")
    await _postgres(url)
    yield url
    server.drop_database("schema_one")


async def test_what_was_written_before_scopes_is_of_the_default_one(old_url: str, open_store: Open) -> None:
    store: Store = await open_store(old_url)
    assert await store.paused_workflows() == {"report": 5}
    assert await store.paused_workflows(Scope("a")) == {}
    (seen,) = await store.workflows()
    assert (seen["name"], seen["version"], seen["worker_tags"], seen["first_seen_at"]) == ("order", "2", "gpu", 3)
    (told,) = await store.audits(scope=DEFAULT)
    assert (told["action"], told["environment"]) == ("workflow_paused", "default")
    (session,) = await store.sessions()
    assert (session.scope, session.kind, session.serves) == (DEFAULT, EMBEDDED, None)


async def test_a_database_of_an_earlier_release_goes_on_working(old_url: str, open_store: Open) -> None:
    store: Store = await open_store(old_url)
    await answer(store, start("r1"))
    await answer(store, create("r2", workflow="report"))
    assert await store.peek(["report"], 1) == []
    assert await store.resume_workflow("report", "ann")
    assert (await peek_one(store, "report")).run_id == "r2"
    await (await open_store(old_url)).close()  # a second time there is nothing to do
