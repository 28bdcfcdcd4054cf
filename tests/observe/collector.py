"""A collector of traces for tests: takes what exporters send over HTTP, in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collected:
    """A span as it arrived."""

    def __init__(self, span: Any, service: str) -> None:
        self.name: str = span.name
        self.service = service
        self.trace = int.from_bytes(span.trace_id, "big")
        self.id = int.from_bytes(span.span_id, "big")
        self.parent = int.from_bytes(span.parent_span_id, "big")
        self.links = [(int.from_bytes(one.trace_id, "big"), int.from_bytes(one.span_id, "big")) for one in span.links]
        self.began, self.ended = span.start_time_unix_nano, span.end_time_unix_nano
        self.facts: dict[str, Any] = {
            one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes
        }


class Collector:
    """What has arrived so far."""

    def __init__(self) -> None:
        self.spans: list[Collected] = []
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the test looks at the spans."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def endpoint(self) -> str:
        """What `OTEL_EXPORTER_OTLP_ENDPOINT` is to be."""
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, body: bytes) -> None:
        """One request of an exporter's."""
        request = ExportTraceServiceRequest.FromString(body)
        found = []
        for resource in request.resource_spans:
            named = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                found += [Collected(span, named.get("service.name", "")) for span in scope.spans]
        with self._lock:
            self.spans += found

    def named(self, name: str) -> list[Collected]:
        """The spans of this name, in the order of their beginning."""
        with self._lock:
            return sorted((span for span in self.spans if span.name == name), key=lambda span: span.began)


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens while the block runs."""
    collector = Collector()
    thread = threading.Thread(target=collector.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        thread.join()
