"""What one organisation declares, however much it is, takes the others' node no time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.server.asking import serving
from tests.server.kit import Refused, Served

from ironflow.engine import declared as engine
from ironflow.engine.declared import unknown
from ironflow.errors import InvalidInput, WorkflowUnknown
from ironflow.model.scope import DEFAULT
from ironflow.server import catalogue as module
from ironflow.server.catalogue import FRESH_S, Catalogue
from ironflow.store.base import WorkflowSeen


class _Store:
    """Some workflows, and how often they were asked for."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows, self.looks, self.takes = rows, 0, 0.0

    async def workflows(self, _: Any) -> list[dict[str, Any]]:
        self.looks += 1
        await asyncio.sleep(self.takes)
        return [dict(row) for row in self.rows]


def row(name: str, **definition: Any) -> dict[str, Any]:
    return {"name": name, "version": "1", "worker_tags": "", "definition": json.dumps(definition)}


async def test_only_the_workflow_that_is_asked_for_is_parsed_and_once_while_it_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    real = json.loads
    monkeypatch.setattr(engine.json, "loads", lambda text: parsed.append(text) or real(text))
    store, now = _Store([row(f"w{i}", priority=i) for i in range(100)]), [0.0]
    catalogue = Catalogue(store, clock=lambda: now[0])  # type: ignore[arg-type]
    for _ in range(5):
        assert (await catalogue.declared(DEFAULT, "w7")).priority == 7
        assert (await catalogue.declared(DEFAULT, "w7", stored=True)).priority == 7
        with pytest.raises(WorkflowUnknown):
            await catalogue.declared(DEFAULT, "none")
        now[0] += FRESH_S
    assert len(parsed) == 1
    store.rows[7] = row("w7", priority=8)
    assert (await catalogue.declared(DEFAULT, "w7", stored=True)).priority == 8


async def test_starts_of_unknown_names_share_a_look_and_slow_looks_are_rare() -> None:
    store = _Store([row("known")])
    store.takes = 0.02
    catalogue = Catalogue(store)  # type: ignore[arg-type]

    async def ask() -> None:
        with pytest.raises(WorkflowUnknown):
            await catalogue.declared(DEFAULT, "none")

    await asyncio.gather(*(ask() for _ in range(100)))
    assert store.looks == 1
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        await ask()
    assert store.looks == 4
    assert asyncio.get_running_loop().time() - began > 3 * 9 * 0.02
    assert (await catalogue.declared(DEFAULT, "known")).name == "known"


async def test_one_look_that_fails_fails_for_those_who_waited_and_no_others() -> None:
    store = _Store([row("known")])
    catalogue = Catalogue(store)  # type: ignore[arg-type]
    store.takes = "never"  # type: ignore[assignment]
    with pytest.raises(TypeError):
        await catalogue.declared(DEFAULT, "known")
    store.takes = 0.0
    assert (await catalogue.declared(DEFAULT, "known")).name == "known"


def test_an_unknown_name_is_told_of_some_others_only() -> None:
    error = unknown("x", [f"w{i:05}" for i in range(100_000)])
    assert len(error.hint) < 2_000
    assert "and 99,950 more" in error.hint
    assert len(error.details["known"]) == 1_000


async def test_what_a_scope_has_declared_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DECLARED", 1_000)
    store = _Store([row("a", doc="x" * 500)])
    catalogue = Catalogue(store)  # type: ignore[arg-type]

    def seen(name: str, size: int) -> list[WorkflowSeen]:
        return [WorkflowSeen(name, "1", "", "x" * size)]

    await catalogue.check_room(DEFAULT, seen("b", 300))
    with pytest.raises(InvalidInput, match=r"default/default would have 1,\d\d\d characters; 1,000 is the most"):
        await catalogue.check_room(DEFAULT, seen("c", 300))
    await catalogue.check_room(DEFAULT, seen("b", 200))
    store.rows.append(row("d", doc="x" * 5_000))  # of an older node
    late = Catalogue(store)  # type: ignore[arg-type]
    await late.check_room(DEFAULT, seen("a", 300))  # it is less than there was


async def test_a_worker_that_declares_too_much_is_refused(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_DECLARED", 2_000)
    large = {"name": "order", "version": "1", "worker_tags": [], "definition": {"doc": "x" * 2_000}}
    with pytest.raises(Refused) as refused:
        await here.worker(workflows=[large])
    assert (refused.value.status, refused.value.code) == (400, "INVALID_INPUT")
    assert "the definitions of all workflows of default/default" in refused.value.problem["detail"]
    await here.worker()


async def test_a_schema_that_no_node_can_read_is_refused_when_it_is_declared(here: Served) -> None:
    wrong = {"name": "order", "version": "1", "worker_tags": [], "definition": {"input_schema": {"required": [["x"]]}}}
    with pytest.raises(Refused) as refused:
        await here.worker(workflows=[wrong])
    assert (refused.value.status, refused.value.code) == (400, "INVALID_INPUT")
    assert "input_schema.required must be a list of texts" in refused.value.problem["detail"]


async def test_an_older_node_s_schema_that_none_can_read_does_not_fail_a_start(sqlite_url: str) -> None:
    async with serving(sqlite_url) as api:
        await api.declare("odd", input_schema={"type": "object", "required": [["x"]]})
        answer = await api.ask("POST", "/runs", await api.key(), body={"workflow": "odd", "input": {}})
        assert answer.status == 201
