"""The engine as programs open it, and the handles it gives. See :mod:`ironflow.runtime.engine`."""

from ironflow.runtime.engine import Engine
from ironflow.runtime.entry import open, run
from ironflow.runtime.handle import Run, RunView

__all__ = ["Engine", "Run", "RunView", "open", "run"]
