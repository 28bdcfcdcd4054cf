"""A server and workers as processes of their own, as the works over HTTP need them."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from ironflow.client import Client

WORKFLOWS = Path(__file__).with_name("workflows.py")


class Process:
    """One `ironflow` command that tells with a line of JSON that it is ready."""

    def __init__(self, url: str, *words: str, key: str | None = None) -> None:
        environment = {**os.environ, "IRONFLOW_DATABASE_URL": url, "IRONFLOW_LOG_LEVEL": "error"}
        environment |= {"IRONFLOW_API_KEY": key} if key is not None else {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ironflow", *words, "--json"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    async def line(self) -> dict[str, Any]:
        """The next line that it tells."""
        assert self.process.stdout is not None
        text = await asyncio.to_thread(self.process.stdout.readline)
        if not text:
            raise RuntimeError(f"{self.process.args!r} ended with {self.process.wait()}")
        found: dict[str, Any] = json.loads(text)
        return found

    async def __aenter__(self) -> dict[str, Any]:
        return await self.line()

    async def __aexit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            await asyncio.to_thread(self.process.wait, 30)
        finally:
            self.process.kill()
            self.process.communicate()


@asynccontextmanager
async def cluster(url: str, *, slots: int, workers: int = 1) -> AsyncIterator[Client]:
    """A server on a free port and workers for the bench's workflows; gives a client of the server."""
    worker_key, client_key = [await _key(url, *words) for words in (("--worker",), ("--role", "admin"))]
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(Process(url, "serve", "--port", "0"))
        for _ in range(workers):
            words = ("worker", str(WORKFLOWS), "--server", served["url"], "--concurrency", str(slots))
            await stack.enter_async_context(Process(url, *words, key=worker_key))
        yield await stack.enter_async_context(Client(served["url"], client_key))


async def _key(url: str, *words: str) -> str:
    process = Process(url, "apikey", "create", "bench", *words)
    found = await process.line()
    process.process.communicate()
    return str(found["key"])
