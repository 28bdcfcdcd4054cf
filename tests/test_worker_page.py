"""The page of the worker protocol is what the server understands, and a worker written after it alone works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.model.build import change_of

from ironflow.config import Settings
from ironflow.engine.doctor import examine, report
from ironflow.model import journal, wire
from ironflow.server.node import Node
from ironflow.server.worker_routes import PREFIX, WorkerRoutes
from ironflow.store import connect

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "docs" / "reference" / "worker-protocol.md").read_text(encoding="utf-8")

#: Clocks short enough for a test: a worker whose connection broke is replaced after a second and a half.
SHORT = {
    "IRONFLOW_RENEWAL_INTERVAL": "300ms",
    "IRONFLOW_LEASE_TTL": "3s",
    "IRONFLOW_SESSION_TTL": "3s",
    "IRONFLOW_RECOVERY_INTERVAL": "100ms",
    "IRONFLOW_SUSPECT_AFTER": "1500ms",
}


def table_below(words: str) -> list[list[str]]:
    """The rows of the first table behind these words."""
    lines = PAGE.partition(words)[2].splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("|---"))
    rows = []
    for line in lines[begin + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


# ---- the page


async def test_the_page_names_every_request(sqlite_url: str) -> None:
    store = await connect(sqlite_url)
    node = Node(store, Settings())
    try:
        routes = WorkerRoutes(node).routes()
        paths = [(one.path.removeprefix(PREFIX).replace(":path", ""), one.methods or ()) for one in routes]
        served = {f"{method} {path}" for path, methods in paths for method in methods}
    finally:
        await node.stop()
        await store.close()
    told = {row[0].strip("`") for row in table_below("A key that is revoked")}
    assert told == {one for one in served if not one.startswith("HEAD ")}


def test_the_page_names_every_field_of_a_change_and_no_other() -> None:
    told = {name for row in table_below("whole or not at all") for name in re.findall(r"`(\w+)`", row[0])}
    assert told == wire._FIELDS
    changes = next(row[2] for row in table_below("whole or not at all") if row[0] == "`changes`")
    assert set(re.findall(r"`(\w+)`", changes.partition("of ")[2])) == wire.CHANGES


def test_the_kinds_that_the_page_names_exist_and_only_the_servers_own_are_kept_from_workers() -> None:
    told = {
        kind
        for row in table_below("must be\nwritten as they stand here")
        for kind in re.findall(r"`(\w+_\w+)`", row[0])
    }
    assert told <= journal.KINDS.keys() - wire.FROM_OUTSIDE
    sentence = re.search(r"Only the server writes (.*?);", PAGE, re.S)
    assert sentence is not None
    assert set(re.findall(r"`(\w+_\w+)`", sentence[1])) == wire.FROM_OUTSIDE


@pytest.mark.parametrize("text", re.findall(r"```json\n(.*?)```", PAGE, re.S), ids=["take", "step", "sleep", "end"])
def test_every_change_that_the_page_shows_is_understood(text: str) -> None:
    change = change_of(json.loads(text))
    assert change.events
    assert all(json.loads(event.payload or "{}") is not None for event in change.events)
    number = change.new_execution_seq or change.execution_seq
    assert {event.execution_seq for event in change.events} == {number}


# ---- the worker of the examples

#: The example with a second step that tells where it is, and goes on when it may.
SLOW = """
import pathlib, sys, time
sys.path.insert(0, sys.argv[1])
import bare_worker
folder = pathlib.Path(sys.argv[2])

def shout(given, results):
    (folder / "inside").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return bare_worker.shout(given, results)

bare_worker.STEPS = (bare_worker.STEPS[0], ("shout", shout))
bare_worker.main()
"""


@contextmanager
def process(*words: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("IRONFLOW_")}
    started = subprocess.Popen(
        [sys.executable, *words],
        env={**clean, "PYTHONHASHSEED": "0", **environment},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)


class Api:
    """The public API, as an admin sees it."""

    def __init__(self, ready: dict[str, Any]) -> None:
        self.url, self.key = ready["url"], ready["admin_key"]

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())


async def test_a_worker_without_ironflow_executes_and_goes_on_where_a_killed_one_stopped(
    tmp_path: Path, sqlite_url: str
) -> None:
    example = str(ROOT / "examples" / "bare_worker.py")
    serve = ["-m", "ironflow", "serve", "--dev", "--json", "--port", "0", "--db", sqlite_url]
    with process(*serve, **SHORT) as server:
        assert server.stdout is not None
        ready = json.loads(server.stdout.readline())
        api = Api(ready)
        key = {"IRONFLOW_SERVER": ready["url"], "IRONFLOW_API_KEY": ready["worker_key"]}
        with process("-c", SLOW, str(ROOT / "examples"), str(tmp_path), **key) as first:
            wait_for(lambda: bool(api("GET", "/workflows")["items"]))
            run_id = api("POST", "/runs", {"workflow": "greet", "input": "world"})["run_id"]
            wait_for((tmp_path / "inside").exists)
            first.kill()
            with process(example, **key) as second:
                wait_for(lambda: api("GET", f"/runs/{run_id}")["state"] == "completed")
                second.terminate()
                assert second.wait(15) == 0
        run = api("GET", f"/runs/{run_id}")
    assert run["output"] == "DEAR WORLD"
    assert run["lease_recoveries"] == 1
    assert [[one["state"] for one in step["tries"]] for step in run["steps"]] == [
        ["completed"],
        ["interrupted", "completed"],
    ]
    store = await connect(sqlite_url, read_only=True)
    try:
        found = await examine(store)
        assert not found, report(found)
        assert await store.sessions() == []  # it has said goodbye
    finally:
        await store.close()
