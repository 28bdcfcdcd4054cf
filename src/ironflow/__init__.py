"""Ironflow: durable workflows in plain Python. Every step is journaled; a crash loses nothing."""

from ironflow.context import (
    Call,
    Context,
    Done,
    Lane,
    NotDone,
    Outcome,
    Retry,
    Step,
    StepInfo,
    Unknown,
    Workflow,
    step,
    step_info,
    workflow,
)
from ironflow.errors import (
    IronflowError,
    NonRetryableError,
    RetryAfterError,
    RunCancelled,
    RunFailed,
    RunPaused,
    StepFailed,
    StepInterrupted,
    StepTimeout,
)
from ironflow.runtime import Engine, Run, RunView, open, run

__version__ = "0.1.0"

__all__ = [
    "Call",
    "Context",
    "Done",
    "Engine",
    "IronflowError",
    "Lane",
    "NonRetryableError",
    "NotDone",
    "Outcome",
    "Retry",
    "RetryAfterError",
    "Run",
    "RunCancelled",
    "RunFailed",
    "RunPaused",
    "RunView",
    "Step",
    "StepFailed",
    "StepInfo",
    "StepInterrupted",
    "StepTimeout",
    "Unknown",
    "Workflow",
    "open",
    "run",
    "step",
    "step_info",
    "workflow",
]
