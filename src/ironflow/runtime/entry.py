"""What programs begin with: `ironflow.open` and `ironflow.run`.

Owns nothing but the words: each is a call of the engine. Their docstrings are whole by themselves, since `help()` on
one of these two is the first page that is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar, Unpack, overload

from ironflow.config import Settings
from ironflow.context.workflows import Workflow
from ironflow.engine.starting import Start
from ironflow.runtime.engine import Engine

In = TypeVar("In")
Out = TypeVar("Out")


def open(
    url: str | None = None,
    *,
    workflows: Iterable[Workflow[Any, Any]] | None = None,
    worker: bool = True,
    concurrency: int | None = None,
    threads: int | None = None,
    settings: Settings | None = None,
    strict: bool = False,
) -> Engine:
    """Open a database and, unless told otherwise, work on it.

    Use it as `async with ironflow.open(...) as engine`, or as `with` in a script, where `engine.wait(...)` runs the
    engine's coroutines.

    Args:
        url: `sqlite:///file.db` (relative), `sqlite:////abs/file.db` or `postgresql://…`; default `sqlite:///ironflow.db`.
        workflows: what this process can execute; a workflow that is started here is added by itself.
        worker: False only starts, reads and commands.
        concurrency: runs that execute here at once.
        threads: `def` steps that execute here at once.
        settings: everything else; see the reference of settings.
        strict: raise `ForbiddenInWorkflow` where workflow code reads a clock, draws a random number or does I/O, which
            a replay would see differently. For development and tests: without it a warning names the line, once, and
            the run goes on.

    Raises:
        InvalidSettings: settings contradict each other, or the address is none (raised here).
        StoreError: the database cannot be used (raised when it is entered).
    """
    return Engine(
        url,
        workflows=workflows,
        worker=worker,
        concurrency=concurrency,
        threads=threads,
        settings=settings,
        strict=strict,
    )


@overload
def run(
    wf: Workflow[None, Out], input: None = None, /, *, url: str = "sqlite:///ironflow.db", **options: Unpack[Start]
) -> Out: ...
@overload
def run(
    wf: Workflow[In, Out], input: In, /, *, url: str = "sqlite:///ironflow.db", **options: Unpack[Start]
) -> Out: ...
def run(
    wf: Workflow[Any, Any], input: Any = None, /, *, url: str = "sqlite:///ironflow.db", **options: Unpack[Start]
) -> Any:
    """Run a workflow from a script and return its output: one line, durable.

    It opens the database, starts the run, works on it, and closes the database when the run has ended. Killed and
    called again with the same `id` (or `idempotency_key` and input), it goes on with the run and starts no other.

    Args:
        wf: the workflow.
        input: its one input, as its annotation says; left out for a workflow that takes none, or has a default for it.
        url: the database: `sqlite:///file.db` (relative to the current folder), `sqlite:////abs/file.db` or
            `postgresql://user@host/database`.
        id: the run's id, 1 to 200 printable characters; by default a new one. An id that exists gives that run.
        idempotency_key: the same key and input give the same run; the key with another input is refused.
        concurrency_key: refused while a live run holds the same key.
        priority: −100…100, higher is handed out first; by default the workflow's own.
        labels: a dictionary of texts, shown in lists and selected by.
        worker_tags: tags a worker must carry, in addition to the workflow's own.
        limits: at most so many runs of these groups execute at once: `{"group": 3}`.
        at: not before this time (an aware datetime).
        deadline: the run fails if it has not ended by then (an aware datetime).

    Returns:
        what the workflow returned.

    Raises:
        InvalidInput: the input does not fit, or there is no such option; nothing was started.
        IdempotencyKeyConflict, ConcurrencyConflict: a run that exists is in the way; nothing was started.
        RunFailed: the run failed; raised from the original error.
        RunCancelled, RunPaused: somebody ended it, or it waits for a person.
    """
    with Engine(url, workflows=[wf], own_only=True) as engine:
        return engine.wait(engine.run(wf, input, **options))
