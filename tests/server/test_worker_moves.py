"""What a worker must not make of a run through the server: an accepted cancel undone, or a wait that is there twice."""

from __future__ import annotations

from typing import Any

from tests.recovery.kit import row
from tests.server.kit import Served, append, ending, taking

from ironflow.engine import commands
from ironflow.model import wire
from ironflow.model.capacity import RunHead


def registered(head: RunHead) -> dict[str, Any]:
    """The owner notes down what is to be undone."""
    note = ["compensation_registered", "main/n1:undo", "{}", head.execution_seq]
    return {**wire.item_of(append(head, 3)), "events": [[3, *note]], "changes": {"compensations": 1}}


async def test_g35_a_cancel_that_was_accepted_cannot_be_taken_back_by_a_worker(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    assert await worker.transitions(registered(head)) == ["applied"]
    assert await commands.cancel(here.store, run.run_id, "ann")
    [head] = await worker.poll(1, 2_000)
    assert head.state == "cancelling"
    take = wire.item_of(taking(head))
    take["events"] = [[5, "run_resumed", None, '{"t":1,"worker":"w"}', head.execution_seq + 1]]
    assert await worker.transitions(take) == ["lost"]
    take["events"][0][3] = '{"t":1,"worker":"w","cancelling":true}'
    [answer] = await worker.transitions(take)
    assert answer["error"]["code"] == "INVALID_INPUT"
    assert await worker.transitions({**take, "state": "cancelling"}) == ["applied"]
    head.execution_seq += 1
    assert await worker.transitions(wire.item_of(ending(head, 6))) == ["stale"]
    assert (await row(here.store, run.run_id)).state == "cancelling"
    done = {**wire.item_of(ending(head, 6)), "state": "cancelled"}
    done["events"] = [[6, "run_cancelled", None, '{"t":1}', head.execution_seq]]
    assert await worker.transitions(done) == ["applied"]


async def test_a_wait_that_is_there_twice_is_refused_and_not_a_failure_of_the_database(here: Served) -> None:
    worker = await here.worker()
    run = await here.start()
    head = await worker.took()
    wait = ["main/t1", "timer", "sleeping", here.store.now() + 60_000]
    item = {
        **wire.item_of(append(head, 3)), "state": "sleeping", "release": True, "facts": head.facts,
        "waits": [wait, wait], "events": [[3, "run_suspended", None, '{"state":"sleeping"}', head.execution_seq]],
    }  # fmt: skip
    [answer] = await worker.transitions(item)
    assert answer["error"]["code"] == "INVALID_INPUT"
    assert "waits[1].step_id" in answer["error"]["message"]
    assert await worker.transitions({**item, "waits": [wait]}) == ["applied"]
    assert (await row(here.store, run.run_id)).state == "sleeping"
