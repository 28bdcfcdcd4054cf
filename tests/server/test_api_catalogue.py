"""What a node knows of declared workflows: new ones at once, changed ones within a second, each scope its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.recovery.kit import until
from tests.server.asking import OTHER, Api, serving
from tests.server.kit import Served, Speaker, new_key

from ironflow.errors import WorkflowUnknown
from ironflow.model import key as kinds
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


async def test_new_runs_get_the_newest_version_that_a_worker_has_whoever_registered_last(here: Served) -> None:
    key = {"Authorization": f"Bearer {await new_key(here.store, kinds.ORG, role='developer')}"}

    async def registers(speaker: Speaker, version: str) -> None:
        before = here.store.now()
        await until(lambda: here.store.now() > before)  # two registrations of one millisecond have no order
        serves = {"tags": [], "workflows": {"order": {"versions": [version], "tags": []}}}
        seen = [{"name": "order", "version": version, "worker_tags": [], "definition": {}}]
        await speaker.register(serves=serves, workflows=seen)

    async def version() -> str:
        async with here.http.post(f"{here.url}/api/v1/runs", json={"workflow": "order"}, headers=key) as answered:
            assert answered.status == 201
            return str((await answered.json())["version"])

    old, new = here.speaker(), here.speaker()
    await registers(old, "1")
    await registers(new, "2")
    await registers(old, "1")
    assert await version() == "2"
    async with here.http.get(f"{here.url}/api/v1/workflows/order", headers=key) as answered:
        assert (await answered.json())["version"] == "2"
    await new.ask("DELETE", f"/sessions/{new.session_id}")

    async def back() -> bool:
        return await version() == "1"

    await until(back)
