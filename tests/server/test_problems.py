"""What callers are told of a database that fails: the kind of trouble, and neither its address nor what it said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.server.asking import serving
from tests.server.kit import Refused, Served

from ironflow.errors import StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreTooNew, StoreUnreachable
from ironflow.server import problems

SAID = "postgresql://db.internal:5432/iron refused: DETAIL: Key (run_id)=(r) in secret_table"
KINDS = [StoreError, StoreUnreachable, StoreReadOnly, StoreFull, StoreCorrupt, StoreTooNew]


def leaks(text: str) -> bool:
    return any(word in text for word in ("db.internal", "secret_table", "DETAIL", "IRONFLOW_DATABASE_URL"))


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problems, "_logged", {})


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_s_error_keeps_code_and_status_and_says_the_rest_in_the_log(
    kind: type[StoreError], caplog: pytest.LogCaptureFixture
) -> None:
    told = problems.of_error(kind(SAID, hint=f"Look at {SAID}", details={"sql": SAID}))
    assert (told["code"], told["status"]) == (kind.code, kind.status)
    assert not leaks(json.dumps(told))
    assert told["hint"]
    assert SAID in caplog.text
    before = len(caplog.records)
    problems.of_error(kind(SAID))
    assert len(caplog.records) == before  # every request meets it: once is enough


async def test_who_shows_no_valid_key_learns_no_more_of_a_database_that_is_away(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(sqlite_url) as api:

        async def away(*_: Any) -> Any:
            raise StoreUnreachable(SAID)

        monkeypatch.setattr(api.store, "key_by_hash", away)
        for path in ("/runs", "/worker/backlog", "/api-keys"):
            answer = await api.ask("GET", path, "ifkey_" + "x" * 43)
            assert (answer.status, answer.code) == (503, "STORE_UNREACHABLE")
            assert answer.json["detail"] == "the server cannot reach its database"
            assert "Try again" in answer.json["hint"]
            assert not leaks(answer.content.decode())


async def test_a_worker_learns_no_more_either(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await here.worker()

    async def away(*_: Any) -> Any:
        raise StoreUnreachable(SAID)

    monkeypatch.setattr(here.store, "holdings", away)
    with pytest.raises(Refused) as refused:
        await worker.ask("GET", "/runs/r/journal", session_id=worker.session_id)
    assert refused.value.status == 503
    assert not leaks(str(refused.value.problem))
