"""W9: claims per second beside a backlog that nobody here can take.

`at100`, `at20k`, `at200k`: so many rows wait in the queue before and above everything that can be claimed, half of them
of a workflow that no worker serves, half held back by a full lane. A worker then claims 2 000 runs, 16 at a time. The
floor of the two large backlogs is the small one in the same round: the cost of a claim must not grow with what it
passes by.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from bench.measure import Figures, Row, Scale, medians, note
from bench.stores import Place
from ironflow.model.ids import route_of
from ironflow.store import connect

CLAIMED = 2_000
PAGE = 16
SMALL = 100
BACKLOGS = {"at100": SMALL, "at20k": 20_000, "at200k": 200_000}
ROUTE, ELSEWHERE = route_of("served", "1", ()), route_of("elsewhere", "1", ())
LANE = "full"

#: Rows are made by the database itself, since a backlog of 200 000 starts would take longer than all that is measured.
#: One text for both: the numbers come from `{numbers}`, which each spells its own way.
_RUNS = (
    "insert into runs (run_id, workflow, version, state, route, root_run_id, created_at, limits) "
    "select :prefix || n, :workflow, '1', 'pending', :route, :prefix || n, n, :limits from {numbers}"
)
_QUEUE = (
    "insert into dispatch_queue (run_id, route, status, priority, enqueued_at, eligible_at, execution_seq, "
    "blocked_lane) select :prefix || n, :route, :status, :priority, n, n, 0, :lane from {numbers}"
)
_LANES = "insert into run_lanes (run_id, lane, lane_limit) select :prefix || n, :lane, 1 from {numbers}"




async def measure(place: Place, scale: Scale) -> list[Row]:
    """The rows of this work on one store."""
    rounds: list[Figures] = []
    for number in range(1, scale.rounds + 1):
        figures = {}
        for variant, backlog in BACKLOGS.items():
            figures[variant] = await _claims(place, scale.of(backlog, SMALL) if backlog > SMALL else backlog)
        rounds.append(figures)
        note(f"  round {number}: " + ", ".join(f"{variant} {value:,.4g}" for variant, value in figures.items()))
    found = medians(rounds)
    small = found["at100"]
    made = [Row("W9", place.store, "at100", small, "claims/s", None, None)]
    for variant in ("at20k", "at200k"):
        made.append(Row("W9", place.store, variant, found[variant], "claims/s", small, found[variant] / small))
    return made


async def _claims(place: Place, backlog: int) -> float:
    url = await place.fresh()
    await _fill(url, backlog)
    store = await connect(url)
    try:
        session = f"bench-{secrets.token_hex(4)}"
        claimed = 0
        started = perf_counter()
        while claimed < CLAIMED:
            heads = await store.reserve([ROUTE], PAGE, session, 60_000)
            assert heads, f"only {claimed} of {CLAIMED} runs could be claimed"
            claimed += len(heads)
        return claimed / (perf_counter() - started)
    finally:
        await store.close()
        place.drop(url)


async def _fill(url: str, backlog: int) -> None:
    half = backlog // 2
    jobs: Sequence[tuple[str, int, dict[str, Any]]] = [
        (_RUNS, half, {"prefix": "a", "workflow": "elsewhere", "route": ELSEWHERE, "limits": None}),
        (_QUEUE, half, {"prefix": "a", "route": ELSEWHERE, "status": "ready", "priority": 50, "lane": None}),
        (_RUNS, backlog - half, {"prefix": "b", "workflow": "served", "route": ROUTE, "limits": '{"full":1}'}),
        (_QUEUE, backlog - half, {"prefix": "b", "route": ROUTE, "status": "blocked", "priority": 50, "lane": LANE}),
        (_LANES, backlog - half, {"prefix": "b", "lane": LANE}),
        (_RUNS, CLAIMED, {"prefix": "c", "workflow": "served", "route": ROUTE, "limits": None}),
        (_QUEUE, CLAIMED, {"prefix": "c", "route": ROUTE, "status": "ready", "priority": 0, "lane": None}),
    ]
    if url.startswith("sqlite"):
        _fill_sqlite(url.removeprefix("sqlite:///"), jobs)
    else:
        await _fill_postgres(url, jobs)


def _fill_sqlite(path: str, jobs: Sequence[tuple[str, int, dict[str, Any]]]) -> None:
    import sqlite3

    numbers = "(with recursive s(n) as (select 1 union all select n + 1 from s where n < :count) select n from s) as s"
    connection = sqlite3.connect(path)
    with connection:
        for text, count, values in jobs:
            connection.execute(text.replace("{numbers}", numbers), {**values, "count": count})
    connection.close()


async def _fill_postgres(url: str, jobs: Sequence[tuple[str, int, dict[str, Any]]]) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    for text, count, values in jobs:
        for name, value in values.items():  # constants of ours: no text of a stranger is ever written this way
            quoted = "null" if value is None else str(value) if isinstance(value, int) else f"'{value}'"
            text = text.replace(f":{name}", quoted)
        await connection.execute(text.replace("{numbers}", f"generate_series(1, {count}) as s (n)"))
    await connection.execute("analyze")
    await connection.close()
