"""Databases for the tests: every test gets one of its own, on SQLite and on a real PostgreSQL.

Each pytest-xdist worker starts one private server, without fsync, at the first test that needs it. That
takes half a second once, and the workers share nothing that could couple their tests. The schema is migrated
once per worker, into a template; a test's database is a copy of it, some 20 ms, and is dropped afterwards.

PostgreSQL is half of what Ironflow promises, so a machine without it fails these tests. Whoever accepts less
sets IRONFLOW_TEST_NO_POSTGRES=1 and has them skipped.
"""

from __future__ import annotations

import asyncio
import compileall
import itertools
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

import hypothesis
import pytest

import ironflow
from ironflow.testing.postgres import PostgresServer

TEMPLATE = "ironflow_template"

# Wall-clock limits per example would make a busy machine fail; pytest-timeout bounds the whole test.
hypothesis.settings.register_profile("default", deadline=None)
# The same examples at every run, so that a red build is about the change and not about luck.
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the package once, where Python is told to write nothing: hundreds of processes would each do it anew."""
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(ironflow.__file__).parent, quiet=2)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """A command sets logging up for its process, which here is that of all tests."""
    yield
    logging.getLogger("ironflow.runs").disabled = False
    for name, level in (("ironflow", logging.NOTSET), ("asyncio", logging.NOTSET), ("", logging.WARNING)):
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """This worker's PostgreSQL, running. Tests that kill or restart a server start their own instead."""
    if os.environ.get("IRONFLOW_TEST_NO_POSTGRES") == "1":
        pytest.skip("IRONFLOW_TEST_NO_POSTGRES=1")
    with PostgresServer(fsync=False) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a database with Ironflow's schema and nothing in it."""
    url = postgres_server.create_database(TEMPLATE)
    _in_own_loop(lambda: _migrate(url))
    return TEMPLATE


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """The address of a fresh, migrated PostgreSQL database."""
    name = f"test_{next(_numbers)}"
    yield postgres_server.create_database(name, template=postgres_template)
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The address of a SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path}/iron.db"


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest) -> str:
    """Runs the test on both databases: what holds on one must hold on the other."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


async def _migrate(url: str) -> None:
    from ironflow.store import (
        connect,
    )  # here, so that tests of other parts run while the store does not import

    store = await connect(url)
    await store.close()


def _in_own_loop(make_coroutine: Callable[[], Coroutine[object, object, None]]) -> None:
    """Run a coroutine in a thread of its own: the main thread's event loop belongs to pytest-asyncio."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(make_coroutine())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
