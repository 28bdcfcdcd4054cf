"""What a node knows of declared workflows: new ones at once, changed ones within a second, each scope its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.server.asking import OTHER, Api, serving

from ironflow.errors import WorkflowUnknown
from ironflow.model.scope import DEFAULT
from ironflow.server.catalogue import FRESH_S, Catalogue


@pytest.fixture
async def api(sqlite_url: str) -> AsyncIterator[Api]:
    async with serving(sqlite_url) as made:
        yield made


async def test_a_workflow_is_known_as_soon_as_it_is_registered_and_its_changes_within_a_second(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, asked = [0.0], []
    catalogue = Catalogue(api.store, clock=lambda: now[0])
    real = api.store.workflows

    async def counting(*scope: object) -> object:
        asked.append(scope)
        return await real(*scope)  # type: ignore[arg-type]

    monkeypatch.setattr(api.store, "workflows", counting)
    await api.declare("first", priority=1)
    assert (await catalogue.declared(DEFAULT, "first")).priority == 1
    with pytest.raises(WorkflowUnknown, match="Known: first"):
        await catalogue.declared(DEFAULT, "second")
    await api.declare("second")
    assert (await catalogue.declared(DEFAULT, "second")).name == "second"
    before = len(asked)
    await api.declare("first", priority=2)
    for _ in range(10):
        assert (await catalogue.declared(DEFAULT, "first")).priority == 1
    assert len(asked) == before
    now[0] += FRESH_S
    assert (await catalogue.declared(DEFAULT, "first")).priority == 2
    assert len(asked) == before + 1


async def test_scopes_do_not_know_each_other_s_workflows(api: Api) -> None:
    catalogue = Catalogue(api.store)
    await api.declare("first")
    await catalogue.declared(DEFAULT, "first")
    with pytest.raises(WorkflowUnknown, match="Known: none"):
        await catalogue.declared(OTHER, "first")
