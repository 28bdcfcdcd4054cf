"""From the JSON that a server answers with to the rows of the model: `engine.views`, read backwards.

Promises that a row is the same whether it was read from a database or from a server, but for what a server never tells
(hashes of tokens), which is empty here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from ironflow.engine import views
from ironflow.engine.hints import at_a_terminal
from ironflow.engine.why import Hold
from ironflow.model.fold import StepView, Try
from ironflow.model.ids import join_routes, route_of
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.scope import Scope
from ironflow.runtime.handle import RunView

Row = TypeVar("Row")


def row(cls: type[Row], data: Mapping[str, Any]) -> Row:
    """A row of the model; a field that was not told takes its default, and a secret, which is never told, is empty."""
    values: dict[str, Any] = {}
    for one in fields(cls):  # type: ignore[arg-type]  # every row of the model is a dataclass
        name = one.name
        if f"{name}_ms" in data:
            values[name] = data[f"{name}_ms"]
        elif name in data:
            value = data[name]
            if name in _PUT_TOGETHER:
                value = _PUT_TOGETHER[name](value)
            values[name] = _text(value) if name in views.JSON_TEXT and value is not None else value
        elif name in views.SECRET:
            values[name] = one.default if one.default is not MISSING else ""
        elif one.default is MISSING and one.default_factory is MISSING:
            raise KeyError(name)
    return cls(**values)


def _route(told: Mapping[str, Any]) -> str:
    return route_of(told["workflow"], told["version"], told["tags"], Scope(told["org"], told["environment"]))


def _routes(told: list[Mapping[str, Any]]) -> str:
    return join_routes(map(_route, told))


#: Columns that are shown taken apart, and kept in one text.
_PUT_TOGETHER: dict[str, Callable[[Any], Any]] = {"route": _route, "routes": _routes}


def data(found: Any) -> dict[str, Any]:
    """An object as it was told.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(found, dict):
        raise TypeError(f"no object, but {type(found).__name__}")
    return found


def items(found: Any) -> list[Any]:
    """A list as it was told.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(found, list):
        raise TypeError(f"no list, but {type(found).__name__}")
    return found


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


def holds(found: Any) -> list[Hold]:
    """What holds a run, in the words of the command line."""
    told = [row(Hold, {**one, "message": at_a_terminal(one["message"])}) for one in items(found)]
    if not told:
        raise ValueError("there is always a hold")
    return told


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
        data["hold"]["details"] if data["hold"] is not None else None,
        data["worker_routing"],
    )
