"""The supervisor of worker processes where the machine lets none start, or its own code fails."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from ironflow.cli import output, supervisor
from ironflow.cli.words import WORDS_VARIABLE
from ironflow.config import Settings

DIES = "import os; os._exit(9)"
#: Says that somebody else wished it to leave, and is not replaced.
LEAVES = f"import os; os.write(int(os.environ[{WORDS_VARIABLE!r}]), b'left\\n')"
LIVES = "import signal; signal.pause()"
REFUSED = BlockingIOError(11, "Resource temporarily unavailable")  # as fork says it

Supervised = Callable[[int], Coroutine[Any, Any, int]]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str | Exception]:
    """What the next starts bring: programs that run in place of workers, and errors. More than these are none."""
    plan: list[str | Exception] = []
    real = asyncio.create_subprocess_exec

    async def planned(*_command: str, **options: Any) -> Any:
        one = plan.pop(0)
        if isinstance(one, Exception):
            raise one
        return await real(sys.executable, "-c", one, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", planned)
    return plan


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[dict[str, Any], str]]:
    found: list[tuple[dict[str, Any], str]] = []
    monkeypatch.setattr(output, "tell", lambda facts, text, *, as_json: found.append((facts, text)))
    return found


async def supervised(count: int) -> int:
    return await asyncio.wait_for(
        supervisor.supervise(["flows.py"], count, None, Settings(drain_timeout_ms=500), as_json=True), 30
    )


def pipes() -> list[str]:
    """The pipes that this process holds an end of."""
    ends = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return sorted(one for one in (os.readlink(end) for end in ends if os.path.exists(end)) if one.startswith("pipe:"))


@pytest.mark.parametrize("before", [[], [DIES]], ids=["the first", "the next"])
async def test_a_worker_that_the_machine_does_not_let_start_is_told_of_and_tried_again(
    starts: list[str | Exception],
    told: list[tuple[dict[str, Any], str]],
    monkeypatch: pytest.MonkeyPatch,
    before: list[str | Exception],
) -> None:
    monkeypatch.setattr(supervisor, "BACKOFF_S", (0.01, 0.02))
    starts += [*before, REFUSED, REFUSED, REFUSED, LEAVES]
    held = pipes()
    assert await supervised(1) == 0
    assert starts == [], "nobody tried again"
    assert pipes() == held
    events = [facts for facts, _ in told if facts["event"] == "not_started"]
    assert events == [
        {"event": "not_started", "number": 1, "error": "Resource temporarily unavailable", "pause_ms": pause_ms}
        for pause_ms in ([20, 20, 20] if before else [10, 20, 20])
    ]
    assert told[-1][1] == "worker 1 could not be started (Resource temporarily unavailable); it is tried again in 20ms"


async def test_a_signal_ends_a_supervisor_that_cannot_start_anybody(
    starts: list[str | Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts += [REFUSED, REFUSED]
    asked: list[int] = []

    def tell(facts: dict[str, Any], text: str, *, as_json: bool) -> None:
        asked.append(facts["number"])
        if len(asked) == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(output, "tell", tell)
    monkeypatch.setattr(supervisor, "BACKOFF_S", (60.0, 60.0))
    assert await supervised(2) == 0
    assert sorted(asked) == [1, 2]


async def test_an_error_that_nobody_foresaw_is_raised_when_the_other_workers_have_left(
    starts: list[str | Exception], told: list[tuple[dict[str, Any], str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[supervisor._Child] = []
    keep = supervisor._Child.keep

    async def kept(child: supervisor._Child) -> None:
        children.append(child)
        await keep(child)

    monkeypatch.setattr(supervisor._Child, "keep", kept)
    starts += [LIVES, RuntimeError("can't start new thread")]
    with pytest.raises(RuntimeError, match="can't start new thread"):
        await supervised(2)
    process = children[0].process
    assert process is not None
    assert process.returncode == -signal.SIGTERM
