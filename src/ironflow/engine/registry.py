"""The workflows this process can execute, by name, and the routing class under which runs of one are handed out.

Promises that one name means one workflow, so that a run can never be continued by a stranger's code.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ironflow.engine.definitions import WorkflowSpec
from ironflow.errors import WorkflowNameTaken, WorkflowUnknown
from ironflow.model.ids import route_of, tags_of
from ironflow.model.routing import Code
from ironflow.model.scope import DEFAULT, Scope


class Registry:
    """Workflows by name. One name means one workflow: two of the same name are refused, wherever they come from."""

    def __init__(self, specs: Iterable[WorkflowSpec] = ()) -> None:
        self._specs: dict[str, WorkflowSpec] = {}
        for spec in specs:
            self.add(spec)

    def add(self, spec: WorkflowSpec) -> None:
        """Register a workflow; the same one again changes nothing.

        Raises:
            WorkflowNameTaken: another function has this name.
        """
        known = self._specs.get(spec.name)
        if known is None:
            self._specs[spec.name] = spec
        elif known is not spec and known.fn is not spec.fn:
            raise WorkflowNameTaken(
                f"two workflows are called {spec.name!r}: {_place(known)} and {_place(spec)}",
                hint="Give one of them another name: @workflow(name=...).",
            )

    def get(self, name: str) -> WorkflowSpec:
        """The workflow of this name.

        Raises:
            WorkflowUnknown: it is not registered here.
        """
        spec = self._specs.get(name)
        if spec is None:
            known = ", ".join(sorted(self._specs)) or "none"
            raise WorkflowUnknown(f"no workflow is called {name!r} here; known: {known}")
        return spec

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def __iter__(self) -> Iterator[WorkflowSpec]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def default_route(spec: Code, tags: Sequence[str] = (), scope: Scope = DEFAULT) -> str:
    """The routing class of a run: the workflow with the tags its handler and its start require.

    Raises:
        InvalidInput: they are no tags, or too many together.
    """
    every = tags_of((*spec.worker_tags, *tags)) if tags else spec.worker_tags
    return route_of(spec.name, spec.version, every, scope)


def _place(spec: WorkflowSpec) -> str:
    code = getattr(spec.fn, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code is not None else repr(spec.fn)
