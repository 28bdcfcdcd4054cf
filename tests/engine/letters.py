"""Steps that the harness ends by name. Their bodies never run: tested is what the engine makes of their ends."""

from __future__ import annotations

from typing import Any

from ironflow.context import step


@step
async def a(*what: Any) -> Any: ...


@step
async def b(*what: Any) -> Any: ...


@step
async def c(*what: Any) -> Any: ...
