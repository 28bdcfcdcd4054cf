"""The frames of a stream: what a reader gets of an event, however its payload is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ironflow.engine import views
from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.server.sse import frame

AT = 1_790_000_000_123


def told(payload: str | None, step_id: str | None = "main/1:double") -> dict[str, Any]:
    """What a reader of the stream finds in the frame of an event with this payload."""
    made = frame(Event(7, j.STEP_COMPLETED, step_id, payload, 3, AT))
    assert made.encode()  # it can be sent
    head, data, *rest = made.split("\n")
    assert (head, rest) == ("id: 7", ["", ""])
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return found


@pytest.mark.parametrize(
    "payload",
    [
        None,
        '{"t":1,"result":{"a":[1,2.5,null,true],"ü":"ß\u2028"}}',
        '{ "t" : 1 }',
        '{"half":"\\ud800"}',
        '{\n"t":1,\r\n"u":2}',
        '{"large":' + "9" * 30 + "}",
    ],
)
def test_a_frame_says_what_the_journal_holds(payload: str | None) -> None:
    event = Event(7, j.STEP_COMPLETED, "main/1:double", payload, 3, AT)
    assert told(payload) == views.event(event)
    assert told(payload)["payload"] == json.loads(payload or "{}")


@pytest.mark.parametrize("payload", ["{garbage", "[]", "7", '{"a":NaN}', '{"a":' + "[" * 5_000 + "]" * 5_000 + "}"])
def test_an_unreadable_payload_is_told_as_one(payload: str) -> None:
    assert list(told(payload)["payload"]) == [j.UNREADABLE]


@pytest.mark.parametrize("step_id", [None, 'main/1:"quoted"', "main/1:\ud800", "main/1:ü\n"])
def test_any_step_id_arrives_as_it_is(step_id: str | None) -> None:
    assert told("{}", step_id)["step_id"] == step_id
