"""kill -9 at every boundary of a run's journal, on both databases, with real processes.

For every commit: dead right before it and right after it. For every body: dead after its effect, dead before its
return. Then a healthy engine opens the same database, and nobody does anything by hand. What is asked each time:
the run ends with the right output; a body whose end was journaled never runs again; only a body that had begun and
not ended runs twice; the journal folds to the row.
"""

from __future__ import annotations

import itertools
import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.crash import killing
from tests.crash.killing import AFTER, BEFORE, BODIES, OUTPUT, SURVIVED, Case, Nursery, journey

import ironflow
from ironflow.engine import doctor
from ironflow.model import journal as j
from ironflow.model.fold import fold
from ironflow.model.journal import Event

#: More commits than the workflow can take: if it takes these, the search for its last one has gone astray.
MOST_COMMITS = 40
KILLED = -signal.SIGKILL

#: A try of a step: (step id, number).
Try = tuple[str, int]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """The program that forks the processes that die."""
    started = Nursery()
    yield started
    started.close()


@dataclass(slots=True)
class Scene:
    """One database, the program that dies on it, and an engine that only looks."""

    url: str
    nursery: Nursery
    observer: ironflow.Engine
    effects: Path
    numbers: Iterator[int]

    async def crash(self, **where: object) -> int:
        """One child that may die, and what follows. Returns how the child ended."""
        run_id = f"run-{next(self.numbers)}"
        case = Case(self.url, run_id, str(self.effects), **where)  # type: ignore[arg-type]
        ended = self.nursery.run(case)
        assert ended in (KILLED, SURVIVED), f"{case} ended with {ended}"
        at_death = await self.observer.store.journal(run_id)
        killing.current = Case(self.url, run_id, str(self.effects))
        async with ironflow.open(self.url, workflows=[journey]) as engine:
            run = await engine.start(journey, "a", id=run_id)
            output = await run.result(timeout=20)
        assert output == OUTPUT, case
        self.check(case, at_death, await self.observer.store.journal(run_id))
        return ended

    def check(self, case: Case, at_death: list[Event], after: list[Event]) -> None:
        """Compare the effects that were left with what the journal said when the process died."""
        begun, ended = tries(at_death)
        counts = self.counts(case.run_id)
        every, _ = tries(after)
        assert set(counts) == every, f"{case}: bodies ran that the journal does not know"
        for one_try, count in counts.items():
            interrupted = one_try in begun and one_try not in ended
            assert count <= 2, f"{case}: {one_try} ran {count} times"
            assert interrupted or count == 1, f"{case}: {one_try} ran {count} times and was not interrupted"
        if case.body is not None:
            assert self.names(case.run_id)[case.body] == 2, f"{case}: the interrupted body did not run twice"
        assert _texts(after)[: len(at_death)] == _texts(at_death), f"{case}: history was rewritten"
        assert fold(after).breaches == [], case

    def counts(self, run_id: str) -> Counter[Try]:
        """How often each try of each body of a run was executed, by the lines it left."""
        return Counter((line["step"], line["try"]) for line in self._lines(run_id))

    def names(self, run_id: str) -> Counter[str]:
        """The same by `name/try`, as `BODIES` calls them."""
        return Counter(f"{line['name']}/{line['try']}" for line in self._lines(run_id))

    def _lines(self, run_id: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.effects.read_text().splitlines())
        return [line for line in lines if line["run"] == run_id]


def _texts(events: list[Event]) -> list[str]:
    return [repr(event) for event in events]


def tries(events: list[Event]) -> tuple[set[Try], set[Try]]:
    """The tries that a journal says had begun, and those of them that had ended."""
    begun: set[Try] = set()
    ended: set[Try] = set()
    number: dict[str, int] = {}
    for event in events:
        step_id = event.step_id or ""
        if event.kind == j.STEP_STARTED:
            number[step_id] = event.data().get("try", 1)
            begun.add((step_id, number[step_id]))
        elif event.kind in (j.STEP_COMPLETED, j.STEP_FAILED, j.STEP_RETRYING):
            ended.add((step_id, number[step_id]))
    return begun, ended


@pytest.fixture
async def scene(store_url: str, nursery: Nursery, tmp_path: Path) -> AsyncIterator[Scene]:
    """A fresh database. At the end the doctor finds nothing on it."""
    effects = tmp_path / "effects"
    effects.touch()
    async with ironflow.open(store_url, workflows=[journey], worker=False) as observer:
        yield Scene(store_url, nursery, observer, effects, itertools.count(1))
        # What it says of the server itself is about this test's one, which runs without fsync on purpose.
        assert [found for found in await doctor.examine(observer.store) if found.rule != "store"] == []


async def _kill_at_every_commit(scene: Scene, when: str) -> int:
    for number in range(1, MOST_COMMITS):
        if await scene.crash(when=when, commit=number) == SURVIVED:
            return number - 1
    raise AssertionError(f"the workflow took {MOST_COMMITS} commits")


async def test_a_run_survives_a_kill_before_every_commit(scene: Scene) -> None:
    assert await _kill_at_every_commit(scene, BEFORE) >= len(BODIES)


async def test_a_run_survives_a_kill_after_every_commit(scene: Scene) -> None:
    assert await _kill_at_every_commit(scene, AFTER) >= len(BODIES)


@pytest.mark.parametrize("when", [BEFORE, AFTER])
async def test_a_body_that_is_killed_runs_again_and_no_other_does(scene: Scene, when: str) -> None:
    for body in BODIES:
        assert await scene.crash(when=when, body=body) == KILLED, body


async def test_a_run_without_a_crash_executes_every_body_once(scene: Scene) -> None:
    assert await scene.crash() == SURVIVED
    assert scene.names("run-1") == dict.fromkeys(BODIES, 1)
