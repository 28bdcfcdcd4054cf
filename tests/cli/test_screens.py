"""What a person reads: whole errors, readable values, reasons of a pause, and what an undone run left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from tests.cli.conftest import Cli, eventually, process

import ironflow
from ironflow.cli.inputs import typed_input
from ironflow.cli.main import main
from ironflow.cli.values import readable
from ironflow.codec.values import codec_for, encode_any
from ironflow.errors import InvalidInput, RunCancelled, RunFailed, RunPaused

FLOWS = '''
import asyncio
from ironflow import Context, Retry, step, workflow

TEXT = "first line of the error\\nsecond line, " + "long " * 60 + "end of the error"

@step
async def one(n: int) -> int:
    return n

@step
async def bad(n: int) -> int:
    raise ValueError(TEXT)

@step
async def refund(n: int) -> None:
    raise RuntimeError("the bank is closed")

@step(retry=Retry(max_attempts=2, backoff="1ms"))
async def refused(n: int) -> int:
    raise RuntimeError("the bank refused " + "details " * 30)

@step
async def no(n: int) -> int:
    raise ValueError("no")

@workflow
async def fails(ctx: Context) -> int:
    await one(1)
    return await bad(1)

@workflow
async def tries(ctx: Context) -> int:
    ctx.compensate(one, 7)
    return await refused(1)

@workflow
async def terse(ctx: Context) -> int:
    return await no(1)

@workflow
async def stuck(ctx: Context) -> None:
    await one(1)
    await asyncio.Event().wait()

@workflow
async def undoes(ctx: Context) -> None:
    ctx.compensate(refund, 7)
    await bad(1)

@workflow
async def undoes_late(ctx: Context) -> None:
    ctx.compensate(refund, 7)
    await ctx.sleep("1h")

@workflow
async def odd(ctx: Context) -> float:
    return float("nan")

@workflow
async def mixed(ctx: Context) -> dict:
    return {"pair": (1, 2), "by_number": {1: {"a"}}}

@workflow
async def oversized(ctx: Context) -> object:
    return object()

@workflow
async def sleeps(ctx: Context) -> int:
    found = await one(1)
    await ctx.sleep("1h")
    return found
'''


def screen(cli: Cli, name: str, code: int) -> tuple[str, str, str]:
    """The run of a flow on a screen: its id, what `run` printed to stdout, and to stderr."""
    out = cli(*cli.run_words(name, None, "--id", name), code=code)
    return name, out, cli.err


def test_an_error_of_many_lines_is_printed_whole_everywhere(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_id, _, err = screen(cli, "fails", 1)
    shown = {"run": err, "get": cli("runs", "get", run_id), "journal": cli("runs", "journal", run_id)}
    for name, text in shown.items():
        assert "ValueError: first line of the error" in text, name
        assert "second line, long" in text, name
        assert "end of the error" in text, name


def test_one_error_of_many_events_is_printed_once(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    run_id, _, err = screen(cli, "tries", 1)
    told = err.partition("error RUN_FAILED")[0]
    assert told.count("the bank refused") == 1
    assert told.splitlines()[-1].endswith("run_failed        RuntimeError"), "the whole follows"
    for words in (["journal"], ["watch"]):
        lines = cli("runs", *words, run_id, code=words == ["watch"]).splitlines()
        with_error = [line for line in lines if "RuntimeError" in line]
        assert [line.partition("RuntimeError")[2] for line in with_error[1:]] == [", as above"] * 3, words
        assert with_error[0].count("the bank refused") == 1
        assert with_error[0].rstrip().endswith("details"), "what is told once is told whole"
        assert len(lines) == len(cli.lines("runs", "journal", run_id)), "and has no second line"


def test_an_error_that_is_shorter_than_a_reference_is_told_again(cli: Cli) -> None:
    run_id, _, _ = screen(cli, "terse", 1)
    assert cli("runs", "journal", run_id).count("ValueError: no") == 2


def test_get_keeps_its_table_readable_and_puts_the_error_below(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_id, _, _ = screen(cli, "fails", 1)
    text = cli("runs", "get", run_id)
    [row] = [line for line in text.splitlines() if line.startswith("bad")]
    assert "failed" in row
    assert "ValueError" not in row
    assert len(row) <= 80
    assert text.index("ValueError: first line") > text.index(row)
    assert text.count("end of the error") == 1, "an error is shown once, not per table"


def test_a_stuck_run_shows_where_it_waits(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run_id, _, err = screen(cli, "stuck", 1)
    for text in (err, cli("runs", "get", run_id), cli("runs", "journal", run_id)):
        assert "flows_of_test.py" in text
        assert "await asyncio.Event().wait()" in text
        assert "instance.py" not in text
    assert "error WORKFLOW_STUCK: run stuck failed: " in err


def test_the_outcome_names_the_compensations_that_failed(cli: Cli) -> None:
    run_id, _, err = screen(cli, "undoes", 1)
    told = "not undone: refund (main/n1) failed: RuntimeError: the bank is closed"
    assert f"\n  {told}\n" in err, "it belongs to the error above it"
    assert "  It was undone but for that: after a fix, " in err
    for text in (err, cli("runs", "get", run_id), cli("runs", "journal", run_id)):
        assert told in text
    assert list(cli.json("runs", "get", run_id)["undo_errors"]) == ["main/n1:refund"]
    with ironflow.open(cli.url, worker=False) as engine, pytest.raises(RunFailed) as failed:
        engine.wait(engine.handle(run_id).result())
    assert "compensations failed: refund (main/n1): the bank is closed" in str(failed.value)
    assert list(failed.value.undo_errors) == ["main/n1:refund"]


def test_a_cancelled_run_names_them_too(cli: Cli) -> None:
    cli("runs", "create", f"{cli.flows}:undoes_late", "--id", "cancelled-one")
    with ironflow.open(cli.url, workflows=[load(cli.flows, "undoes_late")]) as engine:
        handle: ironflow.Run[Any] = engine.handle("cancelled-one")
        eventually(lambda: engine.wait(handle.status()).state == "sleeping", "it sleeps")
        engine.wait(handle.cancel())
        with pytest.raises(RunCancelled, match=r"compensations failed: refund \(main/n1\): the bank is closed"):
            engine.wait(handle.result())
    assert "not undone: refund (main/n1) failed" in cli("runs", "get", "cancelled-one")


def test_an_event_is_one_line_however_narrow_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    screen(cli, "mixed", 0)
    lines = cli("runs", "journal", "mixed").splitlines()
    assert len(lines) == len(cli.lines("runs", "journal", "mixed"))
    assert lines[-1].endswith("…")
    assert max(map(len, lines)) <= 60


def test_results_are_printed_as_json_a_person_reads(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert screen(cli, "odd", 0)[1] == "NaN\n"
    _, out, _ = screen(cli, "mixed", 0)
    assert json.loads(out) == {"pair": [1, 2], "by_number": {"1": ["a"]}}
    assert '{"pair": [1, 2], "by_number": {"1": ["a"]}}' in cli("runs", "journal", "mixed")
    stored = cli.json("runs", "get", "mixed")["output"]
    assert stored["pair"] == {"$tuple": [1, 2]}, "what programs read is the stored form"


def test_an_error_of_ironflow_itself_shows_no_frames_of_the_engine(cli: Cli) -> None:
    _, _, err = screen(cli, "oversized", 1)
    assert "error PAYLOAD_REJECTED: run oversized failed: PayloadRejected: oversized output: " in err
    assert "values.py" not in err
    assert "Traceback" not in err


VALUES: list[tuple[Any, Any, Any]] = [
    (Any, (1, {"a": (2,)}), [1, {"a": [2]}]),
    (Any, {("x", 1): 2}, [[["x", 1], 2]]),
    (Any, {1: 2, "1": 3}, [[1, 2], ["1", 3]]),
    (Any, {"$tuple": 1}, {"$tuple": 1}),
    (float, float("-inf"), float("-inf")),
    (Any, b"abc", {"$bytes": "YWJj"}),
]


@pytest.mark.parametrize(("annotation", "value", "shown"), VALUES)
def test_tags_are_replaced_by_what_they_say(annotation: Any, value: Any, shown: Any) -> None:
    stored = json.loads(codec_for(annotation).encode(value))
    assert readable(stored) == shown


@pytest.mark.parametrize("damaged", [{"$tuple": 5}, {"$float": "x"}, {"$dict": [1]}, {"$as": []}, {"$unknown": 1}])
def test_a_damaged_value_is_shown_as_it_lies_there(damaged: Any) -> None:
    assert readable(damaged) == damaged


def test_dates_and_numbers_are_shown_as_text() -> None:
    from datetime import UTC, datetime, timedelta
    from decimal import Decimal

    value = [Decimal("1.10"), datetime(2026, 2, 3, tzinfo=UTC), timedelta(hours=1)]
    assert readable(json.loads(encode_any(value))) == ["1.10", "2026-02-03T00:00:00+00:00", "1:00:00"]


def test_a_divergence_says_where_what_and_what_to_do(cli: Cli, flows: Path) -> None:
    cli("runs", "create", f"{flows}:sleeps", "--id", "diverges")
    cli.json("runs", "get", "diverges")
    with ironflow.open(cli.url, workflows=[load(flows, "sleeps")]) as engine:
        eventually(lambda: engine.wait(engine.get("diverges")).state == "sleeping", "it sleeps")
    flows.write_text(FLOWS.replace("found = await one(1)", "found = await refund(1)"))
    expire(cli, "diverges")
    done = cli.run_apart("sleeps", None, "--id", "diverges", code=6)
    assert done["reason"] == "REPLAY_DIVERGENCE"
    for text in (cli("runs", "why", "diverges"), cli("runs", "get", "diverges")):
        flat = " ".join(text.split())
        assert "at main/1 the code asks for main/1:refund, and the journal recorded main/1:one" in flat
        assert "Roll the code back, or put the change behind ctx.patched(…)" in flat
        assert "`ironflow runs resume diverges`" in flat
    with ironflow.open(cli.url, worker=False) as engine, pytest.raises(RunPaused, match="recorded main/1:one"):
        engine.wait(engine.handle("diverges").result())


def load(flows: Path, name: str) -> Any:
    from ironflow.loading import load_one

    return load_one(f"{flows}:{name}")


def expire(cli: Cli, run_id: str) -> None:
    """Make the run's timer due, as if the hour had passed."""
    import sqlite3

    with closing(sqlite3.connect(cli.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("update waits set due_at = 1 where run_id = ?", (run_id,))


def test_a_worker_says_in_a_line_how_each_run_ended(cli: Cli, started: Callable[[list[str]], Popen[str]]) -> None:
    cli("runs", "create", f"{cli.flows}:fails", "--id", "bad-one")
    cli("runs", "create", f"{cli.flows}:odd", "--id", "good-one")
    worker = started(["worker", str(cli.flows), "--db", cli.url])
    eventually(lambda: all(row["ended_at"] for row in cli.json("runs", "list")), "both ended")
    worker.terminate()
    _, err = worker.communicate(timeout=30)
    assert "warning run bad-one of fails failed: ValueError: first line of the error\n" in err
    assert "info    run good-one of odd: completed\n" in err


def test_a_command_that_reports_its_run_does_not_log_its_end_as_well(cli: Cli) -> None:
    done = process(["run", f"{cli.flows}:fails", "--db", cli.url])
    assert done.returncode == 1
    assert "warning run" not in done.stderr


@pytest.mark.parametrize("words", [[], ["runs"], ["workflows"], ["capacity"]])
def test_a_command_without_its_words_prints_its_help_and_no_empty_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert "Usage: " in out + err
    assert "error USAGE" not in out + err


def test_the_version_is_an_option_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"ironflow {ironflow.__version__} (Python ")


def test_two_workflows_of_one_name_in_a_file_are_refused_by_run_as_by_worker(tmp_path: Path, cli: Cli) -> None:
    file = tmp_path / "twice_flows.py"
    file.write_text(
        "from ironflow import Context, workflow\n"
        '@workflow(name="same")\nasync def a(ctx: Context) -> int: return 1\n'
        '@workflow(name="same")\nasync def b(ctx: Context) -> int: return 2\n'
    )
    for target in (f"{file}:a", f"{file}:same", str(file)):
        assert cli.json("run", target, code=2)["error"]["code"] == "WORKFLOW_NAME_TAKEN"


INPUTS = '''
from dataclasses import dataclass, field
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict
from ironflow import Context, workflow

@dataclass
class Item:
    sku: str
    count: int = 1

@dataclass
class Order:
    name: str
    items: list[Item] = field(default_factory=list)

class Model(BaseModel):
    name: str = Field("x", alias="theName")
    item: Item | None = None

class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    name: str

class Typed(TypedDict, total=False):
    name: str
    item: Item

@workflow
async def order(ctx: Context, o: Order) -> None: ...
@workflow
async def model(ctx: Context, m: Model) -> None: ...
@workflow
async def open_model(ctx: Context, m: Open) -> None: ...
@workflow
async def typed(ctx: Context, t: Typed) -> None: ...
@workflow
async def plain(ctx: Context, d: dict[str, int]) -> None: ...
@workflow
async def by_name(ctx: Context, d: dict[str, Order]) -> None: ...
'''


@pytest.mark.parametrize(
    ("name", "given", "unknown"),
    [
        ("order", {"name": "a", "itmes": []}, "input.itmes"),
        ("order", {"name": "a", "items": [{"sku": "x"}, {"sku": "y", "cuont": 2}]}, "input.items[1].cuont"),
        ("model", {"name": "a", "nmae": "b"}, "input.nmae"),
        ("model", {"theName": "a", "item": {"sku": "x", "q": 1}}, "input.item.q"),
        ("typed", {"nmae": "b"}, "input.nmae"),
        ("typed", {"item": {"sku": "x", "q": 1}}, "input.item.q"),
        ("by_name", {"k": {"name": "x", "q": 1}}, "input.k.q"),
        ("order", {"name": "a", "items": [{"sku": "x", "count": 2}]}, None),
        ("model", {"theName": "a"}, None),
        ("model", {"name": "a", "item": None}, None),
        ("open_model", {"name": "a", "anything": 1}, None),
        ("plain", {"any": 1, "key": 2}, None),
    ],
)
def test_a_field_that_the_input_does_not_have_is_named(
    tmp_path: Path, name: str, given: Any, unknown: str | None
) -> None:
    file = tmp_path / "input_flows.py"
    file.write_text(INPUTS)
    spec = load(file, name).spec
    if unknown is None:
        typed_input(spec, given)
        return
    with pytest.raises(InvalidInput) as refused:
        typed_input(spec, given)
    assert refused.value.details == {"fields": [unknown]}
    assert f"has no field {unknown}" in str(refused.value)
    assert "Expected: " in str(refused.value)
