"""What one organisation has checked, others do not wait for: it comes in pieces, with their turns in between.

How long they wait is told in their turns, or as a share of the whole in the time that this thread had a processor.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import zip_longest
from typing import Any

import pytest
from tests.server.asking import Answer, Api, serving

from ironflow.codec import strange
from ironflow.model import key as kinds
from ironflow.model import wire
from ironflow.server.turns import PIECE_S, Turn, Turns

#: Each of 1,500 parts of an input is held against 1,500 schemas.
ARMS = {"type": "array", "items": {"anyOf": [{"type": "null"}] * 1_500 + [{}]}}
#: About as large as a schema may be.
LARGE = {
    "type": "object",
    "properties": {
        f"p{i}": {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}
        for i in range(550)
    },
}


class Others:
    """Another one who uses the loop, and the turns that it had had at each piece of what is done beside it."""

    def __init__(self) -> None:
        self.turns = 0
        self.seen: list[int] = []

    async def beside(self, request: Coroutine[Any, Any, Answer]) -> tuple[Answer, float]:
        """The answer to a request, and the longest that others waited for the loop as a share of the whole."""
        task = asyncio.ensure_future(request)
        began = last = time.thread_time()
        longest = 0.0
        while not task.done():
            await asyncio.sleep(0)
            self.turns += 1
            now = time.thread_time()
            longest, last = max(longest, now - last), now
        return await task, longest / (last - began)

    def pieces(self, real: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        """The same, which notes each piece."""

        def noted(*given: Any) -> Iterator[Any]:
            for found in real(*given):
                self.seen.append(self.turns)
                yield found

        return noted


@pytest.fixture
def others() -> Others:
    return Others()


def registration(*names: str, schemas: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    told = zip_longest(names, schemas or [{}], fillvalue=(schemas or [{}])[-1])
    return {
        "session_id": f"s-{secrets.token_hex(4)}",
        "worker_id": "w",
        "slots": 1,
        "serves": {"tags": [], "workflows": {name: {"versions": ["1"], "tags": []} for name in names}},
        "workflows": [{"name": one, "version": "1", "definition": {"input_schema": schema}} for one, schema in told],
    }


async def register(api: Api, key: str, body: dict[str, Any]) -> Answer:
    return await api.ask("POST", "/worker/sessions", key, body=body)


@pytest.fixture
async def alone(sqlite_url: str) -> Any:
    """A node on SQLite, and a worker's key."""
    async with serving(sqlite_url) as api:
        yield api, await api.key(kind=kinds.WORKER)


async def test_the_heavy_checks_of_a_batch_let_others_have_their_turn(alone: tuple[Api, str], others: Others) -> None:
    api, _ = alone
    await api.declare("slow", input_schema=ARMS)
    body = {"runs": [{"workflow": "slow", "input": [1] * 1_500}] * 40}
    answer, longest = await others.beside(api.ask("POST", "/runs/batch", await api.key("developer"), body=body))
    assert [one["status"] for one in answer.json["items"]] == [201] * 40
    assert longest < 0.2


async def test_large_schemas_are_looked_at_in_pieces_and_once_while_they_are_the_same(
    alone: tuple[Api, str], others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, key = alone
    monkeypatch.setattr(strange, "looking", others.pieces(strange.looking))
    looks = []
    for version in "1", "1", "2":
        names = [f"w{i}" for i in range(10)]
        body = registration(*names, schemas=[{**LARGE, "title": f"{version} {name}"} for name in names])
        answer, _ = await others.beside(register(api, key, body))
        assert answer.status == 201
        looks.append(len(others.seen))
    assert looks == [looks[0], looks[0], 2 * looks[0]]
    assert looks[0] > 100
    assert len(set(others.seen)) >= 6  # what takes longer has more turns in between


async def test_what_was_found_wrong_of_a_schema_is_said_each_time(alone: tuple[Api, str]) -> None:
    api, key = alone
    for name in "first", "first", "second":
        refused = await register(api, key, registration("good", name, schemas=[{"required": [["x"]]}]))
        assert (refused.status, refused.code) == (400, "INVALID_INPUT")
        assert "workflow good is not usable: input_schema.required must be" in refused.json["detail"]
    assert (await register(api, key, registration("good", schemas=[{"required": ["x"]}]))).status == 201


@pytest.mark.parametrize("what", ["events", "waits"])
async def test_others_have_their_turn_within_one_change_of_very_many_events_or_waits(
    alone: tuple[Api, str], others: Others, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    api, key = alone
    body = registration("order")
    assert (await register(api, key, body)).status == 201
    events: list[Any] = [[3 + i, "step_started", "a", None, 1] for i in range(20_000)]
    waits: list[Any] = [[f"t{i}", "timer", "sleeping", 1] for i in range(20_000)]
    events[-1][1], waits[-1][0] = "nope", "t0"
    told: dict[str, list[Any]] = {"events": events, "waits": waits}
    item = {"run_id": "r", "guard": "owner", "seq": 1, "token": "t", what: told[what]}
    asked = {"session_id": body["session_id"], "items": [item]}
    monkeypatch.setattr(wire, "reading", others.pieces(wire.reading))
    answer, _ = await others.beside(api.ask("POST", "/worker/transitions", key, body=asked))
    [refused] = answer.json["answers"]
    assert f"{what}[19999]" in refused["error"]["message"]
    assert len(others.seen) > 30
    assert len(set(others.seen)) == len(others.seen)


def test_a_change_is_read_at_once_where_it_has_few_events_and_in_pieces_where_it_has_many() -> None:
    def pauses(count: int) -> int:
        item: wire.Item = {"run_id": "r", "guard": "owner", "seq": 1, "token": "t"}
        item["events"] = [[3 + i, "step_started", "a", None, 1] for i in range(count)]
        *before, change = wire.reading(item, "s", 1)
        assert change is not None
        assert [event.seq for event in change.events] == list(range(3, 3 + count))
        assert before == [None] * len(before)
        return len(before)

    assert pauses(0) == pauses(100) == 0
    assert pauses(5_000) >= 9


async def test_refusals_in_a_batch_list_few_of_the_known_workflows(alone: tuple[Api, str]) -> None:
    api, key = alone
    assert (await register(api, key, registration(*(f"w{i}" for i in range(200))))).status == 201
    developer = await api.key("developer")
    one = await api.ask("POST", "/runs", developer, body={"workflow": "none"})
    assert len(one.json["details"]["known"]) == 200
    many = await api.ask("POST", "/runs/batch", developer, body={"runs": [{"workflow": "none"}] * 2})
    assert [len(each["problem"]["details"]["known"]) for each in many.json["items"]] == [50, 50]


class Work:
    """A clock that only work lets go on, and the loop's rests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.worked = 0.0
        real = asyncio.sleep

        async def sleep(seconds: float) -> None:
            await real(0)
            self.now += seconds

        monkeypatch.setattr("ironflow.server.turns.asyncio.sleep", sleep)

    def turns(self) -> Turns:
        return Turns(lambda: self.now, lambda: self.worked)

    async def do(self, turn: Turn, seconds: float) -> None:
        async with turn:
            self.now += seconds
            self.worked += seconds


async def test_an_organisation_has_half_of_the_loop_however_many_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    turns = work.turns()
    await asyncio.gather(*(work.do(turns.of("greedy"), PIECE_S) for _ in range(50)))
    assert work.worked == pytest.approx(50 * PIECE_S)
    assert work.now >= 2 * work.worked - 3 * PIECE_S
    before = work.now
    await work.do(turns.of("other"), 0.0)  # waits for nothing
    assert work.now == before


async def test_small_pieces_of_work_with_time_between_them_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    turn = work.turns().of("modest")
    for _ in range(1_000):
        await work.do(turn, PIECE_S / 10)
        work.now += PIECE_S / 10
    assert work.now == pytest.approx(1_000 * PIECE_S / 5)


async def test_who_waits_for_a_turn_gets_it_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    turn = work.turns().of("one")
    await work.do(turn, 5 * PIECE_S)
    order: list[int] = []

    async def ask(number: int) -> None:
        async with turn:
            order.append(number)
            work.worked += 2 * PIECE_S

    await asyncio.gather(*(ask(number) for number in range(20)))
    assert order == list(range(20))
