"""What a start may ask for, refused before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from ironflow.context import Context, Lane, workflow
from ironflow.engine.starting import Start, new_run
from ironflow.errors import InvalidInput
from ironflow.model.ids import split_route

LIMIT = 1 << 20


@workflow(worker_tags=["gpu"])
async def train(ctx: Context, name: str) -> None: ...


@workflow(lane=Lane(1, key=lambda name: name))
async def one_each(ctx: Context, name: str) -> None: ...


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"id": "a\x00b"}, "^id "),
        ({"id": ""}, "^id is empty"),
        ({"id": "x" * 201}, "^id is 201 characters"),
        ({"idempotency_key": "a\nb"}, "^idempotency_key "),
        ({"concurrency_key": "\x1b[2J"}, "^concurrency_key "),
        ({"labels": {"a\x00": "b"}}, "^a key of labels 'a"),
        ({"labels": {"note": "a\x00b"}}, "^labels.note 'a"),
        ({"labels": {"note": "x" * 1001}}, "^labels.note is 1,001 characters"),
        ({"labels": {"note": 5}}, "^labels.note must be text"),
        ({"labels": {str(i): "" for i in range(65)}}, "^labels has 65 entries; 64 is"),
        ({"limits": {"a\tb": 1}}, "^a key of limits 'a"),
        ({"limits": {str(i): 1 for i in range(33)}}, "^limits has 33 entries; 32 is"),
        ({"labels": ["a"]}, "^labels must be a dictionary"),
        ({"limits": {"api": 0}}, "^limits.api must be 1 to 1,000,000, not 0"),
        ({"limits": {"api": 1 << 64}}, "^limits.api"),
        ({"limits": {"api": True}}, "^limits.api"),
        ({"at": "tomorrow"}, "^at must be a datetime"),
        ({"deadline": 5}, "^deadline must be a datetime"),
        ({"worker_tags": "gpu"}, "^worker_tags must be a sequence"),
        ({"worker_tags": ["two words"]}, "^worker_tags: 'two words'"),
        ({"worker_tags": [str(i) for i in range(32)]}, "^worker_tags: 33 tags"),
    ],
)
def test_a_start_names_the_text_that_no_database_or_list_could_hold(options: Any, named: str) -> None:
    with pytest.raises(InvalidInput, match=named) as refused:
        new_run(train.spec, "x", options, 1, LIMIT)
    (found,) = refused.value.details["errors"]
    assert found["problem"] == refused.value.message
    assert found["at"].partition(".")[0] in options


def test_a_lane_whose_key_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the lane's key"):
        new_run(one_each.spec, "a\x00b", {}, 1, LIMIT)


def test_what_fits_is_kept_as_it_was_given() -> None:
    options = Start(id="order 7", labels={"city": "東京", "note": ""}, worker_tags=["big", "gpu"], limits={"api": 2})
    row, _, lanes = new_run(train.spec, "x", options, 1, LIMIT)
    assert (row.run_id, lanes) == ("order 7", [("group:api", 2)])
    assert split_route(row.route)[:3] == ("train", "1", frozenset({"gpu", "big"}))
    assert row.labels == '{"city":"東京","note":""}'
