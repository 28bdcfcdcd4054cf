"""Ironflow: durable workflows in plain Python. Every step is journaled; a crash loses nothing.

Owns the public names and nothing else. Each is imported when it is first asked for, so that a program pays for what it
uses: `ironflow --help` needs neither the engine nor the validation library, and does not wait for them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
        RunCancelled,
        RunFailed,
        RunPaused,
        StepFailed,
        StepInterrupted,
        StepTimeout,
    )
    from ironflow.model.retry import NonRetryableError, RetryAfterError
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

#: Where a name is defined, if not in `ironflow.context`. The imports above say the same to type checkers.
_ELSEWHERE = {
    **dict.fromkeys(("Engine", "Run", "RunView", "open", "run"), "ironflow.runtime"),
    **dict.fromkeys(("NonRetryableError", "RetryAfterError"), "ironflow.model.retry"),
    **dict.fromkeys(
        (
            "IronflowError",
            "RunCancelled",
            "RunFailed",
            "RunPaused",
            "StepFailed",
            "StepInterrupted",
            "StepTimeout",
        ),
        "ironflow.errors",
    ),
}


if not TYPE_CHECKING:  # a checker that saw it would take any misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, and keep it: only the first use comes here."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_ELSEWHERE.get(name, "ironflow.context")), name)
        return found


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
