"""Health checks, metrics for Prometheus, and answers during an outage."""

from __future__ import annotations

import platform
import threading
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from democrai_sandbox import __version__
from democrai_sandbox.access.node import ask_in_time, utc_now
from democrai_sandbox.access.values import RequestFilter, RequestState
from democrai_sandbox.errors import ExternalAccessCheckFailed, SandboxError, SchemaOutdated
from democrai_sandbox.host.directories import full_folders
from democrai_sandbox.host.scopes import Scope

from .auth import Visitor, admitted, require_administrator, sandbox_of, visit_of, visitor_of
from .render import PlainResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric

    from democrai_sandbox.host.sandbox import Sandbox

T = TypeVar("T")

_THREADS = 8
_limiter = CapacityLimiter(_THREADS)


async def aside(work: Callable[[], T]) -> T:
    """Run work on a thread that is reserved for answers during an outage; waiting database calls cannot fill these."""
    return await to_thread.run_sync(work, limiter=_limiter)


def observer(scope: Scope) -> Callable[[Request], Awaitable[Visitor]]:
    """Return a dependency like ``holder`` that also works while the database is unreachable."""

    async def found(request: Request) -> Visitor:
        return admitted(request, await aside(partial(_visitor_or_known, request)), scope)

    return found


def _visitor_or_known(request: Request) -> Visitor | None:
    """Return the user of an HTTP request, from the database or, if that does not answer, from memory."""
    sandbox = sandbox_of(request)
    if sandbox.accounts is None:
        return visitor_of(request)  # users of the embedding application, which handles them itself
    try:
        return ask_in_time(sandbox.access.node, partial(visitor_of, request))
    except ExternalAccessCheckFailed:
        known = sandbox.accounts.recall(visit_of(request))
        if known is None:
            raise
    identity, roles = known
    return Visitor(identity, sandbox.caller_with(identity, roles), roles.name)


health = APIRouter(tags=["health"], default_response_class=PlainResponse)
_LATE_AFTER_POLLS = 5
_LATE_AFTER = 5.0
_ANSWER_SECONDS = 1.0
State = Literal["ok", "degraded", "failed"]
"""Degraded: a failed part that serving does not need."""


class Readiness(BaseModel):
    """Health report. It is public, so it has names and states only; the status page has the reasons."""

    ready: bool
    checks: dict[str, State]


@health.get("/health/live")
async def live() -> dict[str, bool]:
    """Answer, which shows that the event loop runs."""
    return {"live": True}


@health.get("/health/ready")
async def ready(request: Request) -> PlainResponse:
    """Report whether this node is ready for HTTP requests."""
    found = await aside(partial(readiness, sandbox_of(request)))
    return PlainResponse(found.model_dump(), status_code=200 if found.ready else 503)


def readiness(sandbox: Sandbox) -> Readiness:
    """Check everything that serving needs. Blocking: it asks the database, the spawn server and the helper."""
    node = sandbox.access.node.status
    late = max(_LATE_AFTER, _LATE_AFTER_POLLS * sandbox.settings.poll_seconds)
    reachable, schema = _database(sandbox)
    found = {
        "store": reachable,
        "schema": schema,
        "snapshot": node.store_reachable and node.seconds_since_refresh <= late,
        "runtime": sandbox.is_started and not sandbox.closing.is_set(),
    }
    found["disk"] = not full_folders(sandbox.settings)
    if (spawn := sandbox.kernel.spawn) is not None:
        found["spawn_server"] = spawn.answers(_ANSWER_SECONDS)
    egress = sandbox.kernel.egress
    if egress is not None:
        found["helper"] = egress.answers(_ANSWER_SECONDS)
    checks: dict[str, State] = {name: "ok" if is_well else "failed" for name, is_well in found.items()}
    if egress is not None:
        # The helper works without its keeper, which only restarts it.
        checks["keeper"] = "ok" if egress.is_kept else "degraded"
    # Without events, decisions arrive by polling, a moment later; the snapshot shows their age.
    polling: State = "degraded" if reachable and found["snapshot"] else "failed"
    checks["events"] = "ok" if node.bus_connected else polling
    return Readiness(ready="failed" not in checks.values(), checks=checks)


def _database(sandbox: Sandbox) -> tuple[bool, bool]:
    """Return whether the database answers and has the required schema."""
    try:
        ask_in_time(sandbox.access.node, sandbox.access.store.check_schema)
    except SchemaOutdated:
        return True, False
    except SandboxError:
        return False, False
    return True, True


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
        build = {"version": __version__, "python": platform.python_version(), "node": node.node}
        yield InfoMetricFamily("democrai_build", "Version of this node.", value=build)
        checked = checks(sandbox)
        yield _counter("democrai_checks", "Access checks by the layer that decided.", ("layer", "result"), checked)
        yield _gauge(
            "democrai_refresh_lag_seconds", "Seconds since decisions were last read.", node.seconds_since_refresh
        )
        yield _gauge("democrai_events_connected", "1 while events of other nodes arrive.", int(node.bus_connected))
        failures = 0 if sandbox.kernel.egress is None else sandbox.kernel.egress.failures
        yield CounterMetricFamily("democrai_helper_failures", "Failed updates of the allowlist.", value=failures)
        yield from _processes(sandbox)
        limits, events = sandbox.runtime.limits_reached, sandbox.runtime.worker_events
        yield _counter("democrai_limits_reached", "Calls that failed because of a limit.", ("subject", "limit"), limits)
        yield _counter("democrai_worker_events", "Starts and ends of worker processes.", ("subject", "event"), events)
        yield _gauges("democrai_extensions", "Extensions by state.", ("kind", "state"), _extensions(sandbox))

    def _stored(self) -> Iterator[Metric]:
        store = self._sandbox.access.store
        waiting = store.counts(RequestFilter(states=(RequestState.PENDING,))).get(RequestState.PENDING, 0)
        yield _gauge("democrai_pending_requests", "Pending requests, up to 10,000.", waiting)
        since = store.oldest_pending()
        age = 0.0 if since is None else max(0.0, (utc_now() - since).total_seconds())
        yield _gauge("democrai_pending_oldest_seconds", "Age of the oldest pending request; 0 without one.", age)
        kept = {(state.value,): number for state, number in self._sandbox.runtime.store.task_counts().items()}
        yield _gauges("democrai_tasks", "Stored tasks by state.", ("state",), kept)

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
    up = {(name,): int(part.up) for name, part in parts.items()}
    yield _gauges("democrai_process_up", "1 while a process of the kernel layer answers.", ("process",), up)
    restarts = {(name,): part.restarts for name, part in parts.items()}
    yield _counter("democrai_process_restarts", "Restarts of the process.", ("process",), restarts)


def _extensions(sandbox: Sandbox) -> dict[tuple[str, ...], int]:
    found: Counter[tuple[str, ...]] = Counter()
    for extension in sandbox.runtime.extensions:
        runtime = sandbox.runtime.installed(extension.kind)
        state = "ok" if runtime is None or extension.is_broken else runtime.status(extension.name).state.value
        found[extension.kind.value, "broken" if extension.is_broken else state] += 1
    return dict(found)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(name: str, text: str, labels: tuple[str, ...], numbers: Mapping[Any, int]) -> Metric:
    return _labelled(GaugeMetricFamily(name, text, labels=labels), numbers)


def _counter(name: str, text: str, labels: tuple[str, ...], numbers: Mapping[Any, int]) -> Metric:
    return _labelled(CounterMetricFamily(name, text, labels=labels), numbers)


def _labelled(family: CounterMetricFamily | GaugeMetricFamily, numbers: Mapping[Any, int]) -> Metric:
    for values, number in dict(numbers).items():  # a copy, because other threads count on
        family.add_metric(values, number)
    return family
