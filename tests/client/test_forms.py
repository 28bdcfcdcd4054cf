"""What comes over HTTP is what was meant: rows, errors and streams, there and back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ironflow import errors
from ironflow.client import forms
from ironflow.client.problems import error_of
from ironflow.client.sse import Message, Reader
from ironflow.codec.values import StoredForm, encode_any
from ironflow.engine import views
from ironflow.errors import (
    InvalidSettings,
    IronflowError,
    PayloadRejected,
    PayloadTooLarge,
    ReplayDivergence,
    RunError,
    ServerError,
    StepFailed,
    StoreError,
)
from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
from ironflow.model.ids import route_of
from ironflow.model.journal import Event
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.model.scope import Scope
from ironflow.server.problems import of_error

FACTS = {"run_id": "r", "limit": 3}
SPECIAL: dict[type[IronflowError], IronflowError] = {
    PayloadRejected: PayloadRejected("result.items[3].rate", "nan has no JSON form"),
    PayloadTooLarge: PayloadTooLarge("result of charge", 3_000_000, 2_097_152),
    ReplayDivergence: ReplayDivergence("0/3:charge", "step refund", "step charge"),
    StepFailed: StepFailed("shop.CardDeclined", "no funds"),
    InvalidSettings: InvalidSettings(["threads is 0: it must be at least 1"]),
}


def tree(cls: type[IronflowError] = IronflowError) -> Iterator[type[IronflowError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


#: What a database says holds addresses and statements, and goes no further than the server's log.
OF_STORES = sorted(set(tree(StoreError)), key=lambda cls: cls.__name__)
OTHERS = sorted(set(tree()) - set(OF_STORES), key=lambda cls: cls.__name__)


@pytest.mark.parametrize("cls", OF_STORES)
def test_an_error_of_a_database_comes_back_as_its_class_without_what_it_said(cls: type[IronflowError]) -> None:
    body = json.loads(json.dumps(of_error(cls("postgresql://user@host/db refused", hint="do", details=FACTS))))
    found = error_of(body["status"], body, "http://h")
    assert (type(found), found.code, found.details) == (cls, cls.code, {})
    assert "postgresql" not in json.dumps(body)


@pytest.mark.parametrize("cls", OTHERS)
def test_an_error_comes_back_as_its_class_with_all_it_said(cls: type[IronflowError]) -> None:
    sent = SPECIAL.get(cls) or (cls(run_id="r") if issubclass(cls, RunError) else cls("what", hint="do", details=FACTS))
    body = json.loads(json.dumps(of_error(sent)))
    found = error_of(body["status"], body, "http://h")
    assert type(found) is cls
    assert (str(found), found.code, found.details) == (str(sent), sent.code, sent.details)
    for name in ("path", "reason", "what", "size", "limit", "step_id", "expected", "recorded", "problems", "run_id"):
        assert getattr(found, name, None) == getattr(sent, name, None)


def test_a_code_of_a_newer_server_is_told_all_the_same() -> None:
    found = error_of(409, {"code": "NEW", "detail": "it is new", "hint": "upgrade", "details": {"a": 1}}, "http://h")
    assert type(found) is ServerError
    assert (str(found), found.details) == ("it is new. upgrade", {"a": 1, "code": "NEW"})


ROUTE, OTHER_ROUTE = route_of("order", "2", ("eu", "gpu"), Scope("shop", "staging")), route_of("report", "1")


def _filled(cls: type[Any]) -> Any:
    """A row with something in every field."""
    numbers = iter(range(1, 100))
    kinds = {"str": lambda: f"t{next(numbers)}", "int": lambda: next(numbers)}
    values = {one.name: kinds[str(one.type).partition(" ")[0]]() for one in fields(cls)}
    own = {**dict.fromkeys(views.JSON_TEXT, '{"a":1}'), "route": ROUTE, "routes": f"{ROUTE}\n{OTHER_ROUTE}"}
    return cls(**values | {name: text for name, text in own.items() if name in values})


@pytest.mark.parametrize("cls", [RunRow, LeaseRow, SessionRow, QueueRow, KeyRow])
def test_a_row_comes_back_as_it_was_but_for_its_secrets(cls: type[Any]) -> None:
    sent = _filled(cls)
    found = forms.row(cls, views.plain(sent))
    hidden = {one.name: getattr(found, one.name) for one in fields(cls) if one.name in views.SECRET}
    assert found == replace(sent, **hidden)
    assert not any(hidden.values())


def test_a_row_without_a_class_keeps_each_time_once() -> None:
    sent = {"name": "a", "seen_at": 5, "paused_at": None, "lease_ttl_ms": 3}
    assert forms.times(views.plain(sent)) == sent


def test_an_event_comes_back_as_it_was() -> None:
    sent = Event(3, "step_completed", "1:a", '{"result":{"$tuple":[1,"ü"]}}', 2, 1_000)
    assert repr(forms.event(views.event(sent))) == repr(sent)
    assert forms.event(views.event(sent)).at == 1_000


# ---- streams

STREAM = (
    "retry: 1000\n\nid: 1\ndata: {}\n\n: keep-alive\n\nid: 2\r\nevent: x\r\ndata: a\r\ndata: ü\r\n\r\nid\ndata:\n\n"
).encode()
MESSAGES = [Message("1", "message", "{}"), Message("2", "x", "a\nü"), Message("", "message", "")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8).map(sorted))
def test_a_stream_is_read_the_same_however_the_network_cuts_it(cuts: list[int]) -> None:
    reader, found = Reader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        found += reader.feed(STREAM[begin:end])
    assert found == MESSAGES


def test_an_event_whose_end_has_not_come_is_not_given() -> None:
    assert Reader().feed(b"id: 1\ndata: {}\n") == []


# ---- inputs in their stored form


@pytest.mark.parametrize("value", [1, "ü", [1.5, None], {"a": (1, 2)}, {1: "x"}, {"$decimal": "1"}, b"\xff", {1, 2}])
def test_what_is_encoded_already_is_taken_as_it_is(value: Any) -> None:
    text = encode_any(value)
    assert StoredForm().encode(json.loads(text)) == text


@pytest.mark.parametrize("tree", [{"$nothing": 1}, {"$decimal": "x"}, {"$date": 3}])
def test_what_no_value_is_stored_as_is_refused(tree: Any) -> None:
    with pytest.raises(PayloadRejected, match="input"):
        StoredForm().encode(tree, path="input")


def test_a_stored_form_over_the_limit_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        StoredForm().encode("ü" * 10, limit=20)


# ---- what is imported


def test_the_http_library_is_imported_by_the_first_client_that_opens() -> None:
    code = "import sys, ironflow.client as c; c.Client('http://h:1'); assert 'aiohttp' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


async def test_without_the_http_library_a_client_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from ironflow.client import Client

    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(InvalidSettings, match=r"pip install 'ironflow-engine\[client\]'"):
        async with Client("http://h:1"):
            pass
