"""Driving one instance by hand: the shortest way from workflow code to what it asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ironflow.context import step, workflow
from ironflow.engine.instance import Instance, Raised, Returned, RunInfo
from ironflow.engine.requests import Completed, Failed, Fired, Note, Request, StartTimer, StepCall

SEED = 7


@step
async def work(*what: Any) -> Any:
    raise AssertionError("instances never run a body")


class Driver:
    """An instance and everything it has asked for, in order."""

    def __init__(
        self,
        fn: Callable[..., Any],
        input: Any = None,
        *,
        strict: bool = False,
        seed: int = SEED,
        run_id: str = "run-1",
    ) -> None:
        self.now = 1_000
        self.info = RunInfo(run_id, run_id, "flow", 1, seed, set())
        self.instance = Instance(workflow(name="flow")(fn).spec, input, self.info, strict=strict)
        self.asked: list[Request] = []

    def start(self, *, replaying: bool = False) -> Driver:
        self.asked += self.instance.start(self.now, replaying)
        return self

    def __enter__(self) -> Driver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.instance.close()

    @property
    def open(self) -> list[str]:
        return list(self.instance.open)

    @property
    def notes(self) -> list[Note]:
        return [request for request in self.asked if isinstance(request, Note)]

    def asked_ids(self, kind: type) -> list[str]:
        return [request.id for request in self.asked if type(request) is kind]

    def complete(self, value: Any = None, *, id: str | None = None, replaying: bool = False) -> Driver:
        return self._feed(Completed(id or self._first(StepCall), value), replaying)

    def fail(self, error: BaseException, *, id: str | None = None) -> Driver:
        return self._feed(Failed(id or self._first(StepCall), error), False)

    def fire(self, id: str | None = None) -> Driver:
        chosen = id or self._first(StartTimer)
        request = self.instance.open.get(chosen)
        if isinstance(request, StartTimer):
            self.now = max(self.now, request.due)
        return self._feed(Fired(chosen), False)

    def _first(self, kind: type) -> str:
        return next(key for key, request in self.instance.open.items() if type(request) is kind)

    def _feed(self, fact: Any, replaying: bool) -> Driver:
        self.now += 1
        self.asked += self.instance.activate(fact, self.now, replaying)
        return self

    def complete_all(self, value: Any = None) -> Driver:
        while self.instance.outcome is None and self.open:
            self.complete(value)
        return self

    @property
    def value(self) -> Any:
        assert isinstance(self.instance.outcome, Returned), self.instance.outcome
        return self.instance.outcome.value

    @property
    def error(self) -> BaseException:
        assert isinstance(self.instance.outcome, Raised), self.instance.outcome
        return self.instance.outcome.error
