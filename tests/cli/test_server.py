"""Every command that works on a database works on a server: the same lines, the same exit codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.client import flows
from tests.client.conftest import Rig, rigged

from ironflow.cli.main import main
from ironflow.client import Client
from ironflow.errors import RunError
from ironflow.model.journal import Event
from ironflow.runtime.thread import LoopThread

#: What changes by itself between two looks.
RESTLESS = ("heartbeat_at", "expires_at", "credits", "seen_at", "last_used_at")


class Twice:
    """Runs commands in this process, on a database and on a server that works on the same."""

    def __init__(self, rig: Rig, database: str, runs: dict[str, str], folder: Path) -> None:
        self.rig = rig
        self.database = database
        self.runs = runs
        self.folder = folder
        self.capsys: pytest.CaptureFixture[str]
        self.err = ""

    def db(self, *words: str, code: int = 0) -> str:
        return self._run([*words, "--db", self.database], code)

    def server(self, *words: str, code: int = 0, key: str = "admin") -> str:
        file = self.folder / key
        file.write_text(f"{self.rig.keys[key]}\n", encoding="utf-8")
        return self._run([*words, "--server", self.rig.url, "--key-file", str(file)], code)

    def _run(self, words: list[str], code: int) -> str:
        self.capsys.readouterr()
        ended = main(words)
        out, self.err = self.capsys.readouterr()
        assert ended == code, f"exit {ended}\n{out}\n{self.err}"
        return out

    def same(self, *words: str, code: int = 0, key: str = "admin") -> list[Any]:
        """The JSON lines that both print, but for what is restless."""
        here, there = self.db(*words, "--json", code=code), self.server(*words, "--json", code=code, key=key)
        # Advice repeats the option by which each was told where to work.
        here = here.replace(f" --db {self.database}", " WHERE")
        there = there.replace(f" --server {self.rig.url}", " WHERE")
        found = [[_still(json.loads(line)) for line in text.splitlines()] for text in (here, there)]
        assert found[0] == found[1]
        return found[1]

    def created(self, *words: str) -> str:
        run_id: str = json.loads(self.db("runs", "create", "double", "-i", "1", *words, "--json"))["run_id"]
        return run_id


def _still(value: Any) -> Any:
    if isinstance(value, list):
        return [_still(one) for one in value]
    if isinstance(value, dict):
        return {name: _still(one) for name, one in value.items() if name.removesuffix("_ms") not in RESTLESS}
    return value


async def _prepared(stack: AsyncExitStack, database: str) -> tuple[Rig, dict[str, str]]:
    """A server with runs in several states, and a worker that executes no more of them."""
    rig = await stack.enter_async_context(rigged(database))
    engine = rig.engine
    runs = {}
    for name, start in {
        "completed": engine.start(flows.double, 2, labels={"team": "a"}),
        "failed": engine.start(flows.failing, "why"),
        "sleeping": engine.start(flows.sleeping),
        "cancelled": engine.start(flows.sleeping, id="to-be-cancelled"),
        "queued": engine.start(flows.double, 1, worker_tags=["gpu"], priority=5, limits={"group": 2}),
    }.items():
        runs[name] = (await start).id
        if name in ("completed", "failed"):
            try:
                await engine.handle(runs[name]).result()
            except RunError:
                pass
    await engine.cancel(runs["cancelled"])
    await engine.pause(runs["sleeping"])
    return rig, runs


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twice]:
    folder = tmp_path_factory.mktemp("twice")
    database = f"sqlite:///{folder}/iron.db"
    thread, stack = LoopThread(), AsyncExitStack()
    try:
        rig, runs = thread.run(_prepared(stack, database))
        yield Twice(rig, database, runs, folder)
        thread.run(stack.aclose())
    finally:
        thread.stop()


@pytest.fixture
def twice(served: Twice, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Twice:
    monkeypatch.delenv("IRONFLOW_API_KEY", raising=False)
    monkeypatch.setattr("ironflow.client.client.PAUSES", ())
    served.capsys = capsys
    return served


# ---- looking


@pytest.mark.parametrize("run", ["completed", "failed", "sleeping", "cancelled", "queued"])
def test_a_run_is_shown_alike(twice: Twice, run: str) -> None:
    run_id = twice.runs[run]
    [shown] = twice.same("runs", "get", run_id)
    assert shown["run_id"] == run_id
    assert (shown["worker_routing"] is None) is (run != "queued")
    assert twice.same("runs", "journal", run_id)[0]["kind"] == "run_created"
    assert len(twice.same("runs", "journal", run_id, "--after", "1")) == len(twice.same("runs", "journal", run_id)) - 1
    assert twice.same("runs", "why", run_id) == twice.same("why", run_id)
    twice.same("audit", run_id)


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["runs", "list"], 5),
        (["runs", "list", "--state", "failed", "--state", "cancelled"], 2),
        (["runs", "list", "--workflow", "double", "--label", "team=a"], 1),
        (["runs", "list", "-n", "2"], 2),
        (["workflows", "list"], len(flows.ALL)),
    ],
)
def test_a_list_is_shown_alike(twice: Twice, words: list[str], count: int) -> None:
    [rows] = twice.same(*words)
    assert len(rows) == count


@pytest.mark.parametrize("what", ["leases", "sessions", "queue", "lanes", "stats"])
def test_capacity_is_shown_alike_with_a_platform_key(twice: Twice, what: str) -> None:
    twice.same("capacity", what, key="platform")
    assert twice.server("capacity", what, key="platform").split()[:1] == twice.db("capacity", what).split()[:1]


@pytest.mark.parametrize(("run", "code"), [("completed", 0), ("failed", 1), ("cancelled", 3), ("sleeping", 6)])
def test_watching_prints_the_same_lines_and_ends_with_the_same_code(twice: Twice, run: str, code: int) -> None:
    assert twice.same("runs", "watch", twice.runs[run], code=code)
    assert twice.same("runs", "watch", twice.runs[run], "--after", "2", code=code)[0]["seq"] == 3


def test_a_watch_that_ends_before_its_run_does_closes_the_stream_itself(
    twice: Twice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left to the collector, it would be closed by a task of its own, some time, perhaps after its client."""
    real, tasks = Client.events, []

    async def noted(client: Client, run_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        tasks.append(asyncio.current_task())
        try:
            async with aclosing(real(client, run_id, after)) as events:
                async for event in events:
                    yield event
        finally:
            tasks.append(asyncio.current_task())

    monkeypatch.setattr(Client, "events", noted)
    twice.server("runs", "watch", twice.runs["sleeping"], code=6)
    opened_by, closed_by = tasks
    assert opened_by is closed_by


def test_screens_are_alike(twice: Twice) -> None:
    for words in (["runs", "get", twice.runs["failed"]], ["runs", "journal", twice.runs["completed"]], ["runs", "list"],
                  ["why", twice.runs["queued"]], ["workflows", "list"]):  # fmt: skip
        here, there = twice.db(*words), twice.server(*words)
        assert _words(here) == _words(there)


def _words(screen: str) -> list[str]:
    """Without how long ago things were, which the next second changes."""
    return [word for word in screen.split() if not word.rstrip("msh,").replace(".", "").isdigit() and word != "now"]


def test_a_part_of_an_id_means_the_same_run(twice: Twice) -> None:
    assert twice.same("runs", "get", "to-be-")[0]["run_id"] == "to-be-cancelled"
    assert twice.same("runs", "get", "…be-cancelled")[0]["run_id"] == "to-be-cancelled"
    assert twice.same("runs", "get", "nobody", code=4)[0]["error"]["code"] == "RUN_NOT_FOUND"
    assert twice.same("runs", "get", "xy", code=4)[0]["error"]["code"] == "RUN_NOT_FOUND"


# ---- changing


def test_a_run_is_created_alike(twice: Twice) -> None:
    words = ["runs", "create", "double", "-i", "4", "--priority", "3", "--label", "a=b", "--limit", "g=2",
             "--worker-tag", "nowhere", "--concurrency-key"]  # fmt: skip
    rows = [json.loads(run(*words, key, "--json")) for run, key in ((twice.db, "one"), (twice.server, "two"))]
    kept = [
        {name: value for name, value in row.items()
         if not name.startswith(("run_id", "root_run_id", "created_at", "concurrency_key", "idempotency_key"))
         and name != "input_hash"}
        for row in rows
    ]  # fmt: skip
    assert kept[0] == kept[1]
    assert rows[1]["created"] is True
    conflict = json.loads(twice.server(*words, "one", "--json", code=2))["error"]
    assert conflict == json.loads(twice.db(*words, "one", "--json", code=2))["error"]
    assert conflict["code"] == "CONCURRENCY_CONFLICT"


def test_a_run_is_created_from_its_code_and_given_again_by_its_key(twice: Twice) -> None:
    target = f"{Path(flows.__file__)}:double"
    words = ["runs", "create", target, "-i", "5", "--idempotency-key", "five"]
    run_id = twice.server(*words).strip()
    assert twice.db(*words).strip() == run_id
    assert twice.server(*words).strip() == run_id
    assert "exists already" in twice.err
    twice.server("runs", "watch", run_id)
    assert json.loads(twice.server("runs", "get", run_id, "--json"))["output"] == 10
    for more in (["-i", '"x"'], []):
        assert twice.same("runs", "create", target, *more, code=2)


def test_a_missing_input_is_refused_alike(twice: Twice) -> None:
    before = len(twice.same("runs", "list")[0])
    for words in (["double"], ["double", "-i", "null"]):
        for says in (twice.db, twice.server):
            error = json.loads(says("runs", "create", *words, "--json", code=2))["error"]
            assert (error["code"], error["message"]) == (
                "INVALID_INPUT", "workflow double needs an input, and got none or null",
            )  # fmt: skip
    assert len(twice.same("runs", "list")[0]) == before


def test_an_input_that_does_not_fit_is_refused_with_what_is_expected_wherever_the_workflow_is_known(
    twice: Twice,
) -> None:
    for says in (twice.db, twice.server):
        error = json.loads(says("runs", "create", "buy", "-i", '"x"', "--json", code=2))["error"]
        assert error["message"] == "the input does not fit workflow buy: input: must be an object, not text"
        assert error["hint"].startswith("Expected: {")
        assert "GET " not in error["hint"], "a person at a terminal has the words"


#: What `buy` takes, and a field that it does not know.
MISSPELT = {
    "price": "5", "sizes": [], "tags": [], "days": {}, "at": "2026-01-02T00:00:00Z", "label": "x", "lable": "y",
}  # fmt: skip


def test_a_misspelt_field_is_refused_by_name_as_it_is_by_code(twice: Twice) -> None:
    before = len(twice.same("runs", "list")[0])
    for target in ("buy", f"{Path(flows.__file__)}:buy"):
        for says in (twice.db, twice.server):
            words = ["-i", json.dumps(MISSPELT)]
            error = json.loads(says("runs", "create", target, *words, "--json", code=2))["error"]
            assert error["message"] == "the input does not fit workflow buy: it has no field input.lable"
            assert (error["hint"][:10], error["details"]) == ("Expected: ", {"fields": ["input.lable"]})
    assert len(twice.same("runs", "list")[0]) == before


def test_a_program_may_send_a_field_that_the_workers_do_not_know_yet(twice: Twice) -> None:
    async def program() -> bool:
        async with twice.rig.client() as client:
            return (await client.create("buy", MISSPELT, worker_tags=["nowhere"]))[1]

    assert asyncio.run(program()) is True


def test_a_scalar_is_refused_where_the_worker_would_refuse_it_and_taken_where_it_would_not(twice: Twice) -> None:
    for says in (twice.db, twice.server):
        for given, kind in (('{"a": 1}', "an object"), ('"x"', "text")):
            error = json.loads(says("runs", "create", "double", "-i", given, "--json", code=2))["error"]
            assert error["message"] == (
                f"the input does not fit workflow double: input: must be a whole number, not {kind}"
            )
        says("runs", "create", "double", "-i", '"5"', "--worker-tag", "nowhere")


def test_a_name_that_nobody_knows_is_refused_alike(twice: Twice) -> None:
    assert "Known: anything, buy" in twice.same("runs", "create", "nobody", code=4)[0]["error"]["hint"]


def test_runs_are_steered_alike(twice: Twice) -> None:
    first, second = (twice.created("--worker-tag", "nowhere") for _ in range(2))
    for verb, code in (("pause", 0), ("pause", 0), ("resume", 0), ("resume", 2), ("cancel", 0), ("cancel", 0),
                       ("retry", 0), ("retry", 2)):  # fmt: skip
        here = twice.db("runs", verb, first, "--json", code=code)
        there = twice.server("runs", verb, second, "--json", code=code)
        assert here.replace(first, "RUN") == there.replace(second, "RUN")
    several = json.loads(twice.server("runs", "resume", first, twice.runs["sleeping"], "--json", code=2))
    assert [one["changed"] for one in several] == [False, True]
    twice.db("runs", "pause", twice.runs["sleeping"])
    assert twice.same("runs", "cancel", first, "nobody-at-all", code=4)
    assert json.loads(twice.db("runs", "get", first, "--json"))["state"] == "pending"


def test_a_run_is_deleted_alike(twice: Twice) -> None:
    first, second = (twice.created("--worker-tag", "nowhere") for _ in range(2))
    sure = ("delete", "--yes")
    for (verb, *more), code in ((sure, 2), (("cancel",), 0), (("delete",), 2), (sure, 0), (sure, 4)):
        here = twice.db("runs", verb, first, *more, "--json", code=code)
        there = twice.server("runs", verb, second, *more, "--json", code=code)
        assert here.replace(first, "RUN") == there.replace(second, "RUN")
    assert "FORBIDDEN" in twice.server("runs", "delete", twice.runs["completed"], "-y", "--json", code=7, key="viewer")


def test_runs_that_diverged_are_resumed_together(twice: Twice) -> None:
    assert twice.same("runs", "resume", "--divergence") == [{"count": 0, "applied": False, "run_ids": []}]
    assert twice.same("runs", "resume", "--divergence", "--yes") == [[]]


def test_a_workflow_is_held_and_let_go_alike(twice: Twice) -> None:
    for verb, changed in (("pause", True), ("pause", False), ("resume", True), ("resume", False)):
        done = json.loads(twice.server("workflows", verb, "buy", "--json"))
        assert (done["workflow"], done["changed"]) == ("buy", changed)
        assert json.loads(twice.db("workflows", verb, "buy", "--json")) == {**done, "changed": False}
    assert twice.same("workflows", "pause", "nobody", code=4)[0]["error"]["code"] == "WORKFLOW_UNKNOWN"


# ---- where, and with which key


def test_the_environment_names_server_and_key(twice: Twice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRONFLOW_SERVER", twice.rig.url)
    monkeypatch.setenv("IRONFLOW_API_KEY", twice.rig.keys["viewer"])
    run_id = twice.runs["completed"]
    assert json.loads(twice._run(["runs", "get", run_id, "--json"], 0))["run_id"] == run_id
    assert "FORBIDDEN: the role developer is required" in (twice._run(["runs", "cancel", run_id], 7) or twice.err)
    # A database that is named is meant.
    assert json.loads(twice._run(["runs", "list", "--db", "sqlite:///nowhere.db", "--json"], 5))["error"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--db", "sqlite:///x.db", "--server", "http://h:1"], "--db and --server exclude each other"),
        (["--key-file", "x"], "--key-file is the key for a server"),
        (["--server", "h:1"], "is not the address of a server"),
        (["--server", "http://h:1", "--key-file", "nothing-here"], "cannot be read"),
    ],
)
def test_what_contradicts_itself_is_refused(twice: Twice, words: list[str], says: str) -> None:
    assert says in json.loads(twice._run(["runs", "list", *words, "--json"], 2))["error"]["message"]


@pytest.mark.parametrize("words", [["runs", "list"], ["worker", str(Path(flows.__file__))]])
def test_a_key_that_is_missing_or_cannot_be_one_exits_7(
    twice: Twice, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*words, "--server", twice.rig.url, "--json"]
    assert json.loads(twice._run(words, 7))["error"]["code"] == "UNAUTHENTICATED"
    for key, says in (("hello", "5 characters are too few for one"), ("two words", "a key is one word of plain ASCII")):
        monkeypatch.setenv("IRONFLOW_API_KEY", key)
        error = json.loads(twice._run(words, 7))["error"]
        assert (error["code"], error["message"]) == ("UNAUTHENTICATED", f"IRONFLOW_API_KEY holds no key: {says}")


def test_a_server_that_is_away_a_wrong_key_and_a_missing_right_say_so_in_a_sentence(twice: Twice) -> None:
    assert twice._run(["runs", "list", "--server", "http://127.0.0.1:9"], 5) == ""
    assert twice.err.startswith("error SERVER_UNREACHABLE: no server answers at http://127.0.0.1:9: ")
    assert "ironflow serve" in twice.err
    twice._run(["runs", "list", "--server", twice.rig.url], 7)
    assert "wants a valid API key, and none was sent" in twice.err
    twice.server("capacity", "leases", code=7)
    assert "platform credentials required here" in twice.err
    twice.server("runs", "get", twice.runs["completed"], code=4, key="other")
    assert "no run's id is" in twice.err
    assert not any(key in twice.err for key in twice.rig.keys.values())
