"""Traces: a run is one trace through queue, suspension and recovery, whichever processes executed it.

    run ────────────────────────────────────────────── root; exported by whoever commits the run's end
     ├─ created                                        linked to the span of the caller who started it
     ├─ segment 1 ── step, step                        each linked to the number before it
     ├─ segment 2 ── step ×                            its worker was killed: exported by who recovered the run
     ├─ recovered                                      the same number space: every change of owner is one span
     └─ segment 4 ── step, step

A span of a segment is exported by whoever ended it: the worker that left, or the one that took the run away. A span
holds names and numbers, and of an error its type; never an input, a result or a message.

Spans go through a queue to a thread of the exporter's. A collector that is away fills the queue, and then spans are
dropped; no run and no stop of a worker waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import Any, Final

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, Status, StatusCode, TraceFlags

from ironflow.codec.values import parse
from ironflow.model import journal as j
from ironflow.model import run as runs
from ironflow.model.capacity import RunHead
from ironflow.model.journal import Event
from ironflow.model.run import RunRow
from ironflow.model.transition import Locked, Transition
from ironflow.observe.counting import OUTCOMES
from ironflow.observe.trace_ids import caller_of, root_of, span_of, trace_of

Attributes = Mapping[str, str | int | bool]

#: What a change of owner is called, by the journal event that tells of it.
CHANGES: Final = {
    j.RUN_RECOVERED: "recovered",
    j.RUN_RELEASED: "released",
    j.RUN_PAUSED: "paused",
    j.CANCEL_REQUESTED: "cancelled",
    j.RUN_REOPENED: "reopened",
    j.RUN_FAILED: "failed",
}
_NS: Final = 1_000_000

# Spans of a run have the parents that are given here, whatever span happens to be current where they are made: hence
# the empty contexts below.


class DerivedIds(RandomIdGenerator):
    """Gives the next span the id it was asked to have, and any other a random one."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_span_id(self) -> int:
        """See `IdGenerator`."""
        chosen, self.span_id = self.span_id, None
        return super().generate_span_id() if chosen is None else chosen

    def generate_trace_id(self) -> int:
        """See `IdGenerator`."""
        chosen, self.trace_id = self.trace_id, None
        return super().generate_trace_id() if chosen is None else chosen

    def is_trace_id_random(self) -> bool:
        """See `IdGenerator`. They are hashes, as good as random to a sampler, but nobody need rely on it."""
        return False


class Tracing:
    """An observer that makes spans; see the module's docstring. Belongs to one event loop.

    Args:
        processor: takes ended spans; a `BatchSpanProcessor`, outside of tests.
        resource: what this process is.
    """

    def __init__(self, processor: SpanProcessor, resource: Resource | None = None) -> None:
        self._ids = DerivedIds()
        # Not at exit: that would wait for a collector that may be away. `exporting.Exporting` knows how long to wait.
        self.provider = TracerProvider(resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        self.provider.add_span_processor(processor)
        self._tracer = self.provider.get_tracer("ironflow")

    # ---- what is told

    def created(self, row: RunRow, traceparent: str | None = None) -> None:
        """See `Observer.created`. Where no header came, the caller's own current span is what the run is linked to."""
        caller = caller_of(traceparent)
        if caller is not None:
            origin = SpanContext(caller.trace_id, caller.span_id, True, TraceFlags(caller.flags))
        else:
            origin = trace.get_current_span().get_span_context()
        at = row.created_at * _NS
        links = [Link(origin)] if origin.is_valid else []
        self._instant(row.run_id, 0, "created", at, {**_run(row.run_id, row.workflow, row.version)}, links)

    def entered(self, head: RunHead, worker: str) -> _Segment:
        """See `Observer.entered`."""
        return _Segment(self, head, worker)

    def decided(self, locked: Locked, change: Transition) -> None:
        """See `Observer.decided`. Only what changes the owner is a span: the others leave the number as it is."""
        row, seq = locked.row, change.new_execution_seq
        if seq is None:
            return
        at, facts = locked.now * _NS, _run(row.run_id, row.workflow, row.version)
        told = next((event for event in change.events if event.kind in CHANGES), None)
        name = CHANGES[told.kind] if told is not None else "taken"
        reason = str(told.told().get("reason") or "") if told is not None else ""
        if locked.lease is not None and row.state in runs.OWNED:
            began = locked.lease.acquired_at * _NS
            lost = {**facts, "ironflow.worker.session": locked.lease.session_id, "ironflow.outcome": name}
            span = self.of_number(row.run_id, row.execution_seq, "segment", began, lost)
            if name == "recovered":
                span.set_status(Status(StatusCode.ERROR, reason))
            span.end(at)
        outcome = {"ironflow.reason": reason} if reason else {}
        self._instant(row.run_id, seq, name, at, {**facts, **outcome})
        if change.ended and change.state is not None:
            self.run_ended(row.run_id, {**facts, "ironflow.outcome": change.state}, row.created_at, at)

    def wrote(self, transitions: int, seconds: float) -> None:
        """See `Observer.wrote`. A group commit belongs to many runs, and so to none of their traces."""

    def deleted(self, runs: int) -> None:
        """See `Observer.deleted`. Their traces ended long ago."""

    # ---- spans

    def of_number(
        self, run_id: str, seq: int, name: str, at: int, attributes: Attributes, links: Sequence[Link] = ()
    ) -> Span:
        """Begin the span of one `execution_seq` at a time (ns), linked to the number before it."""
        if seq > 0:
            links = [*links, Link(self._context(run_id, span_of(run_id, seq - 1)))]
        self._ids.span_id = span_of(run_id, seq)
        return self._tracer.start_span(
            f"{name} {attributes['ironflow.workflow']}",
            _parent(self._context(run_id, root_of(run_id))),
            attributes={**attributes, "ironflow.execution_seq": seq},
            links=links,
            start_time=at,
        )

    def of_try(self, segment: Span, name: str, attributes: Attributes) -> Span:
        """Begin the span of a step's try, now."""
        return self._tracer.start_span(
            name, trace.set_span_in_context(segment, otel_context.Context()), attributes=attributes
        )

    def run_ended(self, run_id: str, attributes: Attributes, created_at: int, at: int) -> None:
        """Make the span at the root: only now is known how long it is. Times in ms and ns."""
        if not self._sampled(run_id):
            return
        self._ids.trace_id, self._ids.span_id = trace_of(run_id), root_of(run_id)
        name = f"run {attributes['ironflow.workflow']}"
        span = self._tracer.start_span(name, otel_context.Context(), attributes=attributes, start_time=created_at * _NS)
        if attributes["ironflow.outcome"] == runs.FAILED:
            span.set_status(Status(StatusCode.ERROR))
        span.end(max(at, created_at * _NS))

    def _instant(
        self, run_id: str, seq: int, name: str, at: int, attributes: Attributes, links: Sequence[Link] = ()
    ) -> None:
        self.of_number(run_id, seq, name, at, attributes, links).end(at)

    def _context(self, run_id: str, span_id: int) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED if self._sampled(run_id) else TraceFlags.DEFAULT)
        return SpanContext(trace_of(run_id), span_id, True, flags)

    def _sampled(self, run_id: str) -> bool:
        """What the sampler says of the root: the same in every process, so a trace is whole or not there at all."""
        result = self.provider.sampler.should_sample(otel_context.Context(), trace_of(run_id), "run")
        return result.decision is Decision.RECORD_AND_SAMPLE


class _Segment:
    """The spans of one segment; see `Watch`."""

    __slots__ = ("_facts", "_head", "_span", "_tracing", "_tries")

    def __init__(self, tracing: Tracing, head: RunHead, worker: str) -> None:
        self._tracing = tracing
        self._head = head
        self._facts = {**_run(head.run_id, head.workflow, head.version), "ironflow.worker": worker}
        self._span = tracing.of_number(head.run_id, head.execution_seq, "segment", time.time_ns(), self._facts)
        #: by step id: the span of the try that runs, and when its body ended (ns)
        self._tries: dict[str, tuple[Span, int | None]] = {}

    def starting(self, step_id: str, name: str, try_no: int, context: Context) -> Context:
        """See `Watch.starting`. What the author's own code traces in its body lies below the span of the step."""
        facts = {**self._facts, "ironflow.step": name, "ironflow.step_id": step_id, "ironflow.try": try_no}
        span = self._tracing.of_try(self._span, name, facts)
        self._tries[step_id] = span, None
        inner = context.copy()
        inner.run(otel_context.attach, inner.run(trace.set_span_in_context, span))
        return inner

    def ended(self, step_id: str) -> None:
        known = self._tries.get(step_id)
        if known is not None:
            self._tries[step_id] = known[0], time.time_ns()

    def committed(self, events: Sequence[Event], left: str | None) -> None:
        for event in events:
            if event.kind in OUTCOMES:
                self._try_ended(event)
            elif event.kind == j.STEP_INTERRUPTED:
                self._span.add_event("step interrupted", {"ironflow.step_id": event.step_id or ""})
        if left is None:
            return
        self._end_tries("abandoned")
        self._span.set_attribute("ironflow.outcome", left)
        now = time.time_ns()
        self._span.end(now)
        if left in runs.TERMINAL:
            head, outcome = self._head, {**self._facts, "ironflow.outcome": left}
            self._tracing.run_ended(head.run_id, outcome, head.created_at, now)

    def lost(self, *, given_back: bool) -> None:
        """See `Watch.lost`. The segment's own span is exported by whoever has the run now."""
        self._end_tries("released" if given_back else "lost")

    def _try_ended(self, event: Event) -> None:
        span, at = self._tries.pop(event.step_id or "", (None, None))
        if span is None:
            return
        outcome = OUTCOMES[event.kind]
        span.set_attribute("ironflow.outcome", outcome)
        if outcome in ("failed", "retrying"):
            kind = _error_type(event)
            span.set_attribute("error.type", kind)
            span.set_status(Status(StatusCode.ERROR, kind))
        span.end(at)

    def _end_tries(self, outcome: str) -> None:
        for span, at in self._tries.values():
            span.set_attribute("ironflow.outcome", outcome)
            span.end(at)
        self._tries.clear()


def _run(run_id: str, workflow: str, version: str) -> dict[str, str | int | bool]:
    return {"ironflow.run_id": run_id, "ironflow.workflow": workflow, "ironflow.workflow.version": version}


def _error_type(event: Event) -> str:
    found: Any = parse(event.payload or "{}").get("error")
    return str(found.get("type", "")) if isinstance(found, dict) else ""


def _parent(context: SpanContext) -> otel_context.Context:
    return trace.set_span_in_context(NonRecordingSpan(context), otel_context.Context())
