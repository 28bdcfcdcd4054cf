"""Who commits on the spot and who waits for company."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from ironflow.model.transition import APPLIED, GUARD_LOCKED, Transition
from ironflow.store.committer import Answer, Committer


class Backend:
    """Counts; a database would only make the test slower."""

    def __init__(self) -> None:
        self.alone = 0
        self.batches: list[int] = []

    def commit(self, batch: Sequence[Transition]) -> Sequence[Answer]:
        self.batches.append(len(batch))
        return [APPLIED] * len(batch)

    def try_commit(self, change: Transition) -> Answer | None:
        self.alone += 1
        return APPLIED

    def perform(self, job: Any) -> Any:
        return job()

    def try_perform(self, job: Any) -> tuple[bool, Any]:
        return True, job()


def change(n: int) -> Transition:
    return Transition(f"r{n}", GUARD_LOCKED)


async def submit(committer: Committer, n: int) -> str:
    answer = committer.submit(change(n))
    return answer if isinstance(answer, str) else await answer


async def test_a_lone_caller_never_leaves_the_loop_s_thread() -> None:
    backend = Backend()
    committer = Committer(backend, asyncio.get_running_loop())
    for n in range(10):
        assert await submit(committer, n) == APPLIED
    assert (backend.alone, backend.batches) == (10, [])
    await committer.close()


async def test_a_lone_caller_lets_the_loop_go_on_between_its_commits() -> None:
    committer = Committer(Backend(), asyncio.get_running_loop())
    ticks = 0

    async def other() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    beside = asyncio.ensure_future(other())
    for n in range(20):
        await submit(committer, n)
    beside.cancel()
    assert ticks >= 9, "at most two commits without a turn for everybody else"
    await committer.close()


async def test_callers_of_one_tick_share_a_commit() -> None:
    backend = Backend()
    committer = Committer(backend, asyncio.get_running_loop())
    await asyncio.gather(*(submit(committer, n) for n in range(64)))
    assert (backend.alone, backend.batches) == (1, [63]), "the first could not know of the others"
    await committer.close()
