"""When traces are made at all, and what a collector costs that is away."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from socket import create_server

import pytest
from tests.observe.build import head

from ironflow.model import run as runs
from ironflow.observe import exporting as exporting_module
from ironflow.observe.exporting import GOODBYE_S, exporting, wanted

LOG = exporting_module._EXPORTERS_LOG

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, False),
        ({ENDPOINT: " "}, False),
        ({ENDPOINT: "http://localhost:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://localhost:4318/v1/traces"}, True),
        ({ENDPOINT: "http://localhost:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINT: "http://localhost:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
    ],
)
def test_the_environment_asks_for_traces(environment: dict[str, str], expected: bool) -> None:
    assert wanted(environment) is expected


@pytest.fixture
def nobody() -> Iterator[str]:
    """The address of a collector that accepts connections and never answers."""
    with create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_collector_that_never_answers_keeps_nobody_waiting(
    nobody: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, nobody)
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "512")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    found = exporting()
    assert found is not None
    slowest = 0.0
    with caplog.at_level(logging.CRITICAL):  # what the exporter says of it is its own
        for n in range(3_000):  # many more than the queue holds
            began = time.perf_counter()
            found.tracing.entered(head(f"r{n}"), "worker-1").committed([], runs.COMPLETED)
            slowest = max(slowest, time.perf_counter() - began)
        began = time.perf_counter()
        found.close()
    assert time.perf_counter() - began < GOODBYE_S + 0.5
    assert slowest < 0.5


def test_a_collector_that_is_away_is_a_few_lines_and_not_one_per_batch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv(ENDPOINT, f"http://127.0.0.1:{server.getsockname()[1]}")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.05")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
    monkeypatch.setattr(exporting_module, "_SELDOM", exporting_module.Seldom())
    with caplog.at_level(logging.WARNING, LOG):
        found = exporting()
        assert found is not None
        for n in range(10):
            found.tracing.entered(head(f"r{n}"), "worker-1").committed([], runs.COMPLETED)
            found.tracing.provider.force_flush(1_000)
        found.close()
    said = [record for record in caplog.records if record.name == LOG]
    assert 1 <= len(said) <= 3, [record.getMessage() for record in said]


def test_a_missing_library_is_a_warning_and_no_traces(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING, "ironflow.observe"):
        assert exporting() is None
    assert "pip install 'ironflow-engine[otel]'" in caplog.text


def test_who_watches_nothing_imports_nothing() -> None:
    program = (
        "import sys, ironflow, ironflow.cli.main, ironflow.observe.observation as o\n"
        "assert o.Observation(lambda: 0).observer is None\n"
        "print([m for m in sys.modules if m.partition('.')[0] in ('opentelemetry', 'prometheus_client')])"
    )
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr
