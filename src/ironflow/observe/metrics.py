"""The metrics: their names, labels and buckets, and the registry that holds them.

One table (`INSTRUMENTS`) names every metric; the registry, the dashboard, the alert rules and their tests follow it.
The registry is Ironflow's own, so nothing of the program around it appears here, and nothing here in the program's.

A label takes names that code gives (workflows, steps, routes, groups), never an id or a value. Should one of them grow
without end all the same, its first names are kept and the rest is `other`: a monitoring system dies of labels.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

from ironflow.errors import InvalidSettings
from ironflow.extras import not_installed

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: A label keeps so many names; what comes later is `other`.
MOST_NAMES: Final = 500
OTHER: Final = "other"
#: Groups may be one per customer: so many are shown by name at a time.
MOST_GROUPS: Final = 20

Kind = Literal["counter", "gauge", "histogram"]

_FAST: Final = (0.0002, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_STEPS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
_RUNS: Final = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0, 86400.0, 604800.0)
_RECOVERY: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 300.0)
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_REQUESTS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric. `name` is what is asked for: a counter's ends in `_total`, a histogram has `_bucket`, `_sum`, …"""

    name: str
    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


INSTRUMENTS: Final = (
    Instrument("ironflow_runs_total", "counter",
               "runs that ended, counted by who ended them: the worker that executed the run, also where a server "
               "committed it; a server those that it cancelled or gave up", ("workflow", "status")),
    Instrument("ironflow_run_seconds", "histogram",
               "from the creation of a run to its end, waits and queue included", ("workflow",), _RUNS),
    Instrument("ironflow_runs_deleted_total", "counter",
               "ended runs that this process deleted because of their age (`run_retention`)"),
    Instrument("ironflow_step_seconds", "histogram",
               "how long the body of a try executed; outcome: completed, failed, retrying or cancelled",
               ("workflow", "step", "outcome"), _STEPS),
    Instrument("ironflow_worker_queue_depth", "gauge",
               "queued runs that this worker could take (on a server: that any worker could)"),
    Instrument("ironflow_worker_queue_blocked_runs", "gauge",
               "those of them that wait for a place in a full group", ("group",)),
    Instrument("ironflow_leases_lost_total", "counter",
               "segments that a worker stopped because their run was not its own any more"),
    Instrument("ironflow_recoveries_total", "counter",
               "runs taken from an owner that was lost; evidence: proof, opening, expiry, suspicion or invariant; "
               "outcome: requeued, or failed where the ceiling was reached", ("evidence", "outcome")),
    Instrument("ironflow_recovery_seconds", "histogram",
               "from the end of a lost owner's lease (it expired, or its owner's death was seen) to the queue", (),
               _RECOVERY),
    Instrument("ironflow_claims_total", "counter", "segments that this worker began: runs it took"),
    Instrument("ironflow_commit_batch_size", "histogram", "transitions committed together", (), _BATCHES),
    Instrument("ironflow_commit_seconds", "histogram", "how long such a group commit took", (), _FAST),
    Instrument("ironflow_http_requests_total", "counter",
               "requests answered, by the pattern of their route", ("route", "method", "status")),
    Instrument("ironflow_http_request_seconds", "histogram",
               "from a request to the end of its answer (streams and held polls are open for long by design)",
               ("route", "method"), _REQUESTS),
)  # fmt: skip


class Metrics:
    """Every instrument in a registry of its own. One per process; `close` makes room for the next.

    Raises:
        InvalidSettings: the library is not installed, or the process has its metrics already: a second registry would
            silently take half of the counts.
    """

    _installed: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ModuleNotFoundError as error:
            raise not_installed("the metrics library (prometheus-client)", "server") from error
        if not Metrics._installed.acquire(blocking=False):
            raise InvalidSettings(
                ["the metrics of this process are installed already: use that registry, or close it first"]
            )
        self._closed = False
        self.registry: CollectorRegistry = prometheus_client.CollectorRegistry(auto_describe=False)
        self._named = {one.name: _made(prometheus_client, one, self.registry) for one in INSTRUMENTS}
        self._children: dict[tuple[str, ...], Any] = {}
        self._names: dict[str, set[str]] = {}

    def close(self) -> None:
        """Let another registry be installed in this process. A second call does nothing."""
        if not self._closed:
            self._closed = True
            Metrics._installed.release()

    def of(self, name: str, *labels: str) -> Any:
        """The child of an instrument with these values of its labels; the same object each time."""
        key = (name, *labels)
        child = self._children.get(key)
        if child is None:
            kept = [self._kept(f"{name} {n}", label) for n, label in enumerate(labels)]
            instrument = self._named[name]
            child = instrument.labels(*kept) if kept else instrument
            if tuple(kept) == labels:  # those beyond the bound are not remembered: they could be endless
                self._children[key] = child
        return child

    def blocked(self, by_group: dict[str, int]) -> None:
        """Set how many runs wait for each group: the longest waits by name, the rest together."""
        gauge = self._named["ironflow_worker_queue_blocked_runs"]
        ranked = sorted(by_group.items(), key=lambda item: (-item[1], item[0]))
        shown = dict(ranked[:MOST_GROUPS])
        if len(ranked) > MOST_GROUPS:
            shown[OTHER] = sum(count for _, count in ranked[MOST_GROUPS:])
        gauge.clear()
        for group, count in shown.items():
            gauge.labels(group).set(count)

    def text(self, accept: str = "") -> tuple[bytes, str]:
        """All of it, in the form a scraper asks for, and the name of that form."""
        from prometheus_client.exposition import choose_encoder

        encode, kind = choose_encoder(accept)
        return encode(self.registry), kind

    def _kept(self, of: str, name: str) -> str:
        names = self._names.setdefault(of, set())
        if name not in names:
            if len(names) >= MOST_NAMES:
                return OTHER
            names.add(name)
        return name


def _made(library: Any, one: Instrument, registry: Any) -> Any:
    if one.kind == "histogram":
        return library.Histogram(one.name, one.meaning, one.labels, registry=registry, buckets=one.buckets)
    return {"counter": library.Counter, "gauge": library.Gauge}[one.kind](
        one.name, one.meaning, one.labels, registry=registry
    )
