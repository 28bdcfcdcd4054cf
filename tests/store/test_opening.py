"""Opening a database that is not there, not ours, not writable, or just being made: one clear error each."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ironflow.errors import StoreCorrupt, StoreReadOnly, StoreUnreachable
from ironflow.store import connect
from ironflow.store.reader import RunFilter
from ironflow.testing.postgres import PostgresServer


async def test_who_reads_before_anything_was_made_is_told_what_makes_it(tmp_path: Path) -> None:
    file = tmp_path / "iron.db"
    with pytest.raises(StoreUnreachable, match=r"no Ironflow database at .*iron\.db yet.*ironflow run") as seen:
        await connect(f"sqlite:///{file}", read_only=True)
    assert "`worker …`" in str(seen.value)
    assert list(tmp_path.iterdir()) == [], "looking must not leave a database behind"


async def test_an_empty_file_is_no_database_yet(tmp_path: Path) -> None:
    file = tmp_path / "iron.db"
    file.touch()
    os.utime(file, (1, 1))  # nobody is making it now
    with pytest.raises(StoreUnreachable, match=r"no Ironflow database at .*iron\.db yet"):
        await connect(f"sqlite:///{file}", read_only=True)


async def test_an_empty_postgres_database_is_none_yet(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("nothing_in_it")
    try:
        with pytest.raises(StoreUnreachable, match=r"no Ironflow database at postgresql://.*nothing_in_it.* yet"):
            await connect(url, read_only=True)
    finally:
        postgres_server.drop_database("nothing_in_it")


async def test_a_reader_waits_for_a_file_that_is_being_made(tmp_path: Path) -> None:
    file = tmp_path / "iron.db"
    file.touch()
    making = threading.Thread(target=lambda: asyncio.run(_make(f"sqlite:///{file}")))
    reading = asyncio.ensure_future(connect(f"sqlite:///{file}", read_only=True))
    await asyncio.sleep(0)
    making.start()
    store = await reading
    assert await store.runs(RunFilter()) == []
    await store.close()
    making.join()


async def _make(url: str) -> None:
    await (await connect(url)).close()


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize(
    "table", ["runs (id integer primary key)", "ironflow_migrations (version text primary key)"], ids=["app", "tool"]
)
async def test_a_file_with_a_table_of_our_name_that_is_not_ours_is_refused_and_left_as_it_was(
    tmp_path: Path, table: str, read_only: bool
) -> None:
    file = tmp_path / "app.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"create table {table}")
    before = file.read_bytes()
    with pytest.raises(StoreCorrupt, match=r"is not an Ironflow database: another program's tables are in it"):
        await connect(f"sqlite:///{file}", read_only=read_only)
    assert file.read_bytes() == before


@pytest.mark.parametrize("first", ["ours", "theirs"])
async def test_a_program_and_ironflow_may_share_a_file_whoever_made_it(tmp_path: Path, first: str) -> None:
    url = f"sqlite:///{tmp_path}/iron.db"
    if first == "ours":
        await _make(url)
    with closing(sqlite3.connect(tmp_path / "iron.db")) as connection, connection:
        connection.execute("create table orders (id integer primary key)")
    if first == "theirs":
        await _make(url)
    for read_only in (False, True):
        await (await connect(url, read_only=read_only)).close()


async def test_in_postgres_only_a_table_of_the_same_name_is_in_the_way(postgres_server: PostgresServer) -> None:
    url = postgres_server.create_database("of_an_app")
    try:
        postgres_server.execute("create table orders (id int)", dbname="of_an_app")
        await _make(url)
        postgres_server.execute("drop table ironflow_migrations", dbname="of_an_app")
        postgres_server.execute("create table ironflow_migrations (version text)", dbname="of_an_app")
        for read_only in (True, False):
            with pytest.raises(StoreCorrupt, match="another program's tables are in it"):
                await connect(url, read_only=read_only)
    finally:
        postgres_server.drop_database("of_an_app")


@pytest.mark.parametrize("change", [("/postgres", "/nowhere"), ("postgresql://", "postgresql://nobody:wrong@")])
async def test_a_server_that_refuses_the_address_is_not_said_to_be_down(
    postgres_server: PostgresServer, change: tuple[str, str]
) -> None:
    url = re.sub(r"//[^@/]*@", "//", postgres_server.url()).replace(*change)
    with pytest.raises(StoreUnreachable, match="does not exist") as refused:
        await connect(url)
    assert refused.value.hint is not None
    assert refused.value.hint.startswith("The server is there; check the user, the password")
    assert "wrong" not in str(refused.value)


async def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "none" / "of" / "these"
    with pytest.raises(StoreUnreachable, match=f"there is no folder {folder}"):
        await connect(f"sqlite:///{folder}/iron.db")


@pytest.mark.parametrize("closed", ["file", "folder"])
async def test_what_this_user_may_not_write_is_read_only_under_the_name_of_the_database(
    tmp_path: Path, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "iron.db"
    await _make(f"sqlite:///{file}")
    shut, access = file if closed == "file" else tmp_path, os.access
    monkeypatch.setattr(os, "access", lambda place, mode: place != shut and access(place, mode))
    with pytest.raises(StoreReadOnly, match=rf"iron\.db cannot be written.*{closed}") as seen:
        await connect(f"sqlite:///{file}")
    assert "-turn" not in str(seen.value)


async def test_a_file_system_that_is_mounted_read_only_is_told_as_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = os.open

    def refuse(path: Any, *rest: Any, **more: Any) -> int:
        if str(path).endswith("-turn"):
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(path, *rest, **more)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreReadOnly, match=r"iron\.db cannot be written to: Read-only file system"):
        await connect(f"sqlite:///{tmp_path}/iron.db")
