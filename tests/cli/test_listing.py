"""Tables on narrow screens: what gives way, what never does, and plain text where no colour is wanted."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys

import pytest
from rich.console import Console
from tests.cli.conftest import Cli, environment
from tests.cli.test_looking import created

from ironflow.cli.holding import UNTIL, sentence
from ironflow.cli.listing import Listing
from ironflow.engine.why import CODES, Hold
from ironflow.model.capacity import SessionRow
from ironflow.model.routing import Served, Serves
from ironflow.model.scope import DEFAULT
from ironflow.store import connect

IDS = ["01a2299b-412b-7c01-8a55-0d1f5a3b9c01", "01a2299b-412b-7c01-8a55-0d1f5a3b9c02"]


def printed(made: Listing, width: int) -> list[str]:
    stream = io.StringIO()
    made.print(Console(file=stream, width=width, color_system=None))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def table() -> Listing:
    made = Listing("RUN", "STATE", "WORKFLOW", "CREATED", shrink=("WORKFLOW",), ids=("RUN",))
    for run_id in IDS:
        made.add_row(run_id, "completed", "ingest_of_the_orders", "3m ago")
    return made


def test_an_id_keeps_its_end_and_gives_way_last() -> None:
    assert printed(table(), 90)[1] == f"{IDS[0]}  completed  ingest_of_the_orders  3m ago"
    assert printed(table(), 70)[1] == f"{IDS[0]}  completed  ingest_of_t…  3m ago"
    narrow = printed(table(), 50)
    assert max(map(len, narrow)) <= 50
    shown = [line.split()[0] for line in narrow[1:]]
    assert len(set(shown)) == 2
    for short, whole in zip(shown, IDS, strict=True):
        assert short.startswith("…")
        assert whole.endswith(short[1:])
        assert len(short) >= 13


def test_what_does_not_give_way_is_whole_however_narrow_the_screen() -> None:
    for width in (10, 30, 60):
        lines = printed(table(), width)
        assert len(lines) == 3, "left to the terminal to wrap"
        for line in lines[1:]:
            assert "completed" in line
            assert line.endswith("3m ago")


def test_a_column_that_folds_goes_on_below_itself() -> None:
    made = Listing("WHEN", "FIELDS", "BY", fold="FIELDS")
    text = "one=1  two=2  three=3  four=4  five=5"
    made.add_row("3m ago", text, "ann")
    lines = printed(made, 40)
    assert max(map(len, lines)) <= 40
    assert len(lines) == 3
    assert " ".join(re.sub("3m ago|ann", "", " ".join(lines[1:])).split()) == " ".join(text.split())


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_audit_log_always_says_when_what_and_who(cli: Cli, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = created(cli)
    for verb in ("pause", "resume", "cancel"):
        cli("runs", verb, run_id)
    cli("apikey", "create", "a-key-with-a-long-name-of-its-own", "--role", "viewer")
    key_id = cli.json("audit")[0]["fields"]["key_id"]
    monkeypatch.setenv("COLUMNS", str(width))
    text = cli("audit")
    assert max(map(len, text.splitlines())) <= width
    assert text.split()[:5] == ["WHEN", "ACTION", "BY", "RUN", "FIELDS"]
    for action in ("run.pause", "run.resume", "run.cancel", "key.create"):
        assert re.search(rf"^(just now|\d+s ago) +{re.escape(action)} +\S+ ", text, re.M), text
    assert "state=pending" in text
    shortened = re.findall(r"…\S+", text)
    assert set(shortened) <= {f"…{run_id[-len(one) + 1 :]}" for one in shortened}, "only ids are shortened"
    folded = text.replace("\n", "").replace(" ", "")
    assert f"key_id={key_id}" in folded
    assert run_id[-12:] in text


async def _sessions(url: str) -> None:
    store = await connect(url)
    workflows = {f"workflow_{n}": Served(("1",), ()) for n in range(5)}
    for name, draining, tags in (("eu-worker-with-a-name-1", 0, ("gpu", "eu")), ("vm-9631", 1, ())):
        now = store.now()
        serves = Serves(DEFAULT, tags, workflows)
        routes = "\n".join(serves.routes())
        await store.open_session(
            SessionRow(
                name, name, "host-1.example", "b", 9631, "p", routes, 100, 97, now, now, now + 60_000,
                draining=draining, serves=serves.to_json(),
            )
        )  # fmt: skip
    await store.close()


def test_workers_are_shown_with_whole_names_their_tags_and_whether_they_leave(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    created(cli)
    asyncio.run(_sessions(cli.url))
    monkeypatch.setenv("COLUMNS", "80")
    text = cli("capacity", "sessions")
    assert max(map(len, text.splitlines())) <= 80
    first, second = text.splitlines()[1:]
    assert first.startswith("eu-worker-with-a-name-1 ")
    assert " 97/100 " in first
    assert "gpu, eu" in first
    assert second.startswith("vm-9631 ")
    assert " leaves " in second


@pytest.mark.parametrize("columns", ["60", "110"])
def test_the_longest_kind_pushes_nothing_out_of_its_column(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    cli.flows.write_text(
        "from ironflow import Context, step, workflow\n"
        "@step\ndef undo(n: int) -> None: ...\n"
        "@workflow\nasync def undone(ctx: Context) -> None:\n    ctx.compensate(undo, 1)\n    await undo(1)\n"
    )
    cli.run("undone", None, "--id", "u1")
    monkeypatch.setenv("COLUMNS", columns)
    for verb in ("journal", "watch"):
        lines = cli("runs", verb, "u1").splitlines()
        assert max(map(len, lines)) <= int(columns)
        assert len({line.index("undo  main/") for line in lines if "undo  main/" in line}) == 1
        kind = "compensation_registered" if columns == "110" else "compensation_re…"
        assert kind in "".join(lines)


def test_why_is_not_wrapped_where_it_is_piped(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.run("add", 1)
    cli("workflows", "pause", "add")
    run_id = created(cli)
    monkeypatch.setenv("COLUMNS", "60")
    [line] = [line for line in cli("why", run_id).splitlines() if "WORKFLOW_PAUSED" in line]
    assert "`ironflow workflows resume add` lets them go" in line
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert max(len(line.rstrip()) for line in cli("why", run_id).splitlines()[1:3]) <= 60


def test_every_time_of_a_hold_is_told_as_what_it_is() -> None:
    timed = {code for code, meaning in CODES.items() if "until: " in meaning}
    plain = {"SCHEDULED", "RUN_RETRY", "RECOVERY_GRACE", "DEADLINE"}  # their message calls it "then"
    assert timed <= UNTIL.keys() | plain
    now = 1_000_000
    executing = sentence(Hold("EXECUTING", "executes on worker w", now + 19_000), now)
    retry = sentence(Hold("STEP_RETRY", "a try failed", now - 15_000), now)
    assert "executes on worker w (its lease ends in 19s, 1970-01-01T00:16:59.000Z, unless it is renewed)" in executing
    assert "a try failed (the next try was due 15s ago, " in retry


def test_no_color_means_plain_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    run_id = created(cli)
    assert "\x1b[" in cli("runs", "get", run_id), "this would show it"
    monkeypatch.setenv("NO_COLOR", "1")
    for words in (["runs", "list"], ["runs", "get", run_id], ["runs", "journal", run_id], ["why", run_id], ["audit"]):
        assert "\x1b" not in cli(*words), words


@pytest.mark.parametrize("words", [[], ["runs"], ["runs", "get", "--help"], ["worker", "-h"]])
def test_no_color_means_plain_help(words: list[str]) -> None:
    """In a process of its own: what prints the help reads the environment when it is imported."""
    env = {**environment(), "NO_COLOR": "1", "FORCE_COLOR": "1"}
    command = [sys.executable, "-m", "ironflow", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert "Usage: " in done.stdout
    assert "\x1b" not in done.stdout
