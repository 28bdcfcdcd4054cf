"""Whether traces are wanted, and how spans leave the process: by the OTLP exporter, in a thread, from a bounded queue.

Nothing of OpenTelemetry is imported before the environment asks for it. Its own variables are the only settings:
`OTEL_EXPORTER_OTLP_ENDPOINT` (or `…_TRACES_ENDPOINT`) turns traces on, `OTEL_SDK_DISABLED` and
`OTEL_TRACES_EXPORTER=none` turn them off again, and those of headers, sampling, batches and names mean what they
always mean.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ironflow.observe.tracing import Tracing

log = logging.getLogger("ironflow.observe")

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
#: Where the exporter says that its collector is away, and how often each of its lines is worth reading, seconds.
_EXPORTERS_LOG: Final = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
_AGAIN_S: Final = 300.0
#: How long a leaving process waits for its last spans to be taken, seconds.
GOODBYE_S: Final = 1.0


def wanted(environment: Mapping[str, str] | None = None) -> bool:
    """Whether the environment asks for traces."""
    given = os.environ if environment is None else environment
    if given.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if given.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in ("", "otlp"):
        return False
    return any(given.get(name, "").strip() for name in ENDPOINTS)


class Exporting:
    """Traces that are exported. Made by `exporting`; closed when the engine closes."""

    def __init__(self, exporter: Any) -> None:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from ironflow.observe.tracing import Tracing

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        self._processor = BatchSpanProcessor(exporter)
        self.tracing: Tracing = Tracing(self._processor, Resource.create({} if named else {"service.name": "ironflow"}))

    def close(self) -> None:
        """Hand over what is queued, but wait only a moment: a collector that is away keeps nobody from leaving."""
        last = threading.Thread(target=self._shut_down, name="ironflow-last-spans", daemon=True)
        last.start()
        last.join(GOODBYE_S)

    def _shut_down(self) -> None:
        try:
            self.tracing.provider.shutdown()
        except Exception as error:
            log.debug("the last spans could not be exported: %s", error)


class Seldom(logging.Filter):
    """Lets each line of a program through once in five minutes: a collector may be away for a night."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        place = record.pathname, record.lineno
        if record.created - self._said.get(place, float("-inf")) < _AGAIN_S:
            return False
        self._said[place] = record.created
        return True


_SELDOM: Final = Seldom()


def exporting() -> Exporting | None:
    """Begin to export, where the environment asks for it.

    What it asks for is often set for every program of a host at once. So a missing library or an exporter that cannot
    be made is a warning, and the program goes on without traces.
    """
    if not wanted():
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        log.warning("traces are asked for by the environment, and cannot be made: pip install 'ironflow-engine[otel]'")
        return None
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "http/protobuf"):
        log.warning("traces leave by http/protobuf; OTEL_EXPORTER_OTLP_PROTOCOL=%s is not spoken here", protocol)
    logging.getLogger(_EXPORTERS_LOG).addFilter(_SELDOM)  # the same one again is not added twice
    try:
        return Exporting(OTLPSpanExporter())
    except Exception as error:
        log.warning("traces are off: their exporter could not be made: %s", error)
        return None
