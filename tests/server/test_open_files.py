"""Open files: a node takes what it can have, says when that is little, and keeps the last ones for itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.server.test_serve import Process, ended, serving_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def most(process: Process) -> tuple[int, int]:
    """How many files a process may have open, and how many it might."""
    [line] = [
        one for one in Path(f"/proc/{process.process.pid}/limits").read_text().splitlines() if "open files" in one
    ]
    return int(line.split()[3]), int(line.split()[4])


async def log_of(process: Process) -> str:
    """What a process has said, once it has ended."""
    process.signal(signal.SIGTERM)
    assert await ended(process, 10) == 0
    assert process.process.stderr is not None
    return process.process.stderr.read()


async def asked(process: Process) -> bytes:
    """The answer to a small request over a connection of its own; empty where it was cut off."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(process.url.rpartition(":")[2]))
    try:
        async with asyncio.timeout(10):
            writer.write(b"GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_node_takes_as_many_open_files_as_it_may_have(tmp_path: Path) -> None:
    with serving_process("--db", f"sqlite:///{tmp_path}/iron.db", files=(256, 4_096)) as process:
        assert most(process) == (4_096, 4_096)
        assert "files open" not in await log_of(process)


async def test_a_node_keeps_the_last_files_for_itself_and_says_so(tmp_path: Path) -> None:
    with serving_process("--db", f"sqlite:///{tmp_path}/iron.db", files=(128, 256)) as process, ExitStack() as held:
        assert most(process) == (256, 256)
        port = int(process.url.rpartition(":")[2])
        for _ in range(300):
            held.enter_context(socket.create_connection(("127.0.0.1", port)))
        for _ in range(5):
            head, _, body = (await asked(process)).partition(b"\r\n\r\n")
            if head:  # else the refusal came before the request, which met a closed connection
                assert head.startswith(b"HTTP/1.1 503 Service Unavailable")
                assert json.loads(body)["code"] == "TOO_MANY_CONNECTIONS"
        assert len(os.listdir(f"/proc/{process.process.pid}/fd")) <= 256 - 32
        held.close()
        async with asyncio.timeout(10):
            while not (await asked(process)).startswith(b"HTTP/1.1 200"):
                pass
        said = await log_of(process)
    assert said.count("connections are refused: of 256 files") == 1
    assert "this process may have 256 files open, and one key 1,000 streams (IRONFLOW_MAX_STREAMS)" in said
    assert "LimitNOFILE=" in said
