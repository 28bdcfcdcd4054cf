"""A worker moves a run only as its table of states says, whichever way its change takes into the database."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.store.build import activate, answer, answers, append, changed, create, leave, peek_one, start

from ironflow.model import run as runs
from ironflow.model.capacity import QueueRow, RunHead
from ironflow.model.journal import Event
from ironflow.model.transition import APPLIED, LOST, STALE, Transition
from ironflow.store.base import INLINE_PAYLOAD, Store

#: Alone, with company in a batch, or by the general path because of something that no fast statement carries.
WAYS = ("alone", "batch", "general")
LEAVES = sorted(runs.STATES - runs.OWNED)


async def sent(store: Store, way: str, change: Transition) -> str:
    """The answer to a change of the run `r1` that goes this way."""
    if way == "batch":
        for neighbour in ("n1", "n2"):
            await answer(store, start(neighbour))
        found = await answers(store, append("n1", 4), change, append("n2", 4))
        assert found[::2] == [APPLIED, APPLIED]
        return found[1]
    if way == "general":
        change.events[0].payload = '{"x":"' + "x" * INLINE_PAYLOAD + '"}'
    return await answer(store, change)


async def refused(store: Store, way: str, change: Transition, word: str) -> None:
    """It is, and has changed nothing."""
    before = await store.run("r1"), len(await store.journal("r1")), await store.queue(), await store.waits("r1")
    assert await sent(store, way, change) == word
    assert before == (
        await store.run("r1"), len(await store.journal("r1")), await store.queue(), await store.waits("r1"),
    )  # fmt: skip
    assert (await store.run("r1")).state == "cancelling"  # type: ignore[union-attr]


def parting(state: str) -> Transition:
    """The owner of `r1` leaves it in this state."""
    change = leave("r1", 4, state)
    if state in runs.QUEUED:
        change.enqueue = QueueRow("r1", "order", 0, 0, 0, 1)
    return change


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("state", LEAVES)
async def test_a_run_that_is_being_undone_leaves_its_owner_as_cancelled_or_failed_only(
    store: Store, state: str, way: str
) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(state="cancelling"))
    if state not in ("cancelled", "failed"):
        await refused(store, way, parting(state), STALE)
    else:
        assert await sent(store, way, parting(state)) == APPLIED


@pytest.mark.parametrize("way", WAYS)
async def test_its_owner_cannot_call_a_run_that_is_being_undone_running_again(store: Store, way: str) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(state="cancelling"))
    change = append("r1", 4)
    change.state = "running"
    await refused(store, way, change, STALE)
    change = append("r1", 4)
    change.state = "cancelling"
    assert await answer(store, change) == APPLIED
    assert await answer(store, append("r1", 5)) == APPLIED


def kept(head: RunHead) -> Transition:
    return activate(head, 2)


def ended(head: RunHead) -> Transition:
    """Taken and left in one commit: it is never leased, which no fast statement carries."""
    change = activate(head, 2)
    change.state, change.ended, change.lease, change.new_token_hash = "completed", True, None, None
    change.events = [Event(2, "run_succeeded", None, "{}")]
    return change


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("take", [kept, ended])
async def test_a_run_that_is_being_undone_is_taken_as_such_or_not_at_all(
    store: Store, take: Callable[[RunHead], Transition], way: str
) -> None:
    await answer(store, create("r1"))
    await store.decide(["r1"], changed(state="cancelling"))
    head = await peek_one(store)
    await refused(store, way, take(head), LOST)
    change = activate(head, 2)
    change.state = "cancelling"
    assert await answer(store, change) == APPLIED


async def test_takes_of_one_batch_are_judged_each_by_its_own_row(store: Store) -> None:
    for run_id in ("r1", "r2", "r3"):
        await answer(store, create(run_id))
    await store.decide(["r2"], changed(state="cancelling"))
    heads = sorted(await store.peek(["order"], 3), key=lambda head: head.run_id)
    assert await answers(store, *[activate(head, 2) for head in heads]) == [APPLIED, LOST, APPLIED]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("warnings", "right", "wrong"), [(0, "completed", "warning"), (2, "warning", "completed")])
async def test_how_a_run_ended_well_is_what_its_warnings_say(
    store: Store, warnings: int, right: str, wrong: str, way: str
) -> None:
    await answer(store, start("r1"))
    await store.decide(["r1"], changed(warnings=warnings))
    assert await sent(store, way, leave("r1", 4, wrong)) == STALE
    assert (await store.run("r1")).state == "running"  # type: ignore[union-attr]
    assert await answer(store, leave("r1", 4, right)) == APPLIED


async def test_a_warning_of_the_change_that_ends_the_run_counts(store: Store) -> None:
    await answer(store, start("r1"))
    for state, word in (("completed", STALE), ("warning", APPLIED)):
        change = leave("r1", 4, state)
        change.changes = {"warnings": 1}
        assert await answer(store, change) == word
