"""A worker in another language may write a result twice: replay gives the oldest one, as the view of the run does."""

from __future__ import annotations

import json

import pytest
from tests.engine.harness import Harness

from ironflow.context import Context, step, workflow
from ironflow.engine.history import History
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.journal import Event


@step
async def charge(amount: int) -> str: ...


@step
async def ship(receipt: str) -> str: ...


@workflow
async def order(ctx: Context) -> str:
    return await ship(await charge(5))


CHARGE = "main/1:charge"
TWICE = (j.STEP_COMPLETED, '{"t":9,"result":"second"}')


@pytest.mark.parametrize(
    "more",
    [
        [TWICE],
        [(j.STEP_STARTED, "{}"), TWICE],
        [(j.STEP_STARTED, "{}")],
        [(j.STEP_FAILED, '{"t":9,"error":{"message":"x"}}')],
        [(j.STEP_INTERRUPTED, "{}")],
        [(j.STEP_CANCELLED, None)],
        [(j.STEP_RETRYING, '{"t":9,"due":9}')],
    ],
)
def test_replay_and_the_view_agree_on_the_oldest_result_of_a_step(more: list[tuple[str, str | None]]) -> None:
    h = Harness(order).fresh().end("charge", "first")
    for kind, payload in more:
        h.journal.append(Event(h.journal[-1].seq + 1, kind, CHARGE, payload, h.journal[-1].execution_seq, 9))
    [fact] = History.of(h.journal).facts
    assert fact.payload["result"] == fold(h.journal).steps[CHARGE].result == "first"


@pytest.mark.parametrize(("mode", "kept"), [("resume", "first"), ("restart", None)])
def test_a_result_that_was_repeated_is_carried_into_the_next_attempt_as_the_oldest(mode: str, kept: str | None) -> None:
    h = Harness(order).fresh().end("charge", "first")
    failed = json.dumps({"t": 9, "mode": mode, "failed_steps": [CHARGE], "error": {}})
    for kind, step_id, payload in ((*TWICE[:1], CHARGE, TWICE[1]), (j.RUN_RETRYING, None, failed)):
        h.journal.append(Event(h.journal[-1].seq + 1, kind, step_id, payload, h.journal[-1].execution_seq, 9))
    history = History.of(h.journal)
    assert [fact.payload["result"] for fact in history.carried.values()] == ([kept] if kept else [])
    # After a restart it executes again, and that result stands in turn.
    started, ended = (j.STEP_STARTED, "{}"), (j.STEP_COMPLETED, '{"t":10,"result":"third"}')
    for kind, text in (started, ended):
        h.journal.append(Event(h.journal[-1].seq + 1, kind, CHARGE, text, h.journal[-1].execution_seq, 10))
    assert fold(h.journal).steps[CHARGE].result == (kept or "third")
    assert [fact.payload["result"] for fact in History.of(h.journal).facts] == ([] if kept else ["third"])
