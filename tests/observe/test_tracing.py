"""The spans of a run: whoever makes them, they are one trace, and they hold names and never values."""

from __future__ import annotations

import contextvars
import json
from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.observe.build import COMPLETED, NOW, head, leased, row, step

from ironflow.model import journal as j
from ironflow.model import operator, recovery
from ironflow.model import run as runs
from ironflow.model.transition import Locked
from ironflow.observe.trace_ids import caller_of, root_of, span_of, trace_of
from ironflow.observe.tracing import Tracing

HERE = contextvars.copy_context()
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
SECRET = "4111-1111-1111-1111"


class Process:
    """One process that traces, and what it has exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracing = Tracing(SimpleSpanProcessor(self.exporter))

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found


@pytest.fixture
def process() -> Process:
    return Process()


def linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def test_ids_follow_from_the_run_and_nothing_else() -> None:
    assert trace_of("r1") == trace_of("r1") != trace_of("r2")
    assert len({span_of("r1", n) for n in range(50)} | {root_of("r1")}) == 51
    assert trace_of("r1").bit_length() > 64


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "nonsense",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        TRACEPARENT + "-more",
    ],
)
def test_what_is_no_traceparent_is_no_caller(header: str | None) -> None:
    assert caller_of(header) is None


def test_a_traceparent_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert caller_of("01" + TRACEPARENT[2:] + "-more") == caller_of(TRACEPARENT)


def test_a_run_on_one_worker_is_a_root_with_segments_and_tries_below(process: Process) -> None:
    watch = process.tracing.entered(head(seq=1), "worker-1")
    watch.starting("0:charge", "charge", 2, HERE)
    watch.ended("0:charge")
    watch.committed([COMPLETED], runs.SLEEPING)
    process.tracing.entered(head(seq=2), "worker-2").committed([], runs.COMPLETED)

    root, charge = process.one("run order"), process.one("charge")
    first, second = [span for span in process.spans() if span.name == "segment order"]
    assert {span.context.trace_id for span in process.spans() if span.context} == {trace_of("r1")}
    assert (span_id(root), parent(root)) == (root_of("r1"), None)
    assert root.start_time == (NOW - 2_000) * 1_000_000
    assert (parent(first), parent(second), parent(charge)) == (root_of("r1"), root_of("r1"), span_id(first))
    assert linked(second) == [span_id(first)] == [span_of("r1", 1)]
    assert facts(charge) == {
        "ironflow.run_id": "r1",
        "ironflow.workflow": "order",
        "ironflow.workflow.version": "1",
        "ironflow.worker": "worker-1",
        "ironflow.step": "charge",
        "ironflow.step_id": "0:charge",
        "ironflow.try": 2,
        "ironflow.outcome": "completed",
    }
    assert [facts(span)["ironflow.outcome"] for span in (first, second, root)] == ["sleeping", "completed", "completed"]


def test_a_killed_worker_s_segment_is_exported_by_who_recovers_the_run(process: Process) -> None:
    dead, scanner, heir = process, Process(), Process()
    dead.tracing.entered(head(seq=1), "worker-1").starting("0:charge", "charge", 1, HERE)
    assert dead.spans() == []

    locked = leased(seq=1)
    scanner.tracing.decided(locked, recovery.requeue(locked, recovery.RecoveryPolicy(), charged=True, reason="gone"))
    heir.tracing.entered(head(seq=3), "worker-2").committed([step(j.STEP_INTERRUPTED)], runs.COMPLETED)

    lost, recovered, last = scanner.one("segment order"), scanner.one("recovered order"), heir.one("segment order")
    assert span_id(lost) == span_of("r1", 1)
    assert (lost.start_time, lost.end_time) == ((NOW - 1_500) * 1_000_000, NOW * 1_000_000)
    assert facts(lost)["ironflow.worker.session"] == "session-1"
    assert lost.status.status_code is StatusCode.ERROR
    assert linked(recovered) == [span_id(lost)]
    assert linked(last) == [span_id(recovered)]
    assert [event.name for event in last.events] == ["step interrupted"]
    everything = [*scanner.spans(), *heir.spans()]
    assert {span.context.trace_id for span in everything if span.context} == {trace_of("r1")}
    assert len({span_id(span) for span in everything}) == len(everything)


def test_a_worker_that_lost_its_run_leaves_the_segment_to_the_new_owner_and_ends_its_tries(process: Process) -> None:
    watch = process.tracing.entered(head(), "worker-1")
    watch.starting("0:charge", "charge", 1, HERE)
    watch.lost(given_back=False)
    (span,) = process.spans()
    assert (span.name, facts(span)["ironflow.outcome"]) == ("charge", "lost")


def test_a_person_s_cancel_ends_segment_and_run(process: Process) -> None:
    locked = leased(expired_ms=-10_000)
    change = operator.cancel(locked, "ann")
    assert change is not None
    process.tracing.decided(locked, change)
    names = [span.name for span in process.spans()]
    assert names == ["segment order", "cancelled order", "run order"]
    assert facts(process.one("run order"))["ironflow.outcome"] == "cancelled"


def test_what_leaves_the_owner_alone_is_no_span(process: Process) -> None:
    paused = Locked(row(state=runs.PAUSED), 3, None, None, [], NOW)
    process.tracing.decided(paused, operator.resume(paused, "ann"))
    assert process.spans() == []


def test_a_creation_is_linked_to_the_span_its_caller_named(process: Process) -> None:
    process.tracing.created(row(state=runs.PENDING, seq=0), TRACEPARENT)
    created = process.one("created order")
    (link,) = created.links
    assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" == TRACEPARENT[3:-3]
    assert created.context is not None
    assert (created.context.trace_id, span_id(created)) == (trace_of("r1"), span_of("r1", 0))


def test_a_creation_inside_a_span_of_the_program_is_linked_to_that_one(process: Process) -> None:
    with TracerProvider().get_tracer("a program").start_as_current_span("request") as request:
        process.tracing.created(row(state=runs.PENDING, seq=0))
    created = process.one("created order")
    assert linked(created) == [request.get_span_context().span_id]
    assert parent(created) == root_of("r1")


def test_what_a_body_traces_itself_lies_below_its_step(process: Process) -> None:
    inner = InMemorySpanExporter()
    authors = TracerProvider()
    authors.add_span_processor(SimpleSpanProcessor(inner))
    watch = process.tracing.entered(head(), "worker-1")
    context = watch.starting("0:charge", "charge", 1, HERE)

    def body() -> None:
        with authors.get_tracer("author").start_as_current_span("POST /charges"):
            pass

    context.run(body)
    watch.ended("0:charge")
    watch.committed([COMPLETED], None)
    (span,) = inner.get_finished_spans()
    assert parent(span) == span_id(process.one("charge"))
    assert span.context is not None
    assert span.context.trace_id == trace_of("r1")
    assert not trace.get_current_span().get_span_context().is_valid


def test_no_span_holds_a_payload_or_a_message(process: Process) -> None:
    watch = process.tracing.entered(head(), "worker-1")
    error = {"type": "shop.CardDeclined", "message": f"card {SECRET} was declined", "args": [SECRET]}
    payload = json.dumps({"t": NOW, "error": error, "result": SECRET})
    for kind in (j.STEP_RETRYING, j.STEP_COMPLETED, j.STEP_FAILED):
        watch.starting("0:charge", "charge", 1, HERE)
        watch.ended("0:charge")
        watch.committed([step(kind, payload=payload)], None)
    watch.committed([], runs.FAILED)
    assert [facts(span).get("error.type") for span in process.spans()[:3]] == [
        "shop.CardDeclined",
        None,
        "shop.CardDeclined",
    ]
    assert SECRET not in "".join(span.to_json() for span in process.spans())


def test_every_process_keeps_or_drops_the_same_traces_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.5")
    one, other = Process(), Process()
    ids = [f"run-{n}" for n in range(60)]
    for run_id in ids:
        watch = one.tracing.entered(head(run_id, 1), "worker-1")
        watch.starting("0:charge", "charge", 1, HERE)
        watch.committed([COMPLETED], runs.SLEEPING)
        other.tracing.entered(head(run_id, 2), "worker-2").committed([], runs.COMPLETED)
    kept = {run_id: _spans_of(run_id, one.spans(), other.spans()) for run_id in ids}
    assert set(kept.values()) == {(0, 0), (2, 2)}


def _spans_of(run_id: str, *exported: Sequence[ReadableSpan]) -> tuple[int, ...]:
    return tuple(
        sum(span.context is not None and span.context.trace_id == trace_of(run_id) for span in spans)
        for spans in exported
    )
