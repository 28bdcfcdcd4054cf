"""Bodies that an attempt's end cut off: the next attempt treats them as a crash's, whoever ended it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.engine.harness import Harness
from tests.engine.letters import a, b

from ironflow.context import Context, Done, NotDone, Retry, step, workflow
from ironflow.errors import StepInterrupted
from ironflow.model import journal as j
from ironflow.model import run as runs


@step(at_most_once=True)
async def once(*what: Any) -> Any: ...


@step
async def charge(amount: int) -> str:
    return f"receipt {amount}"


@charge.reconcile
def _ask(amount: int) -> Done[str] | NotDone:
    raise AssertionError("the harness answers for it")


def flow(*calls: Callable[[], Any], **options: Any) -> Any:
    """One step beside the others, all awaited."""

    async def together(ctx: Context) -> Any:
        return await asyncio.gather(*(call() for call in calls))

    return workflow(name="flow", **options)(together)


def cancelled(h: Harness) -> Harness:
    """A person cancels a run without compensations: it has ended, and its owner is not asked."""
    h.command(j.CANCEL_REQUESTED, {"by": "ann", "compensate": False}, runs.CANCELLED)
    h.command(j.RUN_CANCELLED, {"by": "ann"}, runs.CANCELLED)
    h.running.clear()
    return h


def lost_too_often(h: Harness) -> Harness:
    """The run goes over its ceiling of recoveries: it is failed, and nobody owns it."""
    h.command(j.RUN_FAILED, {"error": {"type": "RecoveryExhausted", "message": "lost"}}, runs.FAILED)
    h.running.clear()
    return h


def failed_beside_it(h: Harness) -> Harness:
    """Another step fails the attempt; the body is told to end, and does."""
    h.fail("a")
    return h.end(h.names()[0], error=asyncio.CancelledError())


def failed_after_a_crash(h: Harness) -> Harness:
    """The same, and its owner dies before the body has ended."""
    return h.fail("a").recover()


def attempted_again(h: Harness) -> Harness:
    if h.state in runs.TERMINAL:
        h.reopen()
    else:
        h.later(h.queued_at - h.now)
    return h.replay()


ENDS = [cancelled, lost_too_often, failed_beside_it, failed_after_a_crash]


@pytest.mark.parametrize("end", ENDS)
def test_what_may_run_once_is_not_repeated_by_another_attempt(end: Callable[[Harness], Harness]) -> None:
    h = attempted_again(end(Harness(flow(once, a, retry=2)).fresh()))
    assert [name for name in h.new() if "once" in name] == ["interrupted once", "failed once"]
    while h.running:
        h.end(h.names()[0])
    assert (h.state, type(h.error)) == ("failed", StepInterrupted)
    h.reopen().replay()  # now a person has read it, and decides
    assert [number for key, number, _ in h.started if "once" in key] == [1, 2]


@pytest.mark.parametrize("end", ENDS)
def test_an_author_is_asked_what_became_of_it(end: Callable[[Harness], Harness]) -> None:
    h = attempted_again(end(Harness(flow(lambda: charge(5), a, retry=2)).fresh()))
    assert h.running["main/1:charge"].reconciling
    h.end("a").reconciled("charge", Done("receipt 5"))
    assert h.output == ["receipt 5", None]


@pytest.mark.parametrize("end", ENDS)
def test_what_is_repeated_is_repeated_under_its_key(end: Callable[[Harness], Harness]) -> None:
    h = attempted_again(end(Harness(flow(b, a, retry=2)).fresh()))
    assert len({key for name, _, key in h.started if name == "main/1:b"}) == 1
    h.end("b", "b").recover()
    h.end("a", "a")
    assert h.output == ["b", "a"]


def test_a_crash_behind_it_says_it_once() -> None:
    h = attempted_again(cancelled(Harness(flow(b, a)).fresh())).recover().recover()
    assert [event.kind for event in h.journal if event.step_id == "main/1:b"] == [
        *(j.STEP_STARTED, j.STEP_INTERRUPTED, j.STEP_STARTED),
        *(j.STEP_INTERRUPTED, j.STEP_STARTED, j.STEP_INTERRUPTED, j.STEP_STARTED),
    ]


def test_a_back_off_is_no_body() -> None:
    @step(at_most_once=True, retry=Retry(3, backoff="1h"))
    async def shy() -> Any: ...

    h = Harness(flow(shy, a, retry=2)).fresh().fail("shy").fail("a")
    attempted_again(h)
    assert [number for key, number, _ in h.started if "shy" in key] == [1, 2]


def test_a_restart_executes_it_again_as_everything() -> None:
    h = cancelled(Harness(flow(once)).fresh()).reopen(restart=True).replay()
    assert h.names() == ["once"]


def test_a_step_of_another_kind_may_stand_there_in_the_next_attempt() -> None:
    h = cancelled(Harness(flow(b)).fresh()).reopen()

    @step(name="b", kind="llm")
    async def other() -> Any: ...

    h.replay(flow(other)).end("b", json.loads("1"))
    assert h.output == [1]
