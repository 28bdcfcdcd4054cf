"""What a program gives as workflows: refused on the spot where it is none, and not by what fails later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ironflow.context.workflows import Workflow
from ironflow.errors import InvalidInput


def all_of(workflows: Iterable[Workflow[Any, Any]]) -> list[Workflow[Any, Any]]:
    """These workflows.

    Raises:
        InvalidInput: one of them is none, or it is a single one without a list around it.
    """
    if isinstance(workflows, Workflow):
        raise InvalidInput("`workflows` is one workflow, not several", hint="Put it into a list: workflows=[...].")
    return [checked(one) for one in workflows]


def checked(wf: Workflow[Any, Any]) -> Workflow[Any, Any]:
    """This workflow.

    Raises:
        InvalidInput: it is none.
    """
    if not isinstance(wf, Workflow):
        raise InvalidInput(
            f"a workflow is wanted, and {wf!r:.80} is none",
            hint="Pass the function that @workflow decorates; a server's client takes names, too.",
        )
    return wf
