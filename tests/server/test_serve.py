"""`ironflow serve` as a process: how it begins, what it prints, and how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.recovery.kit import until
from tests.recovery.program import ROOT
from tests.server.kit import Speaker, patient, served

from ironflow.errors import StoreUnreachable
from ironflow.server import keys
from ironflow.server.serving import bind

FLOW = """
import ironflow

@ironflow.step
async def double(n: int) -> int:
    return 2 * n

@ironflow.workflow
async def twice(ctx: ironflow.Context, n: int) -> int:
    return await double(n)
"""


class Process:
    """A server process, seen from the test."""

    def __init__(self, *words: str, files: tuple[int, int] | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ironflow", "serve", "--json", "--port", "0", *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": "0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=None if files is None else partial(resource.setrlimit, resource.RLIMIT_NOFILE, files),
        )
        self.ready: dict[str, Any] = {}

    def begin(self) -> Process:
        """Wait until it answers."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        self.ready = json.loads(line)
        assert self.ready["event"] == "ready", line
        return self

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> None:
        """Whatever its state, it is gone after this."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()


@contextmanager
def serving_process(
    *words: str, files: tuple[int, int] | None = None, **environment: str
) -> Iterator[Process]:
    """A server process that has begun; gone afterwards. `files`: how many it may have open, and raise that to."""
    process = Process(*words, files=files, **environment)
    try:
        yield process.begin()
    finally:
        process.end()


def failing(*words: str) -> tuple[int, dict[str, Any]]:
    """A server that does not begin: its exit code and its error."""
    process = Process(*words)
    out, _ = process.process.communicate(timeout=30)
    return process.process.returncode, json.loads(out)["error"]


async def ended(process: Process, patience: float) -> int:
    """The exit code; the test fails if it takes longer."""
    await until(lambda: process.process.poll() is not None, "the process ended", patience)
    return int(process.process.returncode)


async def test_dev_shows_keys_that_work_and_an_app_executes_in_the_same_process(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    words = ("--dev", "--db", f"sqlite:///{tmp_path}/iron.db", "--app", f"{tmp_path}/flow.py")
    with serving_process(*words) as process:
        assert process.ready["workflows"] == ["twice"]
        assert process.url.startswith("http://127.0.0.1:")
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {process.ready['admin_key']}"}) as http:
            async with http.post(f"{process.url}/api/v1/runs", json={"workflow": "twice", "input": 21}) as response:
                assert response.status == 201
                run_id = (await response.json())["run_id"]

            async def found() -> Any:
                async with http.get(f"{process.url}/api/v1/runs/{run_id}") as response:
                    run = await response.json()
                    return run if run["state"] == "completed" else None

            assert (await until(found))["output"] == 42
            worker = Speaker(http, process.url, process.ready["worker_key"])
            await worker.register()
        process.signal(signal.SIGTERM)
        assert await ended(process, 10) == 0


def ironflow(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `ironflow WORDS` to its end."""
    return subprocess.run(
        [sys.executable, "-m", "ironflow", *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_server_for_development_is_asked_of_all_organisations_with_the_key_that_its_refusal_names(
    tmp_path: Path,
) -> None:
    database = f"sqlite:///{tmp_path}/iron.db"
    with serving_process("--dev", "--db", database) as process:
        asked = ("capacity", "sessions", "--server", process.url)
        refused = ironflow(*asked, IRONFLOW_API_KEY=process.ready["admin_key"])
        assert refused.returncode == 7
        [command] = re.findall(r"`ironflow (apikey create [^`]*)`.*with the same --db", refused.stderr)
        made = ironflow(*command.split(), "--db", database)
        answered = ironflow(*asked, IRONFLOW_API_KEY=made.stdout.strip())
        assert (answered.returncode, answered.stderr.strip()) == (0, "no worker is connected")


async def test_a_server_says_where_its_document_is(tmp_path: Path) -> None:
    with serving_process("--dev", "--db", f"sqlite:///{tmp_path}/iron.db") as process:
        async with aiohttp.ClientSession() as http, http.get(process.ready["openapi"]) as response:
            assert (await response.json())["info"]["title"] == "Ironflow"
    told = subprocess.Popen(
        [sys.executable, "-m", "ironflow", "serve", "--port", "0", "--db", f"sqlite:///{tmp_path}/iron.db"],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert told.stderr is not None
        address = told.stderr.readline().split()[-1]
        assert told.stderr.readline() == f"its API is described at {address}/api/v1/openapi.json\n"
    finally:
        told.kill()
        told.communicate()


async def test_without_dev_no_key_is_shown(tmp_path: Path) -> None:
    with serving_process("--db", f"sqlite:///{tmp_path}/iron.db") as process:
        assert "admin_key" not in process.ready
        process.signal(signal.SIGTERM)
        out, err = process.process.communicate(timeout=10)
        assert not [prefix for prefix in keys.PREFIXES.values() if prefix in out + err]


def test_dev_refuses_to_be_reached_from_other_hosts(tmp_path: Path) -> None:
    code, error = failing("--dev", "--host", "0.0.0.0", "--db", f"sqlite:///{tmp_path}/iron.db")
    assert (code, error["code"]) == (2, "CONFIG_INVALID")
    assert "0.0.0.0" in error["message"]
    assert not (tmp_path / "iron.db").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, error = failing("--port", str(port), "--db", f"sqlite:///{tmp_path}/iron.db")
    assert code == 2
    assert str(port) in error["message"]


async def test_sigterm_answers_what_is_held_and_ends_within_two_seconds(tmp_path: Path) -> None:
    with serving_process("--dev", "--db", f"sqlite:///{tmp_path}/iron.db") as process:
        async with aiohttp.ClientSession() as http:
            worker = Speaker(http, process.url, process.ready["worker_key"])
            await worker.register()
            async with worker.liveness() as lines:
                assert "hello" in await anext(lines)
                poll = await worker.held()
                began = time.monotonic()
                process.signal(signal.SIGTERM)
                assert await asyncio.wait_for(poll, 2) == []
                with pytest.raises(StopAsyncIteration):
                    await asyncio.wait_for(anext(lines), 2)
                assert await ended(process, 2 - (time.monotonic() - began)) == 0


async def test_a_client_that_does_not_read_does_not_keep_the_process(tmp_path: Path) -> None:
    with serving_process("--dev", "--db", f"sqlite:///{tmp_path}/iron.db") as process:
        _, writer = await asyncio.open_connection("127.0.0.1", int(process.url.rsplit(":", 1)[1]))
        head = (
            f"POST /api/v1/worker/poll HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {process.ready['worker_key']}\r\n"
            "Content-Length: 100\r\n\r\n{"
        )
        writer.write(head.encode())  # the rest of it never comes
        await writer.drain()
        async with aiohttp.ClientSession() as http, http.get(f"{process.url}/health") as response:
            assert response.status == 200
        process.signal(signal.SIGTERM)
        assert await ended(process, 2.5) == 0
        writer.close()


async def test_health_and_readiness_tell_apart_a_process_and_its_database(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with served(sqlite_url, patient()) as here, aiohttp.ClientSession() as http:

        async def status(path: str) -> tuple[int, str]:
            async with http.get(here.url + path) as response:
                return response.status, await response.text()

        assert (await status("/health"))[0] == 200
        assert (await status("/ready"))[0] == 200

        async def away() -> None:
            raise StoreUnreachable("cannot reach postgresql://db.internal")

        with monkeypatch.context() as patched:
            patched.setattr(here.store, "next_due", away)
            assert (await status("/health"))[0] == 200
            code, text = await status("/ready")
            assert (code, json.loads(text)["code"]) == (503, "NOT_READY")
            assert "the server cannot reach its database" in text
            assert "db.internal" not in text
        monkeypatch.setattr("ironflow.server.node.ALIVE_S", 0.0)
        monkeypatch.setattr("ironflow.server.node.ALIVE_INTERVALS", 0)
        assert "waker" in (await status("/ready"))[1]
        monkeypatch.undo()
        here.node.stopping = True
        assert (await status("/ready"))[0] == 503


def test_a_listener_takes_ipv6_addresses() -> None:
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("this host has no IPv6")
    try:
        with bind("::1", 0) as listener:
            assert stat.S_ISSOCK(os.fstat(listener.fileno()).st_mode)
            assert listener.family == socket.AF_INET6
    except Exception as error:
        pytest.skip(f"no IPv6 here: {error}")


async def test_a_node_on_a_database_without_keys_says_so(tmp_path: Path) -> None:
    """It was started without its database's address: it made a new one, was ready, and refused everybody."""
    with serving_process("--db", f"sqlite:///{tmp_path}/iron.db") as process:
        process.signal(signal.SIGTERM)
        _, err = process.process.communicate(timeout=10)
    assert "iron.db holds no API key" in err
    assert "ironflow apikey create" in err


async def test_a_node_with_keys_says_nothing_of_them(tmp_path: Path) -> None:
    with serving_process("--dev", "--db", f"sqlite:///{tmp_path}/iron.db") as process:
        process.signal(signal.SIGTERM)
        _, err = process.process.communicate(timeout=10)
    assert "no API key" not in err
