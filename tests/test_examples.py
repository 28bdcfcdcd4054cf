"""The examples, run as their heads say, and killed at the places they say are safe."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ironflow

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import ingest  # noqa: E402 - the folder must be on the path first, as it is for a worker
import payment  # noqa: E402


def command(target: str, value: Any) -> list[str]:
    return [sys.executable, "-m", "ironflow", "run", f"{EXAMPLES}/{target}", "--input", json.dumps(value), "--json"]


def run(target: str, value: Any, folder: Path, code: int = 0) -> Any:
    """`ironflow run` in a folder of its own; its JSON object."""
    done = subprocess.run(command(target, value), cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


def executed(folder: Path) -> Counter[str]:
    """How often each step's body began."""
    lines = (folder / "effects.log").read_text().splitlines()
    return Counter(line.split("\t")[0] for line in lines)


# ---- ingest --------------------------------------------------------------------------------------------------


def test_ingest_reads_a_folder_and_says_what_it_found(tmp_path: Path) -> None:
    told = run("ingest.py:ingest", {"root": str(EXAMPLES), "delay": 0, "rest": 0}, tmp_path)
    files = sorted(path.name for path in EXAMPLES.glob("*.py"))
    assert told["output"]["files"] == len(files)
    assert sorted(ingest.indexed_files(str(tmp_path / "ingest-out"))) == files


def test_ingest_killed_in_the_middle_goes_on_when_the_command_is_given_again(tmp_path: Path) -> None:
    value = {"limit": 40, "delay": 0.05, "rest": 0.1}
    out, log = tmp_path / "ingest-out", tmp_path / "ingest-out" / "effects.log"
    first = subprocess.Popen(
        command("ingest.py:ingest", value), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: log.exists() and len(log.read_text().splitlines()) > 15)
    finally:
        first.kill()
        first.wait()
    before = executed(out)

    told = run("ingest.py:ingest", value, tmp_path)

    assert told["output"]["files"] == 40
    assert told["lease_recoveries"] == 1
    counts = executed(out)
    publish = next(step for step in counts if step.endswith(":publish"))
    assert counts.pop(publish) == ingest.BUSY_VISITS + 1
    again = [step for step, count in counts.items() if count > 1]
    assert len(again) <= 4  # those that were under way; `parallel` is 4
    assert max(counts.values()) <= 2
    assert len(counts) == 42
    assert set(again) <= set(before)
    assert len(ingest.indexed_files(str(out))) == 40


def test_ingest_reports_what_it_cannot_read_and_keeps_the_rest(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("good.py", "gone.py"):
        (source / name).write_text("x = 1\n")
    (source / "pipe.py").symlink_to(tmp_path / "nowhere")
    os.mkfifo(source / "fifo.py")
    real = Path.read_bytes

    def vanishing(path: Path) -> bytes:  # listed a moment ago, removed since
        if path.name == "gone.py":
            raise FileNotFoundError(path)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", vanishing)
    asked = ingest.Source(root=str(source), out=str(tmp_path / "out"), delay=0, rest=0)
    with ironflow.open(sqlite_url) as engine:
        started = engine.wait(engine.start(ingest.ingest, asked))
        summary = engine.wait(started.result(timeout=30))
        view = engine.wait(started.status())
    assert (summary.files, summary.unreadable, summary.largest) == (1, 1, "good.py")
    assert view.state == "warning"


def test_ingest_of_an_empty_folder_is_an_empty_summary(tmp_path: Path, sqlite_url: str) -> None:
    (tmp_path / "empty").mkdir()
    asked = ingest.Source(root=str(tmp_path / "empty"), out=str(tmp_path / "out"), delay=0, rest=0)
    assert ironflow.run(ingest.ingest, asked, url=sqlite_url).files == 0


def test_ingest_of_no_folder_fails_with_a_sentence(tmp_path: Path, sqlite_url: str) -> None:
    asked = ingest.Source(root=str(tmp_path / "nowhere"), out=str(tmp_path / "out"))
    with pytest.raises(ironflow.RunFailed, match="is not a folder: give one as root"):
        ironflow.run(ingest.ingest, asked, url=sqlite_url)


# ---- payment -------------------------------------------------------------------------------------------------

#: A process that runs the order and dies right after the body of one step, before its end is recorded.
DIES = """
import functools, os, signal, sys
import ironflow, payment
step = getattr(payment, sys.argv[1])
body = step.spec.fn
@functools.wraps(body)
def body_then_death(*args):
    body(*args)
    os.kill(os.getpid(), signal.SIGKILL)
step.spec.fn = body_then_death
order = payment.Order("A-1", 4200, shop=sys.argv[2])
ironflow.run(payment.take_order, order, url=sys.argv[3], id="order-A-1")
"""


def die_in(step: str, shop: Path, url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", DIES, step, str(shop), url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def go_on(shop: Path, url: str) -> tuple[payment.Confirmation, str]:
    """The same order in another process (this one): its result and the run's state."""
    with ironflow.open(url) as engine:
        order = payment.Order("A-1", 4200, shop=str(shop))
        again = engine.wait(engine.start(payment.take_order, order, id="order-A-1"))
        assert not again.created
        return engine.wait(again.result(timeout=30)), engine.wait(again.status()).state


def test_an_order_is_taken_by_the_command_line(tmp_path: Path) -> None:
    told = run("payment.py:take_order", {"order_id": "A-1", "cents": 4200}, tmp_path)
    assert told["output"]["mailed"] is True
    assert len(list((tmp_path / "shop-out").glob("charged-*"))) == 1


def test_a_declined_card_gives_the_reservation_back(tmp_path: Path) -> None:
    value = {"order_id": "A-2", "cents": 4200, "card": "declined"}
    told = run("payment.py:take_order", value, tmp_path, code=1)
    assert "declined" in json.dumps(told)
    assert list((tmp_path / "shop-out").iterdir()) == []


def test_an_order_that_is_cancelled_while_the_card_is_charged_is_refunded(tmp_path: Path, sqlite_url: str) -> None:
    order = payment.Order("A-9", 4200, shop=str(tmp_path))
    charged, body = asyncio.Event(), payment.charge.spec.fn

    @functools.wraps(body)
    async def slow_bank(order: Any) -> str:
        charge_id: str = body(order)
        charged.set()
        await asyncio.Event().wait()  # the money has moved, and the bank has not answered yet
        return charge_id

    async def scenario() -> None:
        async with ironflow.open(sqlite_url) as engine:
            run = await engine.start(payment.take_order, order)
            await charged.wait()
            await run.cancel()
            with pytest.raises(ironflow.RunCancelled):
                await run.result(timeout=30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(payment.charge.spec, "fn", slow_bank)
        patch.setattr(payment.charge.spec, "is_async", True)
        asyncio.run(scenario())
    [charge] = tmp_path.glob("charged-*")
    assert [path.name for path in tmp_path.glob("refunded-*")] == [charge.name.replace("charged", "refunded")]
    assert not list(tmp_path.glob("reserved-*"))


def test_a_charge_that_was_cut_off_is_charged_once(tmp_path: Path, store_url: str) -> None:
    die_in("charge", tmp_path, store_url)
    confirmation, state = go_on(tmp_path, store_url)
    assert [path.name for path in tmp_path.glob("charged-*")] == [f"charged-{confirmation.charge}"]
    assert state == "completed"


def test_a_parcel_that_left_before_the_crash_is_not_sent_again(
    tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    die_in("ship", tmp_path, store_url)

    @functools.wraps(payment.ship.fn)
    def never(order: payment.Order) -> str:
        raise AssertionError("asked and answered: the parcel is on its way")

    monkeypatch.setattr(payment.ship.spec, "fn", never)
    confirmation, state = go_on(tmp_path, store_url)
    assert confirmation.parcel == "parcel-A-1"
    assert state == "completed"


def test_a_mail_that_was_cut_off_is_never_sent_twice(tmp_path: Path, store_url: str) -> None:
    die_in("mail", tmp_path, store_url)
    confirmation, state = go_on(tmp_path, store_url)
    assert (tmp_path / "mails").read_text().splitlines() == ["thank you for order A-1"]
    assert confirmation.mailed is False
    assert state == "warning"


# ---- the agent -----------------------------------------------------------------------------------------------


def test_the_agent_finds_its_answer_although_its_model_was_overloaded(tmp_path: Path) -> None:
    told = run("research_agent.py:research", "Which example is the longest?", tmp_path)
    lengths = {path.name: path.read_text().count("\n") for path in EXAMPLES.glob("*.py")}
    longest = max(lengths, key=lambda name: lengths[name])
    assert told["output"] == {"answer": f"{longest} has {lengths[longest]} lines", "turns": 3, "tokens": 450}


def test_every_example_says_how_it_is_run() -> None:
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert f"ironflow run examples/{path.name}:" in text or f"python examples/{path.name}" in text


with contextlib.suppress(ValueError):
    sys.path.remove(str(EXAMPLES))
