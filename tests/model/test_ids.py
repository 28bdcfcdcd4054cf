"""Identifiers: how they are formed and what they give away."""

from __future__ import annotations

import hashlib
import random
import re
import string
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow.engine.declared import Declared
from ironflow.engine.starting import new_run
from ironflow.errors import InvalidInput
from ironflow.model import ids
from ironflow.model.scope import DEFAULT, Scope

TIMES = st.integers(0, 2**48 - 1)
BITS = st.integers(0, 2**74 - 1)


@given(TIMES, BITS)
def test_a_run_id_is_a_uuid_of_version_seven_that_holds_its_time(now: int, bits: int) -> None:
    made = uuid.UUID(ids.time_ordered(now, bits))
    assert (made.version, made.variant, made.int >> 80) == (7, uuid.RFC_4122, now)


@given(TIMES, TIMES, BITS, BITS)
def test_run_ids_sort_by_the_time_of_their_creation(a: int, b: int, one: int, two: int) -> None:
    if a < b:
        assert ids.time_ordered(a, one) < ids.time_ordered(b, two)


@given(TIMES, BITS, BITS)
def test_all_of_the_chance_is_in_a_run_id(now: int, one: int, two: int) -> None:
    assert (ids.time_ordered(now, one) == ids.time_ordered(now, two)) is (one == two)


@given(st.lists(st.integers(0, 900), min_size=2), st.randoms(use_true_random=False))
def test_ids_of_one_process_keep_the_order_of_their_making(jitter: list[int], chance: random.Random) -> None:
    following = ids.InOrder(chance.getrandbits)
    made = [following(1_700_000_000_000 + ms) for ms in jitter]
    assert made == sorted(set(made))


def test_a_clock_that_was_ahead_by_a_year_is_not_followed_for_a_year() -> None:
    following = ids.InOrder(lambda bits: 0)
    following(1_800_000_000_000)
    assert uuid.UUID(following(1_700_000_000_000)).int >> 80 == 1_700_000_000_000


def test_p9_p11_an_idempotency_key_is_the_hash_of_run_step_and_attempt() -> None:
    assert ids.idempotency_key("r", "main/1:pay", 2) == hashlib.sha256(b"r|main/1:pay|2").hexdigest()


@given(st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3), st.integers(1, 3)),
       st.tuples(st.text("ab", max_size=3), st.text("ab", max_size=3), st.integers(1, 3)))  # fmt: skip
def test_p9_idempotency_keys_differ_where_any_part_differs(a: tuple[str, str, int], b: tuple[str, str, int]) -> None:
    assert (ids.idempotency_key(*a) == ids.idempotency_key(*b)) is (a == b)


def test_a_stored_token_does_not_show_the_token() -> None:
    assert "secret" not in ids.token_hash("secret")
    assert ids.token_hash("secret") != ids.token_hash("other")


def test_a_seed_follows_from_run_and_attempt_alone() -> None:
    assert ids.seed_of("r", 1) == ids.seed_of("r", 1)
    assert len({ids.seed_of("r", 1), ids.seed_of("r", 2), ids.seed_of("s", 1)}) == 3


SCOPES = st.sampled_from([DEFAULT, Scope("acme"), Scope("acme", "staging"), Scope("default", "staging")])


@given(st.text("abc", min_size=1), st.lists(st.text("xyz", min_size=1)), SCOPES)
def test_a_route_tells_its_workflow_tags_and_scope_in_any_order(workflow: str, tags: list[str], scope: Scope) -> None:
    route = ids.route_of(workflow, "2", tuple(tags), scope)
    assert ids.split_route(route) == (workflow, "2", frozenset(tags), scope)
    assert route == ids.route_of(workflow, "2", tuple(reversed(tags)), scope)
    assert route != ids.route_of(workflow, "1", tuple(tags), scope)
    assert route != ids.route_of(workflow, "2", tuple(tags), Scope("other"))


@given(st.lists(st.text(f"{string.ascii_letters}{string.digits}_.:/=-", min_size=1, max_size=64), max_size=14))
def test_tags_that_are_joined_come_apart_as_they_were(tags: list[str]) -> None:
    checked = ids.tags_of(tags)
    assert checked == tuple(dict.fromkeys(tags))
    assert ids.split_tags(ids.join_tags(checked)) == tuple(sorted(checked))
    assert ids.split_tags(None) == ids.split_tags("") == ()


@pytest.mark.parametrize(
    "tags",
    [[""], ["two words"], ["a,b"], ["a\nb"], ["a\x1fb"], ["größe"], ["x" * 65], [5], "gpu",
     [str(i) for i in range(33)], ["x" * 60 + str(i) for i in range(10, 30)]],
)  # fmt: skip
def test_what_a_list_or_a_setting_could_not_hold_is_no_tag(tags: Any) -> None:
    with pytest.raises(InvalidInput, match="worker_tags"):
        ids.tags_of(tags)


@pytest.mark.parametrize("text", ["a\x00b", "a\nb", "\x1b[2J", "\ud800", "a\u202eb", "", "x" * 201, 5, None])
def test_a_text_that_could_not_be_stored_and_shown_is_refused_by_name(text: Any) -> None:
    with pytest.raises(InvalidInput, match="the key"):
        ids.check_text(text, "the key")


@pytest.mark.parametrize("text", ["x", "order 7", "größe", "東京　太郎", "a\u00a0b", "🚀", "x" * 200])
def test_a_text_that_a_person_writes_is_accepted(text: str) -> None:
    ids.check_text(text, "the key")


@pytest.mark.parametrize("run_id", ["a", "a/b", "steps", "steps/a", "a/steps/b", "a.b", "...", "a/..b", "x%2Fy", "é/ü"])
def test_a_run_may_be_called_by_any_id_that_its_address_leads_to(run_id: str) -> None:
    assert ids.check_run_id(run_id) == run_id


@pytest.mark.parametrize("run_id", [*(f"a/{word}" for word in sorted(ids.RUN_PARTS)), "/steps", "a/b/why"])
def test_no_run_may_have_an_id_that_is_the_address_of_a_part_of_another(run_id: str) -> None:
    with pytest.raises(InvalidInput, match="an address that means something else"):
        ids.check_run_id(run_id)


@pytest.mark.parametrize("run_id", [".", "..", "a/../b", "./a", "a/.."])
def test_no_run_may_have_an_id_that_is_taken_out_of_an_address(run_id: str) -> None:
    with pytest.raises(InvalidInput, match="has a part that is"):
        ids.check_run_id(run_id)


def test_a_start_refuses_such_an_id() -> None:
    spec = Declared({"name": "order", "version": "1", "worker_tags": "", "definition": None})
    with pytest.raises(InvalidInput) as refused:
        new_run(spec, None, {"id": "a/steps"}, 0, 1_000)
    assert refused.value.details["errors"][0]["at"] == "id"


def test_every_part_that_the_api_has_of_a_run_is_one_that_no_id_may_end_in() -> None:
    source = Path(ids.__file__).parents[1] / "server"
    texts = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    parts = set(re.findall(r"/runs/\{run_id(?::path)?\}/(\w+)\"", texts))
    assert len(parts) >= 8
    assert parts <= ids.RUN_PARTS
