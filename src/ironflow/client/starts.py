"""What a start and a filter look like as a request.

Promises that a start is checked here as an engine checks it, with the same errors, before anything is sent; and that
the worker gets the input as if it had been started beside the database: it travels in the form in which it is stored.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from pydantic_core import to_json

from ironflow.context.workflows import Workflow
from ironflow.engine import starting
from ironflow.engine.declared import Declared
from ironflow.engine.starting import Start
from ironflow.errors import InvalidInput
from ironflow.model import moment
from ironflow.store.reader import RunFilter


def body(wf: Workflow[Any, Any] | str, input: Any, options: Start, *, idempotency_key: str | None, limit: int) -> bytes:
    """The request that starts a run.

    Args:
        wf: the workflow, or its name.
        input: its input.
        options: of the start.
        idempotency_key: in place of one of the options.
        limit: the largest input, in bytes.

    Raises:
        InvalidInput, InvalidPriority: as `starting.new_run` says; nothing was sent.
    """
    spec = wf.spec if isinstance(wf, Workflow) else _named(wf)
    _, created, _ = starting.new_run(spec, input, options, time.time_ns() // 1_000_000, limit)
    limits = options.get("limits")
    asked = {
        "workflow": spec.name,
        "input_form": "stored",
        "lane_key": None if isinstance(spec, Declared) else spec.lane_key(input),
        "id": options.get("id"),
        "idempotency_key": options.get("idempotency_key") or idempotency_key,
        "concurrency_key": options.get("concurrency_key"),
        "priority": options.get("priority"),
        "labels": dict(options.get("labels") or {}) or None,
        "worker_tags": list(options.get("worker_tags") or ()) or None,
        "concurrency_limits": dict(limits) if limits else None,
        "scheduled_at": _iso(options.get("at")),
        "deadline_at": _iso(options.get("deadline")),
    }
    told = to_json({name: value for name, value in asked.items() if value is not None})
    # The text as it was encoded: read and written once more, a number could take another form.
    _, _, tail = created.partition('"input":')
    return told[:-1] + b',"input":' + tail.encode("utf-8")


def _named(name: str) -> Declared:
    """A workflow of which only the name is known here; the server knows the rest, or that there is none."""
    return Declared({"name": name, "version": "1", "worker_tags": "", "definition": None})


def selection(filter: RunFilter) -> dict[str, Any]:
    """The parameters that select what a filter does.

    Raises:
        InvalidInput: it asks for what a server does not offer.
    """
    if filter.before is not None:
        raise InvalidInput("a server's list has no `before`", hint="Raise the limit: pages are read as it takes them.")
    return {
        "state": list(filter.states),
        "workflow": filter.workflow,
        "reason": filter.reason,
        "label": None if filter.label is None else "=".join(filter.label),
        "priority": filter.priority,
        "worker_tag": filter.worker_tag,
        "created_from": _moment(filter.created_from),
        "created_to": _moment(filter.created_to),
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _moment(ms: int | None) -> str | None:
    return None if ms is None else moment.iso(ms)
