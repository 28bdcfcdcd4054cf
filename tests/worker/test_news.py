"""A fact from outside that arrives while a segment is about to suspend is never slept over."""

from __future__ import annotations

from typing import Any

import ironflow
from ironflow.model import journal as j
from ironflow.model.transition import GUARD_LOCKED, Locked, Transition
from ironflow.store.base import Store

fresh = {"n": 0}


@ironflow.step
async def look() -> int:
    fresh["n"] += 1
    return fresh["n"]


@ironflow.workflow
async def naps(ctx: ironflow.Context) -> int:
    seen = await look()
    await ctx.sleep("50ms")
    return seen


async def test_a_run_with_news_is_queued_again_instead_of_put_to_sleep(store_url: str, monkeypatch: Any) -> None:
    fresh["n"] = 0
    async with ironflow.open(store_url, workflows=[naps]) as engine:
        assert engine.worker is not None
        store, port, told = engine.store, engine.worker.port, False
        submit = port.submit

        async def tell_first(change: Transition) -> str:
            """Between the decision to suspend and its commit, the sender's transaction raises the counter of facts."""
            await raise_facts(store, change.run_id)
            answer = submit(change)
            return answer if isinstance(answer, str) else await answer

        def submitted(change: Transition) -> Any:
            nonlocal told
            if not told and any(event.kind == j.RUN_SUSPENDED for event in change.events):
                told = True
                return tell_first(change)
            return submit(change)

        monkeypatch.setattr(port, "submit", submitted)
        run = await engine.start(naps)
        assert await run.result(timeout=20) == 1
        kinds = [event.kind async for event in run.journal()]
        assert told
        assert kinds[kinds.index(j.TIMER_STARTED) + 1] == j.RUN_RELEASED, "given back in place of being put to sleep"
        assert fresh["n"] == 1, "what had ended was kept"


async def raise_facts(store: Store, run_id: str) -> None:
    def decide(locked: Locked) -> Transition:
        change = Transition(run_id, GUARD_LOCKED, locked.row.execution_seq)
        change.changes = {"facts": locked.row.facts + 1}
        return change

    await store.decide([run_id], decide)


