"""The bench measures what it says: the floor writes the engine's own rows, targets and table say what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench import report, run
from bench.floor import open_floor, timed
from bench.measure import Row, medians, percentile, rows
from bench.script import Script, new_ids
from bench.stores import Place
from bench.targets import Target, target
from bench.workflows import chain

from ironflow.store import connect

STEPS = 3


class OnePlace(Place):
    """A place with one database, which the test has made."""

    def __init__(self, url: str) -> None:
        super().__init__("sqlite")
        self.url = url

    async def fresh(self) -> str:
        return self.url

    def drop(self, url: str) -> None:
        pass


async def test_the_floor_leaves_the_rows_the_engine_left(store_url: str) -> None:
    script = await Script.recorded(OnePlace(store_url), chain, STEPS)
    run_ids = new_ids(7)
    bare = await open_floor(store_url)
    commits = [await bare.ready(writes) for writes in script.whole(run_ids)]
    assert len(commits) == STEPS + 1
    assert await timed(commits) > 0
    await bare.close()

    store = await connect(store_url, read_only=True)
    written = [event for group in script.groups for event in group]
    assert len(written) == 2 + 2 * STEPS + 1
    for run_id in run_ids:
        row = await store.run(run_id)
        assert row is not None
        assert (row.state, row.workflow, row.lease_token_hash) == ("completed", "chain", None)
        assert list(map(repr, await store.journal(run_id))) == list(map(repr, written))
    assert await store.leases() == []
    await store.close()


async def test_the_floor_of_a_start_leaves_a_run_in_the_queue(store_url: str) -> None:
    script = await Script.recorded(OnePlace(store_url), chain, 1)
    run_ids = new_ids(5)
    bare = await open_floor(store_url)
    await timed([await bare.ready(script.create(run_ids[:1])), await bare.ready(script.create(run_ids[1:]))])
    await bare.close()
    store = await connect(store_url, read_only=True)
    assert sorted(row.run_id for row in await store.queue()) == run_ids
    assert (await store.counts())["pending"] == len(run_ids)
    await store.close()


@pytest.mark.parametrize(
    ("value", "ratio", "met"),
    [(0.7, 3.0, True), (0.9, 2.0, True), (0.9, 2.1, False), (0.9, None, False)],
)
def test_a_target_is_met_by_the_figure_or_by_the_share(value: float, ratio: float | None, met: bool) -> None:
    assert Target(0.7, 2.0, less_is_better=True).met(value, ratio) is met


def test_more_is_better_where_runs_are_counted() -> None:
    assert Target(100, 0.5).met(100, 0.1)
    assert Target(100, 0.5).met(50, 0.5)
    assert not Target(100, 0.5).met(99, 0.4)


def test_a_json_line_has_exactly_the_documented_keys() -> None:
    (row,) = rows("W1", "sqlite", {"p50": "ms"}, {"p50": 0.5}, {"p50": 1.0})
    assert json.loads(report.json_line(row)) == {
        "work": "W1",
        "store": "sqlite",
        "variant": "p50",
        "value": 1.0,
        "unit": "ms",
        "floor": 0.5,
        "ratio": 2.0,
    }


def test_a_row_without_a_floor_has_no_ratio() -> None:
    (row,) = rows("W5", "sqlite", {"herd_other": "ms"}, {}, {"herd_other": 3.0})
    assert (row.floor, row.ratio) == (None, None)
    assert report.met(row) is True


def test_figures_are_medians_and_percentiles_are_values_that_occurred() -> None:
    assert medians([{"a": 1.0}, {"a": 9.0}, {"a": 2.0}]) == {"a": 2.0}
    assert percentile([float(n) for n in range(100)], 0.95) == 95.0
    assert percentile([7.0], 0.99) == 7.0


def test_every_target_is_for_a_work_the_bench_knows() -> None:
    assert target("W1", "sqlite", "p50") != target("W1", "postgres", "p50")
    assert target("W1", "sqlite", "nothing") is None
    assert list(run.WORKS) == [f"W{number}" for number in range(1, 11)]
    for work, variant in (("W8", "queue"), ("W9", "at200k"), ("W10", "steps"), ("W6", "http_silence")):
        assert target(work, "postgres", variant) is not None


def test_the_readme_block_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write_readme(readme, "today", [Row("W2", "sqlite", "steps", 5_000.0, "steps/s", 6_000.0, 0.83)])
    text = readme.read_text()
    assert text.startswith(f"before\n{report.BEGIN}\ntoday\n")
    assert text.endswith(f"{report.END}\nafter\n")
    assert "| W2 | sqlite | steps | 5,000 | steps/s | 6,000 | 0.83x | ≥ 4200 or ≥ 0.75x | yes |" in text
    assert "old" not in text


def test_a_readme_without_the_marks_is_left_alone(tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text("nothing to replace")
    with pytest.raises(SystemExit, match="no <!-- bench:begin -->"):
        report.write_readme(readme, "today", [])
    assert readme.read_text() == "nothing to replace"


def test_an_unknown_work_is_refused_with_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.arguments(["W99"])
    assert "there is no W99; there are W1, W2" in capsys.readouterr().err
