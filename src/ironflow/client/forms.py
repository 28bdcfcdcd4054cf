"""From the JSON that a server answers with to the rows of the model: `engine.views`, read backwards.

Promises that a row is the same whether it was read from a database or from a server, but for what a server never tells
(hashes of tokens), which is empty here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ironflow.engine import views
from ironflow.model.fold import StepView, Try
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.runtime.handle import RunView

Row = TypeVar("Row")


def row(cls: type[Row], data: Mapping[str, Any]) -> Row:
    """A row of the model; a field that was not told takes its default, or is empty."""
    values: dict[str, Any] = {}
    for one in fields(cls):  # type: ignore[arg-type]  # every row of the model is a dataclass
        name = one.name
        if f"{name}_ms" in data:
            values[name] = data[f"{name}_ms"]
        elif name in data:
            value = data[name]
            values[name] = _text(value) if name in views.JSON_TEXT and value is not None else value
        elif one.default is MISSING and one.default_factory is MISSING:
            values[name] = ""
    return cls(**values)


def times(data: Mapping[str, Any]) -> dict[str, Any]:
    """A row that the model has no class for, with each of its times once and in milliseconds, as a store gives it."""
    doubled = {name for name in data if f"{name}_ms" in data}
    return {
        name: data[f"{name}_ms"] if name in doubled else value
        for name, value in data.items()
        if name.removesuffix("_ms") not in doubled or name in doubled
    }


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def event(data: Mapping[str, Any]) -> Event:
    """A journal event."""
    payload = json.dumps(data["payload"], separators=(",", ":"), ensure_ascii=False)
    return Event(data["seq"], data["kind"], data["step_id"], payload, data["execution_seq"], data["at_ms"])


def step(data: Mapping[str, Any]) -> StepView:
    """A step with its tries."""
    made = row(StepView, data)
    made.tries = [row(Try, one) for one in data["tries"]]
    return made


def run_view(data: Mapping[str, Any]) -> RunView:
    """A run as it stands."""
    return RunView(
        row(RunRow, data),
        {one["step_id"]: step(one) for one in data["steps"]},
        data["input"],
        data["output"],
        data["error"],
        data["undo_errors"],
        data["hold"],
        data["worker_routing"],
    )
