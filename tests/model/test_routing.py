"""What a worker serves, and whose it is: scopes, routes and the text in which a session keeps them."""

from __future__ import annotations

import string
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow.errors import InvalidInput
from ironflow.model import routing
from ironflow.model.ids import route_of, split_route
from ironflow.model.routing import Served, Serves
from ironflow.model.scope import DEFAULT, Scope, check_scope

ACME = Scope("acme", "staging")
NAMES = st.text(f"{string.ascii_letters}{string.digits}_.-", min_size=1, max_size=32)


class Spec(NamedTuple):
    """The part of a workflow's code that routing looks at."""

    name: str
    version: str = "1"
    compatible: tuple[str, ...] = ()
    worker_tags: tuple[str, ...] = ()


def test_a_worker_serves_its_version_and_those_it_continues() -> None:
    serves = Serves.of(DEFAULT, (), [Spec("order", "3", ("2",))])
    assert serves.routes() == [route_of("order", "2"), route_of("order", "3")]
    assert [serves.can_take(route_of("order", version)) for version in ("1", "2", "3")] == [False, True, True]
    assert not serves.can_take(route_of("report", "3"))
    assert not serves.can_take("")


def test_a_worker_without_tags_serves_what_its_workflows_require_and_no_more() -> None:
    serves = Serves.of(DEFAULT, (), [Spec("train", worker_tags=("gpu",))])
    assert serves.can_take(route_of("train", "1", ("gpu",)))
    assert serves.can_take(route_of("train", "1"))
    assert not serves.can_take(route_of("train", "1", ("gpu", "big")))


def test_a_worker_with_tags_serves_only_what_those_cover() -> None:
    serves = Serves.of(DEFAULT, ("big",), [Spec("train", worker_tags=("gpu",)), Spec("order")])
    assert serves.routes() == [route_of("order", "1")]
    assert serves.can_take(route_of("order", "1", ("big",)))
    assert not serves.can_take(route_of("train", "1", ("gpu",)))


@pytest.mark.parametrize("other", [DEFAULT, Scope("acme"), Scope("default", "staging"), Scope("other", "staging")])
def test_no_worker_takes_a_run_of_another_scope(other: Scope) -> None:
    serves = Serves.of(ACME, (), [Spec("order")])
    assert serves.routes() == [route_of("order", "1", (), ACME)]
    assert serves.can_take(route_of("order", "1", (), ACME))
    assert not serves.can_take(route_of("order", "1", (), other))


def test_what_is_served_survives_the_text_of_its_row() -> None:
    serves = Serves.of(ACME, ("big", "gpu"), [Spec("order", "3", ("2",), ("gpu",)), Spec("report")])
    assert Serves.from_json(ACME, serves.to_json()) == serves
    assert hash(Serves.from_json(ACME, serves.to_json())) == hash(serves)
    assert Serves.from_json(DEFAULT, serves.to_json()) != serves
    assert Serves.from_json(ACME, None).routes() == []


def test_what_a_worker_says_of_its_scope_is_not_heard() -> None:
    said = {**Serves.of(ACME, (), [Spec("order")]).to_object(), "scope": ["other", "default"], "org": "other"}
    assert Serves.from_object(ACME, said).routes() == [route_of("order", "1", (), ACME)]


@pytest.mark.parametrize(
    "said",
    [None, [], "x", {}, {"workflows": []}, {"workflows": {"a": 1}}, {"workflows": {"a": {"versions": []}}},
     {"workflows": {"a": {"versions": ["1", 2]}}}, {"workflows": {"a\x1fb": {"versions": ["1"]}}},
     {"workflows": {"a\x1eb": {"versions": ["1"]}}}, {"workflows": {"a": {"versions": ["1\n2"]}}},
     {"workflows": {"a": {"versions": ["1"], "tags": ["g p u"]}}}, {"tags": "gpu", "workflows": {}},
     {"tags": [1], "workflows": {}}],
)  # fmt: skip
def test_what_is_of_another_form_is_refused(said: Any) -> None:
    with pytest.raises(InvalidInput):
        Serves.from_object(DEFAULT, said)


@given(NAMES, NAMES, NAMES, NAMES)
def test_the_lanes_of_two_scopes_never_have_one_name(org: str, environment: str, other: str, name: str) -> None:
    one, two = check_scope(org, environment), check_scope(other, environment)
    assert (one.lane(f"group:{name}") == two.lane(f"group:{name}")) == (one == two)
    assert split_route(route_of(name, "1", (), one)).scope == one


def test_the_default_scope_leaves_names_as_they_are() -> None:
    assert DEFAULT.lane("group:api") == "group:api"
    assert route_of("order", "1", (), DEFAULT) == route_of("order", "1")


@pytest.mark.parametrize("name", ["", "a/b", "a@b", "a b", "\x1e", "é", "x" * 33])
def test_a_name_that_could_be_mistaken_is_no_scope(name: str) -> None:
    with pytest.raises(InvalidInput, match="name of an organisation"):
        check_scope(name, "default")
    with pytest.raises(InvalidInput, match="name of an environment"):
        check_scope("default", name)


def test_served_names_its_parts() -> None:
    serves = Serves.of(DEFAULT, (), [Spec("order", "3", ("2",), ("gpu",))])
    assert serves.workflows == {"order": Served(("3", "2"), ("gpu",))}


def serving(**versions: int) -> dict[str, Any]:
    workflows = {name: {"versions": [f"v{n}" for n in range(count)], "tags": []} for name, count in versions.items()}
    return {"tags": [], "workflows": workflows}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (serving(order=routing.MOST_VERSIONS + 1), "order has 101 versions; 100 is the most"),
        (serving(**{f"w{n}": 1 for n in range(routing.MOST_WORKFLOWS + 1)}), "1,001 entries; 1,000 is the most"),
        (serving(**{f"w{n}": 100 for n in range(21)}), "2,100 versions of workflows; 2,000 is the most"),
    ],
)
def test_a_worker_that_claims_more_than_one_worker_may_serve_is_refused(value: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInput, match=told):
        Serves.from_object(DEFAULT, value)


def test_what_an_embedded_worker_serves_is_read_back_however_much_it_is() -> None:
    served = {"order": Served(tuple(f"v{n}" for n in range(5_000)), ())}
    serves = Serves(DEFAULT, (), served)
    assert Serves.from_json(DEFAULT, serves.to_json()) == serves


def test_the_routes_a_worker_serves_are_told_without_asking_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    serves = Serves.of(DEFAULT, ("big",), [Spec("order", "3", ("2",)), Spec("train", worker_tags=("gpu",))])
    monkeypatch.setattr(Serves, "can_take", None)
    assert serves.routes() == [route_of("order", "2"), route_of("order", "3")]
