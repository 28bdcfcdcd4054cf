"""The dashboard and the alert rules ask only for metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ironflow.observe.metrics import INSTRUMENTS, Instrument

DEPLOY = Path(__file__).resolve().parents[2] / "docs" / "deploy"
NAMED = {one.name: one for one in INSTRUMENTS}
#: What Prometheus itself adds to every sample, and a histogram to its buckets.
EVERYWHERE = {"instance", "job"}
_NAME = re.compile(r"\b(ironflow_[a-z_]+)(?:\{([^}]*)\})?")
_BY = re.compile(r"\bby \(([^)]*)\)")


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        yield from ((panel["title"], target["expr"]) for target in panel["targets"])
    yield from ((rule["alert"], rule["expr"]) for rule in rules())


def instrument(name: str) -> tuple[Instrument | None, set[str]]:
    """The instrument that a name of a query reads, and the labels that its samples have."""
    for suffix, more in (("", set()), ("_bucket", {"le"}), ("_sum", set()), ("_count", set())):
        one = NAMED.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if one is not None and (suffix != "") == (one.kind == "histogram"):
            return one, {*one.labels, *more, *EVERYWHERE}
    return None, set()


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_every_query_reads_metrics_and_labels_that_exist(where: str, expression: str) -> None:
    read = _NAME.findall(expression)
    assert read, where
    allowed: set[str] = set()
    for name, matchers in read:
        one, labels = instrument(name)
        assert one is not None, f"{where}: there is no {name}"
        allowed |= labels
        for label in re.findall(r"(\w+)\s*[!=]~?", matchers):
            assert label in labels, f"{where}: {name} has no label {label}"
    for group in _BY.findall(expression):
        assert {label.strip() for label in group.split(",")} <= allowed, f"{where}: by ({group})"


def test_every_metric_is_on_the_dashboard() -> None:
    shown = {
        instrument(name)[0] for panel in panels() for t in panel["targets"] for name, _ in _NAME.findall(t["expr"])
    }
    assert {one.name for one in shown if one is not None} == set(NAMED)


def test_every_alert_says_what_is_wrong_what_to_do_and_how_much_it_matters() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 10
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        for label in re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])):
            assert any(label in group for group in _BY.findall(rule["expr"])), f"{rule['alert']} has no {label}"


def test_every_panel_has_its_own_id_and_place() -> None:
    ids = [panel["id"] for panel in panels()]
    places = [tuple(sorted(panel["gridPos"].items())) for panel in panels()]
    assert len(ids) == len(set(ids)) == len(set(places))
