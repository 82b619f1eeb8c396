"""Metrics for Prometheus, collected on demand."""

from __future__ import annotations

import platform
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from democrai_sandbox import __version__
from democrai_sandbox.access.node import ask_in_time, utc_now
from democrai_sandbox.access.values import RequestFilter, RequestState
from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.host.scopes import Scope

from .auth import Visitor, require_administrator, sandbox_of
from .health import aside, observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from democrai_sandbox.host.sandbox import Sandbox

metrics = APIRouter(tags=["metrics"])
_BUCKETS = (10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 86400.0, 7 * 86400.0)
_STARTED = utc_now()
_SETTLED = timedelta(seconds=2)
"""Minimum age of a decision before it is counted, because a new one of another node may not be visible yet."""


@metrics.get("/metrics")
async def show_metrics(request: Request, visitor: Annotated[Visitor, Depends(observer(Scope.STATUS_READ))]) -> Response:
    """Return the metrics to an administrator or a token of one, also during an outage."""
    require_administrator(visitor)
    state = request.app.state
    if not hasattr(state, "metrics"):
        state.metrics = Metrics(sandbox_of(request))
    return Response(await aside(state.metrics.text), media_type=CONTENT_TYPE_LATEST)


class Metrics:
    """Metrics of a sandbox. Those from the database are the same on every node."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Start to count decisions."""
        self._sandbox = sandbox
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._waits = Histogram(
            "democrai_decision_seconds",
            "Time from request to decision, since this process started.",
            registry=self._registry,
            buckets=_BUCKETS,
        )
        self._counted = _STARTED
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        with self._lock:
            self._count_waits()
            return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics that are read each time. An unreachable store has none, and one metric reports that."""
        yield from self._own()
        try:
            stored = ask_in_time(self._sandbox.access.node, lambda: tuple(self._stored()))
        except ExternalAccessCheckFailed:
            stored = ()
        yield _gauge("democrai_store_reachable", "1 while the database answers.", int(bool(stored)))
        yield from stored

    def _own(self) -> Iterator[Metric]:
        sandbox, node = self._sandbox, self._sandbox.access.node.status
        build = InfoMetricFamily("democrai_build", "Version of this node.")
        build.add_metric((), {"version": __version__, "python": platform.python_version(), "node": node.node})
        yield build
        yield _labelled(
            CounterMetricFamily(
                "democrai_checks", "Access checks by the layer that decided.", labels=("layer", "result")
            ),
            checks(sandbox),
        )
        yield _gauge(
            "democrai_refresh_lag_seconds", "Seconds since decisions were last read.", node.seconds_since_refresh
        )
        yield _gauge("democrai_events_connected", "1 while events of other nodes arrive.", int(node.bus_connected))
        failures = CounterMetricFamily("democrai_helper_failures", "Failed updates of the allowlist.")
        failures.add_metric((), 0 if sandbox.kernel.egress is None else sandbox.kernel.egress.failures)
        yield failures
        yield from _processes(sandbox)
        yield _labelled(
            GaugeMetricFamily("democrai_extensions", "Extensions by state.", labels=("kind", "state")),
            _extensions(sandbox),
        )

    def _stored(self) -> Iterator[Metric]:
        store = self._sandbox.access.store
        waiting = store.counts(RequestFilter(states=(RequestState.PENDING,))).get(RequestState.PENDING, 0)
        yield _gauge("democrai_pending_requests", "Pending requests, up to 10,000.", waiting)
        since = store.oldest_pending()
        age = 0.0 if since is None else max(0.0, (utc_now() - since).total_seconds())
        yield _gauge("democrai_pending_oldest_seconds", "Age of the oldest pending request; 0 without one.", age)
        kept = self._sandbox.runtime.store.task_counts()
        yield _labelled(
            GaugeMetricFamily("democrai_tasks", "Stored tasks by state.", labels=("state",)),
            {(state.value,): number for state, number in kept.items()},
        )

    def _count_waits(self) -> None:
        """Count the decisions since the last call; after an outage of the store, the missed ones are counted."""
        until = utc_now() - _SETTLED
        if until <= self._counted:
            return
        access = self._sandbox.access
        try:
            waits = ask_in_time(access.node, lambda: access.store.decision_seconds(self._counted, until))
        except ExternalAccessCheckFailed:
            return
        self._counted = until
        for seconds in waits:
            self._waits.observe(seconds)


def checks(sandbox: Sandbox) -> dict[tuple[str, ...], int]:
    """Return the number of checks per layer and answer."""
    seen: Counter[tuple[str, ...]] = Counter()
    for (layer, result), number in sandbox.observations.totals().items():
        seen[layer, result] += number
    for code, number in sandbox.access.service.answers().items():
        seen["approvals", code] += number
    return dict(seen)


def _processes(sandbox: Sandbox) -> Iterator[Metric]:
    """Yield the state of the kernel layer's processes, from the last check of the supervisor."""
    supervisor = sandbox.kernel.supervisor
    parts = {} if supervisor is None else supervisor.parts()
    yield _labelled(
        GaugeMetricFamily("democrai_process_up", "1 while a process of the kernel layer answers.", labels=("process",)),
        {(name,): int(part.up) for name, part in parts.items()},
    )
    yield _labelled(
        CounterMetricFamily("democrai_process_restarts", "Restarts of the process.", labels=("process",)),
        {(name,): part.restarts for name, part in parts.items()},
    )


def _extensions(sandbox: Sandbox) -> dict[tuple[str, ...], int]:
    found: Counter[tuple[str, ...]] = Counter()
    for extension in sandbox.runtime.extensions:
        runtime = sandbox.runtime.installed(extension.kind)
        state = "ok" if runtime is None or extension.is_broken else runtime.status(extension.name).state.value
        found[extension.kind.value, "broken" if extension.is_broken else state] += 1
    return dict(found)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, numbers: dict[tuple[str, ...], int]) -> Metric:
    for labels, number in numbers.items():
        family.add_metric(labels, number)
    return family
