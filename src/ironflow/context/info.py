"""`step_info()`: what a step's body may know about its own execution, under the name authors import it by."""

from __future__ import annotations

from ironflow.engine.step_info import StepInfo, current, step_info

__all__ = ["StepInfo", "current", "step_info"]
