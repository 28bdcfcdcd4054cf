"""One scope never sees, takes or holds up another's: runs, keys of runs, queue, pauses, lanes, workflows, audit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.store.build import (
    EXPIRED,
    HOUR,
    activate,
    answer,
    answers,
    create,
    leave,
    peek_one,
    recovered,
    session,
    start,
    timer,
    wake,
)

from ironflow.model import operator, recovery
from ironflow.model.ids import route_of
from ironflow.model.scope import DEFAULT, Scope
from ironflow.model.transition import APPLIED, EXISTS, LOST, Locked, Transition
from ironflow.store.base import Store, WorkflowSeen
from ironflow.store.reader import RunFilter

A, B = Scope("a"), Scope("b")
STAGING = Scope("a", "staging")
EVERY = (DEFAULT, A, STAGING, B)


def mine(scope: Scope, run_id: str, **values: Any) -> Transition:
    """A queued run of a scope, under the route that its start gives it."""
    route = route_of("order", "1", values.pop("tags", ()), scope)
    return create(run_id, route=route, org=scope.org, environment=scope.environment, **values)


def name(scope: Scope) -> str:
    return f"{scope.org}-{scope.environment}"


async def one_of_each(store: Store, **values: Any) -> None:
    found = await answers(store, *[mine(scope, name(scope), **values) for scope in EVERY])
    assert found == [APPLIED] * len(EVERY)


async def listed(store: Store, scope: Scope | None, **filter: Any) -> list[str]:
    return [row.run_id for row in await store.runs(RunFilter(scope=scope, **filter))]


# ---- reading
@pytest.mark.parametrize("scope", EVERY, ids=name)
async def test_a_list_and_its_counts_hold_the_runs_of_one_scope(store: Store, scope: Scope) -> None:
    await one_of_each(store)
    assert await listed(store, scope) == [name(scope)]
    assert await store.counts(scope) == {"pending": 1}
    assert await store.counts() == {"pending": len(EVERY)}
    assert await listed(store, Scope("a", "nobody")) == []
    assert await store.counts(Scope("a", "nobody")) == {}


async def test_the_platform_pages_through_the_runs_of_all_scopes_newest_first(store: Store) -> None:
    await answers(store, *[mine(EVERY[n % 4], f"r{n:02}", created_at=1_000 + n // 3) for n in range(20)])
    found: list[str] = []
    before = None
    while page := await store.runs(RunFilter(scope=None, before=before, limit=3)):
        found += [row.run_id for row in page]
        before = (page[-1].created_at, page[-1].run_id)
    assert found == sorted((f"r{n:02}" for n in range(20)), reverse=True)


async def test_a_list_selects_by_priority_tag_and_time(store: Store) -> None:
    tagged = [("r1", ()), ("r2", ("gpu",)), ("r3", ("big", "gpu")), ("r4", ("gpu2",))]
    await answers(
        store,
        *[mine(A, run_id, tags=tags, priority=n, created_at=n) for n, (run_id, tags) in enumerate(tagged)],
        create("plain", org="a"),
        create("odd", org="a", route="order\x1fgpu"),  # a version, not a tag
    )
    assert await listed(store, A, worker_tag="gpu") == ["r3", "r2"]
    assert await listed(store, A, worker_tag="order") == []
    assert await listed(store, A, worker_tag="g\0") == []
    assert await listed(store, A, priority=2) == ["r3"]
    assert await listed(store, A, created_from=1, created_to=3) == ["r3", "r2"]
    assert await listed(store, A, created_to=0) == []
    assert await listed(store, A, created_to=3, before=(9, "")) == ["r3", "r2"]
    assert await listed(store, A, created_to=3, before=(2, "r3")) == ["r2"]


async def test_keys_of_runs_are_free_in_every_scope(store: Store) -> None:
    await one_of_each(store, idempotency_key="k", concurrency_key="c")
    for scope in EVERY:
        for column, value, workflow in (("idempotency_key", "k", "order"), ("concurrency_key", "c", None)):
            held = await store.find_key(column, value, workflow, scope)
            assert held is not None
            assert held.scope == scope
    assert await answer(store, mine(B, "again", idempotency_key="k")) == EXISTS
    assert await store.find_key("idempotency_key", "k", "order", Scope("b", "staging")) is None


# ---- the queue
@pytest.mark.parametrize("scope", EVERY, ids=name)
async def test_a_claim_by_routes_never_leaves_its_scope(store: Store, scope: Scope) -> None:
    await one_of_each(store)
    route = [route_of("order", "1", (), scope)]
    assert [head.run_id for head in await store.peek(route, 10)] == [name(scope)]
    assert [head.run_id for head in await store.reserve(route, 10, "s1", HOUR)] == [name(scope)]
    assert {row.run_id for row in await store.queue() if row.status == "ready"} == {
        name(other) for other in EVERY if other != scope
    }


@pytest.mark.parametrize("scope", EVERY, ids=name)
async def test_a_paused_workflow_holds_the_runs_of_one_scope(store: Store, scope: Scope) -> None:
    await one_of_each(store)
    assert await store.pause_workflow("order", "ann", scope)
    assert not await store.pause_workflow("order", "ann", scope)
    for other in EVERY:
        route = [route_of("order", "1", (), other)]
        held = [] if other == scope else [name(other)]
        assert list(await store.paused_workflows(other)) == (["order"] if other == scope else [])
        assert [head.run_id for head in await store.peek(route, 10)] == held
        assert [head.run_id for head in await store.reserve(route, 10, "s1", HOUR)] == held
    assert not await store.resume_workflow("order", "ann", Scope("nobody"))
    assert await store.resume_workflow("order", "ann", scope)
    assert await store.paused_workflows(scope) == {}


async def test_a_pause_between_look_and_claim_stops_the_runs_of_its_scope_only(store: Store) -> None:
    await one_of_each(store)
    heads = {scope: await peek_one(store, route_of("order", "1", (), scope)) for scope in EVERY}
    await store.pause_workflow("order", "ann", A)
    # One by one, and the rest as a batch: on PostgreSQL these are two ways.
    assert await answer(store, activate(heads[A], 2)) == LOST
    assert await answer(store, activate(heads[STAGING], 2)) == APPLIED
    await store.pause_workflow("order", "ann", B)
    assert await answers(store, activate(heads[B], 2), activate(heads[DEFAULT], 2)) == [LOST, APPLIED]


async def test_a_due_run_of_a_paused_workflow_waits_in_its_scope_only(store: Store) -> None:
    for scope in (A, STAGING):
        route = route_of("order", "1", (), scope)
        await answer(store, start(name(scope), route=route, org=scope.org, environment=scope.environment))
        await answer(store, leave(name(scope), 4, "sleeping", waits=[timer(name(scope), store.now() - 1)]))
    await store.pause_workflow("order", "ann", A)
    routes = [route_of("order", "1", (), scope) for scope in (A, STAGING)]
    (head,) = await store.due(10, routes)
    assert head.run_id == name(STAGING)
    assert await store.due(10, routes[:1]) == []
    assert await answer(store, wake(head, 5)) == APPLIED


async def test_a_full_lane_keeps_nobody_of_another_scope_out(store: Store) -> None:
    for scope in EVERY:
        for n in (1, 2):
            change = mine(scope, f"{name(scope)}-{n}", limits="{}")
            change.lanes = [(scope.lane("group:api"), 1)]
            assert await answer(store, change) == APPLIED
    for scope in EVERY:
        (head,) = await store.reserve([route_of("order", "1", (), scope)], 10, "s1", HOUR)
        assert await answer(store, activate(head, 2)) == APPLIED
    lanes = {lane["lane"]: (lane["executing"], lane["blocked"]) for lane in await store.lanes()}
    assert lanes == {scope.lane("group:api"): (1, 1) for scope in EVERY}
    found = await store.holdings(f"{name(B)}-2")
    assert found is not None
    assert [holder.run_id for holder in found.holders] == [f"{name(B)}-1"]


async def test_the_longest_names_of_all_fit_together(store: Store) -> None:
    scope, tags = Scope("o" * 32, "e" * 32), tuple(f"{n:02}{'t' * 20}" for n in range(30))
    letter = "\U00010330"  # four bytes in UTF-8, and nothing that a database could compress away is sure to be there
    route = route_of(letter * 200, letter * 64, tags, scope)
    change = create(
        letter * 200, route=route, workflow=letter * 200, org=scope.org, environment=scope.environment,
        idempotency_key=letter * 200, limits="{}",
    )  # fmt: skip
    change.lanes = [(scope.lane(f"workflow:{letter * 200}:{letter * 200}"), 1)]
    assert await answer(store, change) == APPLIED
    assert (await peek_one(store, route)).route == route
    assert await store.pause_workflow(letter * 200, "ann", scope)
    await store.saw_workflows([WorkflowSeen(letter * 200, letter * 64, "")], scope)
    assert await store.peek([route], 1) == []


# ---- workflows and sessions
async def test_a_workflow_that_was_seen_is_known_to_one_scope(store: Store) -> None:
    await store.saw_workflows([WorkflowSeen("order", "1", "gpu", '{"priority":3}')], A)
    await store.saw_workflows([WorkflowSeen("order", "2", "")], B)
    await store.pause_workflow("order", "ann", B)
    (of_a,), (of_b,) = await store.workflows(A), await store.workflows(B)
    assert (of_a["version"], of_a["definition"], of_a["paused_at"]) == ("1", '{"priority":3}', None)
    assert (of_b["version"], of_b["definition"]) == ("2", None)
    assert of_b["paused_at"] is not None
    assert await store.workflows() == await store.workflows(STAGING) == []


async def test_a_session_cannot_be_taken_over_from_another_scope(store: Store) -> None:
    row = session(store, "s1", org="a", serves='{"tags":[],"workflows":{}}', kind="http", supervisor="x")
    assert await store.open_session(row)
    thief = session(store, "s1", org="b", routes="all", serves="{}")
    assert not await store.open_session(thief)
    assert await store.sessions() == [row]
    row.serves, row.supervisor = None, "y"
    assert await store.open_session(row)
    assert await store.sessions() == [row]


async def test_a_session_cannot_be_taken_over_with_another_key(store: Store) -> None:
    row = session(store, "s1", kind="http", key_id="key_a", serves='{"tags":[],"workflows":{}}')
    assert await store.open_session(row)
    for key_id in ("key_b", None):
        assert not await store.open_session(session(store, "s1", kind="http", key_id=key_id, routes="all"))
    assert await store.sessions() == [row]
    row.slots = 9
    assert await store.open_session(row)
    assert await store.sessions() == [row]


async def test_the_first_key_that_opens_a_session_of_which_none_is_noted_has_it_from_then_on(store: Store) -> None:
    assert await store.open_session(session(store, "s1", kind="http"))
    assert await store.open_session(session(store, "s1", kind="http", key_id="key_a"))
    assert not await store.open_session(session(store, "s1", kind="http", key_id="key_b"))
    assert [one.key_id for one in await store.sessions()] == ["key_a"]


# ---- the audit log
async def test_what_people_and_the_scanner_did_is_told_to_the_scope_of_the_run(store: Store) -> None:
    policy = recovery.RecoveryPolicy()

    def decided(locked: Locked) -> Transition | None:
        if locked.lease is not None:
            return recovery.expired_lease(locked, policy)
        return operator.cancel(locked, "ann")

    await answers(
        store,
        start("r1", ttl=EXPIRED, org="a", environment="staging"), mine(A, "r2"), mine(B, "r3"),
    )  # fmt: skip
    for run_id in ("r1", "r2", "r3"):
        await store.decide([run_id], decided)
    await store.pause_workflow("order", "ann", B)

    async def actions(scope: Scope | None, **asked: Any) -> list[tuple[str, str | None]]:
        return sorted((one["action"], one["run_id"]) for one in await store.audits(scope=scope, **asked))

    of_r1 = [("capacity.lease.expired", "r1"), ("capacity.segment.recovered", "r1")]
    assert await actions(STAGING) == of_r1
    assert await actions(A) == [("run.cancel", "r2")]
    assert await actions(B) == [("run.cancel", "r3"), ("workflow.pause", None)]
    assert await actions(DEFAULT) == []
    assert len(await actions(None)) == 5
    assert await actions(None, run_id="r1") == await actions(STAGING, run_id="r1") == of_r1
    assert await actions(B, run_id="r1") == []
    assert {(one["org"], one["environment"]) for one in await store.audits(run_id="r1")} == {("a", "staging")}


async def test_the_audit_log_is_read_page_by_page(store: Store) -> None:
    for n in range(7):
        await store.pause_workflow(f"w{n}", "ann", A)
        await store.pause_workflow(f"w{n}", "ann", B)
    every = [one["audit_id"] for one in await store.audits()]
    assert every == sorted(every, reverse=True)
    for scope, expected in ((A, 7), (None, 14)):
        found: list[str] = []
        before = None
        while page := await store.audits(3, scope=scope, before=before):
            found += [one["audit_id"] for one in page]
            before = page[-1]["audit_id"]
        assert len(found) == len(set(found)) == expected
        assert found == [audit_id for audit_id in every if audit_id in set(found)]


async def test_a_recovery_keeps_the_scope_of_the_route(store: Store) -> None:
    route = route_of("order", "1", (), A)
    await answer(store, start("r1", route=route, org="a"))
    await store.decide(["r1"], recovered)
    assert [head.run_id for head in await store.peek([route], 10)] == ["r1"]
    assert await store.peek([route_of("order", "1")], 10) == []
