"""Commands that change runs: create, cancel, pause, resume, retry."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen

import pytest
from tests.cli.conftest import Cli, eventually
from tests.cli.test_looking import created


def state(cli: Cli, run_id: str) -> str:
    text: str = cli.json("runs", "get", run_id)["state"]
    return text


def test_a_run_is_paused_resumed_and_cancelled(both: Cli) -> None:
    run_id = created(both)
    assert both.json("runs", "pause", run_id) == [{"run_id": run_id, "changed": True, "state": "paused"}]
    assert both.json("runs", "pause", run_id)[0]["changed"] is False
    assert both.json("runs", "why", run_id)[0]["code"] == "PAUSED"
    assert both.json("runs", "resume", run_id)[0]["state"] == "pending"
    assert both.json("runs", "cancel", run_id)[0]["state"] == "cancelled"
    assert both.json("runs", "cancel", run_id)[0]["changed"] is False
    assert both.json("runs", "retry", run_id)[0]["state"] == "pending"
    actions = [row["action"] for row in both.json("audit", run_id)]
    assert actions == ["run.reopen", "run.cancel", "run.resume", "run.pause"]


def test_a_refused_command_changes_nothing_and_exits_2(cli: Cli) -> None:
    run_id = created(cli)
    assert cli.json("runs", "resume", run_id, code=2)["error"]["code"] == "INVALID_TRANSITION"
    assert cli.json("runs", "retry", run_id, code=2)["error"]["code"] == "INVALID_TRANSITION"
    assert state(cli, run_id) == "pending"
    assert cli.json("audit") == []


def test_of_several_runs_one_refusal_keeps_no_other_from_being_carried_out(cli: Cli) -> None:
    live, ended = created(cli), created(cli)
    cli("runs", "pause", live)
    done = cli.json("runs", "resume", ended, live, code=2)
    assert [one["changed"] for one in done] == [False, True]
    assert done[0]["error"]["code"] == "INVALID_TRANSITION"
    assert state(cli, live) == "pending"


def test_a_slip_in_one_id_touches_no_run(cli: Cli) -> None:
    run_id = created(cli)
    assert cli.json("runs", "cancel", run_id, "nobody-at-all", code=4)["error"]["code"] == "RUN_NOT_FOUND"
    assert state(cli, run_id) == "pending"


def test_the_same_id_and_the_same_key_give_the_same_run(both: Cli) -> None:
    words = ("--idempotency-key", "k1")
    first = both.json("runs", "create", f"{both.flows}:add", "-i", "1", *words)
    again = both.json("runs", "create", f"{both.flows}:add", "-i", "1", *words)
    assert (first["created"], again["created"]) == (True, False)
    assert first["run_id"] == again["run_id"]
    other = both.json("runs", "create", f"{both.flows}:add", "-i", "2", *words, code=2)
    assert other["error"]["code"] == "IDEMPOTENCY_KEY_CONFLICT"
    created(both, "add", 1, "--concurrency-key", "c1")
    held = both.json("runs", "create", f"{both.flows}:add", "-i", "1", "--concurrency-key", "c1", code=2)
    assert held["error"]["code"] == "CONCURRENCY_CONFLICT"


def test_without_json_create_prints_the_id_alone(cli: Cli) -> None:
    run_id = cli("runs", "create", f"{cli.flows}:add", "--input", "1").strip()
    assert state(cli, run_id) == "pending"


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("add", ["--input", '"x"'], "integer"),
        ("add", [], "needs an input"),
        ("add", ["--input", "{"], "no JSON"),
        ("add", ["--input", "NaN"], "NaN is no JSON value"),
        ("add", ["--input", "[" * 5_000], "nested too deeply"),
        ("add", ["--input", "@absent.json"], "absent.json"),
        ("none", ["--input", "1"], "takes no input"),
        ("order", ["--input", '{"nam": "x"}'], "input"),
        ("add", ["--input", "1", "--priority", "101"], "outside"),
        ("add", ["--input", "1", "--label", "x"], "no label"),
        ("add", ["--input", "1", "--at", "tomorrow"], "no time"),
        ("add", ["--input", "1", "--at", "2030-01-01T00:00:00"], "time zone"),
        ("add", ["--input", "1", "--at", "+soon"], "length of time"),
        ("add", ["--input", "1", "--deadline", "2030-01-01T00:00:00"], "--deadline"),
        ("add", ["--input", "1", "--deadline", "2020-01-01T00:00:00Z"], "--deadline: 2020-01-01T00:00:00+00:00 has"),
        ("add", ["--input", "1", "--deadline", "+0s"], "has passed"),
        ("add", ["--input", "1", "--at", "+2h", "--deadline", "+1h"], "--deadline is not later than --at"),
    ],
)
def test_bad_input_is_named_and_creates_nothing(cli: Cli, name: str, given: list[str], says: str) -> None:
    created(cli)
    error = cli.json("runs", "create", f"{cli.flows}:{name}", *given, code=2)["error"]
    assert says in error["message"]
    assert len(cli.json("runs", "list")) == 1


def test_the_hint_for_a_missing_input_names_its_fields(cli: Cli) -> None:
    error = cli.json("runs", "create", f"{cli.flows}:order", code=2)["error"]
    assert error["hint"] == 'Give it with --input. Expected: {"name": string, "amount": integer (optional)}'


def test_input_comes_from_a_file_or_from_stdin(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    (tmp_path / "in.json").write_text('{"name": "a"}')
    run = cli.json("runs", "create", f"{cli.flows}:order", "--input", f"@{tmp_path}/in.json")
    assert cli.json("runs", "get", run["run_id"])["input"] == {"name": "a", "amount": 1}
    monkeypatch.setattr("sys.stdin", io.StringIO('{"name": "b", "amount": 2}'))
    run = cli.json("runs", "create", f"{cli.flows}:order", "--input", "-")
    assert cli.json("runs", "get", run["run_id"])["input"] == {"name": "b", "amount": 2}


def test_a_run_is_scheduled(cli: Cli) -> None:
    run_id = created(cli, "add", 1, "--at", "+1h")
    [hold, *_] = cli.json("runs", "why", run_id)
    assert hold["code"] == "SCHEDULED"
    row = cli.json("runs", "get", run_id)
    assert 3_590_000 < row["scheduled_at_ms"] - row["created_at_ms"] <= 3_600_000
    created(cli, "add", 1, "--at", "2100-01-01T00:00:00+01:00")


def test_a_run_is_given_a_deadline(both: Cli) -> None:
    run_id = created(both, "add", 1, "--deadline", "+1h")
    row = both.json("runs", "get", run_id)
    assert 3_590_000 < row["deadline_at_ms"] - row["created_at_ms"] <= 3_600_000


def test_a_workflow_that_workers_have_registered_is_started_by_name(both: Cli) -> None:
    assert both.run("add", 1)["output"] == 3
    run_id = both.json("runs", "create", "add", "--input", "20")["run_id"]
    assert both.run("add", None, "--id", run_id)["output"] == 41
    unknown = both.json("runs", "create", "no_such_workflow", code=4)["error"]
    assert unknown["code"] == "WORKFLOW_UNKNOWN"
    assert "Known: add" in unknown["hint"]


DRIFTING = """
from ironflow import Context, step, workflow
@step
async def {step}(n: int) -> int: return n
@workflow
async def drifting(ctx: Context, n: int) -> int:
    n = await {step}(n)
    await ctx.sleep(2)
    return n + 1
"""


def test_runs_paused_by_a_divergence_are_counted_first_and_resumed_with_yes(
    cli: Cli, tmp_path: Path, started: Callable[[list[str]], Popen[str]]
) -> None:
    cli.flows = tmp_path / "drifting_flow.py"
    cli.flows.write_text(DRIFTING.format(step="old"))
    process = started(["run", f"{cli.flows}:drifting", "--input", "1", "--db", cli.url])
    cli.ready()
    eventually(lambda: [row["state"] for row in cli.json("runs", "list")] == ["sleeping"], "it sleeps")
    process.kill()
    process.wait()
    [diverged] = [row["run_id"] for row in cli.json("runs", "list")]
    other = created(cli, "drifting", 2)
    cli("runs", "pause", other)

    # Of another length: Python tells a changed file by its size and the second of its change.
    cli.flows.write_text(DRIFTING.format(step="renamed"))
    paused = cli.run_apart("drifting", 1, code=6)
    assert (paused["run_id"], paused["state"], paused["reason"]) == (diverged, "paused", "REPLAY_DIVERGENCE")
    plan = cli.json("runs", "resume", "--divergence")
    assert plan == {"count": 1, "applied": False, "run_ids": [diverged]}
    assert state(cli, diverged) == "paused"
    assert "1 run is paused" in cli("runs", "resume", "--divergence")

    cli.flows.write_text(DRIFTING.format(step="old"))
    assert [one["run_id"] for one in cli.json("runs", "resume", "--divergence", "--yes")] == [diverged]
    ended = cli.run_apart("drifting", 1)
    assert (ended["run_id"], ended["output"]) == (diverged, 2)
    assert state(cli, other) == "paused"


def test_resume_wants_runs_or_divergence_and_not_both(cli: Cli) -> None:
    run_id = created(cli)
    assert "no run was named" in cli.json("runs", "resume", code=2)["error"]["message"]
    assert cli.json("runs", "resume", run_id, "--divergence", code=2)["error"]["code"] == "INVALID_INPUT"
    assert json.loads(cli("runs", "resume", "--divergence", "--json"))["count"] == 0
