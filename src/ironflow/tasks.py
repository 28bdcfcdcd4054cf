"""Tasks of the engine's own, which begin in the next pass of the loop whatever task factory the program has set.

With an eager factory (Python 3.12) a task runs before whoever made it can keep it: a loop that asks whether it is still
wanted would find that it is not, and a body could end before its segment knows of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def begin(coroutine: Coroutine[Any, Any, Result], name: str | None = None) -> asyncio.Task[Result]:
    """Run a coroutine in a task of the running loop. The caller keeps it: a loop holds its tasks weakly."""
    return asyncio.Task(coroutine, loop=asyncio.get_running_loop(), name=name)
