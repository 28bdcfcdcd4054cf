"""Runs of a real engine, watched: what a scrape and a collector hold afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.observe.collector import Collector, collecting
from tests.observe.test_serving import get
from tests.recovery import program
from tests.recovery.kit import quick, until

import ironflow
from ironflow import Context
from ironflow.errors import InvalidSettings, RunFailed
from ironflow.observe import backlog
from ironflow.observe.metrics import INSTRUMENTS
from ironflow.observe.trace_ids import root_of, span_of, trace_of
from ironflow.runtime.engine import Engine

FAST = ironflow.Retry(max_attempts=2, backoff="1ms", jitter=0)


@ironflow.step(retry=FAST)
async def wobble(key: str) -> str:
    if ironflow.step_info().attempt == 1:
        raise ConnectionError(key)
    return key


@ironflow.step
async def refuse() -> None:
    raise ValueError("no")


@ironflow.workflow
async def shaky(ctx: Context) -> str:
    return await wobble("a")


@ironflow.workflow
async def doomed(ctx: Context) -> None:
    await refuse()


@ironflow.workflow
async def sleepy(ctx: Context) -> None:
    await ctx.sleep("20ms")


@ironflow.workflow(worker_tags=["gpu"])
async def elsewhere(ctx: Context) -> None:
    """For a worker that is not here."""


@ironflow.step
async def wait_for(name: str) -> None:
    while not (program.folder() / name).exists():
        await asyncio.sleep(0.005)


@ironflow.workflow(lane=1)
async def narrow(ctx: Context, name: str) -> None:
    await wait_for(name)


@ironflow.step
async def note(n: int) -> int:
    return n


@ironflow.workflow
async def heavy(ctx: Context) -> int:
    """Its own code computes for so long that results are committed before it is told of them."""
    total = 0
    for n in range(4):
        total += await note(n)
        time.sleep(0.01)
    return total


WORKFLOWS = [shaky, doomed, sleepy, narrow, heavy]


async def scrape(engine: Engine) -> dict[str, float]:
    """Every sample of the engine's own address, by its name and labels as they are written."""
    listener = engine._observation._listener
    assert listener is not None
    status, body = await asyncio.to_thread(get, listener.port)
    assert status == 200
    lines = [line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(number) for name, number in lines}


def watched(url: str, **options: object) -> Engine:
    return Engine(
        settings=quick(database_url=url, **options), workflows=WORKFLOWS, metrics_address="127.0.0.1:0", worker_id="w"
    )


async def test_a_scrape_tells_what_became_of_runs_and_steps(store_url: str) -> None:
    async with watched(store_url) as engine:
        await engine.run(shaky)
        await engine.run(sleepy)
        with pytest.raises(RunFailed, match="no"):
            await engine.run(doomed)
        found = await scrape(engine)
    step = 'ironflow_step_seconds_count{outcome="%s",step="%s",workflow="%s"}'
    assert found[step % ("retrying", "wobble", "shaky")] == 1
    assert found[step % ("completed", "wobble", "shaky")] == 1
    assert found[step % ("failed", "refuse", "doomed")] == 1
    for workflow, status in (("shaky", "completed"), ("sleepy", "completed"), ("doomed", "failed")):
        assert found[f'ironflow_runs_total{{status="{status}",workflow="{workflow}"}}'] == 1
        assert found[f'ironflow_run_seconds_count{{workflow="{workflow}"}}'] == 1
    assert found["ironflow_claims_total"] == 4  # the one that slept was taken twice
    assert found["ironflow_commit_seconds_count"] >= 4
    assert found["ironflow_commit_batch_size_sum"] >= found["ironflow_commit_batch_size_count"]
    assert found["ironflow_leases_lost_total"] == 0


async def test_each_try_counts_once_where_results_are_committed_before_the_code_goes_on(store_url: str) -> None:
    async with watched(store_url) as engine:
        assert await engine.run(heavy) == 6
        found = await scrape(engine)
    assert found['ironflow_step_seconds_count{outcome="completed",step="note",workflow="heavy"}'] == 4
    assert found["ironflow_claims_total"] == 1


async def test_the_queue_holds_what_this_worker_could_take_and_who_waits_for_a_group(
    store_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(store_url) as engine:
        runs = [await engine.start(narrow, "gate") for _ in range(3)]
        engine._register(elsewhere)
        await engine.start(elsewhere)
        await engine.start(shaky, worker_tags=["tpu"])
        await until(lambda: _blocked(engine), "two are blocked")
        found = await scrape(engine)
        assert found["ironflow_worker_queue_depth"] == 2
        assert found['ironflow_worker_queue_blocked_runs{group="workflow:narrow"}'] == 2
        program.open_gate("gate")
        for run in runs:
            await run.result()
        monkeypatch.setattr(backlog, "FRESH_S", 0)  # a look at the queue serves all scrapes of one second
        found = await scrape(engine)
        assert found["ironflow_worker_queue_depth"] == 0
        assert not [name for name in found if name.startswith("ironflow_worker_queue_blocked_runs{")]


async def _blocked(engine: Engine) -> bool:
    return sum(count for _, lane, count in await engine.store.backlog() if lane) == 2


async def test_a_recovery_counts_in_the_process_that_recovered(store_url: str, folder: Path) -> None:
    with program.workers(store_url, 1, quick()) as (victim,):
        async with Engine(
            settings=quick(database_url=store_url), workflows=program.WORKFLOWS, metrics_address="127.0.0.1:0"
        ) as engine:
            engine.worker.slots = 0  # type: ignore[union-attr]
            run = await engine.start(program.line, "x")
            await until(lambda: program.lines("x-2"))
            victim.kill()
            engine.worker.slots = 10  # type: ignore[union-attr]
            program.open_gate("x-2")
            await run.result()
            found = await scrape(engine)
    total = sum(n for name, n in found.items() if name.startswith("ironflow_recoveries_total{") and "requeued" in name)
    assert total == 1
    assert found["ironflow_recovery_seconds_count"] == 1
    assert found["ironflow_recovery_seconds_sum"] < 5


async def test_a_run_that_is_taken_away_counts_as_a_lost_lease_and_its_cancellation_as_its_end(
    store_url: str, folder: Path
) -> None:
    async with watched(store_url) as engine:
        run = await engine.start(narrow, "never")
        await until(lambda: engine.worker.segments)  # type: ignore[union-attr]
        await engine.cancel(run.id)
        await until(lambda: not engine.worker.segments)  # type: ignore[union-attr]
        found = await scrape(engine)
    assert found["ironflow_leases_lost_total"] == 1
    assert found['ironflow_runs_total{status="cancelled",workflow="narrow"}'] == 1


async def test_an_engine_that_is_not_watched_tells_nobody(sqlite_url: str) -> None:
    async with Engine(sqlite_url, workflows=WORKFLOWS) as engine:
        await engine.run(shaky)
        assert engine._observation.observer is None
        assert engine.worker is not None
        assert engine.worker.observer is None


async def test_a_second_engine_with_metrics_is_an_error_and_leaves_nothing_open(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with watched(sqlite_url):
        other = f"sqlite:///{tmp_path}/other.db"
        with pytest.raises(InvalidSettings, match="installed already"):
            await watched(other).__aenter__()
    async with watched(other) as again:
        await again.run(shaky)


# ---- traces


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector that this process and those it starts export to."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        yield found


async def test_a_killed_workers_run_is_one_trace_over_all_processes(
    store_url: str, folder: Path, collector: Collector
) -> None:
    with program.workers(store_url, 2, quick()) as both:
        async with Engine(settings=quick(database_url=store_url), workflows=program.WORKFLOWS, worker=False) as engine:
            run = await engine.start(program.line, "x")
            ((_, pid, _),) = await until(lambda: program.lines("x-2"))
            await until(lambda: collector.named("mark"), "the first step has left its process")
            victim, heir = both if both[0].pid == pid else reversed(both)
            victim.kill()
            await until(lambda: len(program.lines("x-2")) == 2)
            program.open_gate("x-2")
            await run.result()
            heir.leave()
    spans = [span for span in collector.spans if span.trace == trace_of(run.id)]
    assert len(spans) == len(collector.spans)
    assert len({span.id for span in spans}) == len(spans)

    (root,), (created,), (recovered,) = (collector.named(f"{name} line") for name in ("run", "created", "recovered"))
    lost, last = collector.named("segment line")
    assert (root.id, root.parent) == (root_of(run.id), 0)
    assert [span.id for span in (created, lost, recovered, last)] == [span_of(run.id, n) for n in range(4)]
    for before, after in ((created, lost), (lost, recovered), (recovered, last)):
        assert after.links == [(trace_of(run.id), before.id)]
        assert after.parent == root.id
    first, third = collector.named("mark")
    (second,) = collector.named("hold")  # the try that was cut off ended nowhere
    assert [span.parent for span in (first, second, third)] == [lost.id, last.id, last.id]
    assert root.began <= min(span.began for span in (first, second, third, last))
    assert [span.facts["ironflow.outcome"] for span in (lost, last, root)] == ["recovered", "completed", "completed"]
    assert {span.service for span in spans} == {"ironflow"}


async def test_a_run_that_sleeps_is_one_trace_and_its_segments_follow_one_another(
    store_url: str, collector: Collector
) -> None:
    async with Engine(settings=quick(database_url=store_url), workflows=WORKFLOWS) as engine:
        run = await engine.start(sleepy)
        await run.result()
    first, second = collector.named("segment sleepy")
    assert {span.trace for span in collector.spans} == {trace_of(run.id)}
    assert second.links == [(trace_of(run.id), first.id)]
    assert [span.facts["ironflow.outcome"] for span in (first, second)] == ["sleeping", "completed"]
    assert first.ended <= second.began


async def test_a_collector_that_is_away_changes_nothing_of_a_run(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    loop = asyncio.get_running_loop()
    async with Engine(settings=quick(database_url=sqlite_url), workflows=WORKFLOWS) as engine:
        assert await engine.run(shaky) == "a"
        began = loop.time()
    assert loop.time() - began < 5


def test_every_instrument_is_covered_here_or_beside(request: pytest.FixtureRequest) -> None:
    texts = "".join(path.read_text(encoding="utf-8") for path in Path(request.path).parent.glob("test_*.py"))
    assert [one.name for one in INSTRUMENTS if one.name not in texts] == []
