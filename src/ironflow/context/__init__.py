"""What authors write workflows with: steps, workflows, and the context they are given."""

from __future__ import annotations

from ironflow.context.api import Context
from ironflow.context.call import Call
from ironflow.context.combinators import Outcome
from ironflow.context.info import StepInfo, step_info
from ironflow.context.log import ReplayFilter
from ironflow.context.options import Retry
from ironflow.context.steps import Step, step
from ironflow.context.workflows import Workflow, workflow
from ironflow.engine.definitions import Lane
from ironflow.engine.reconcile import Done, NotDone, Reconciled, Unknown

__all__ = [
    "Call",
    "Context",
    "Done",
    "Lane",
    "NotDone",
    "Outcome",
    "Reconciled",
    "ReplayFilter",
    "Retry",
    "Step",
    "StepInfo",
    "Unknown",
    "Workflow",
    "step",
    "step_info",
    "workflow",
]
