"""Health checks, and answers during an outage: on separate threads, which waiting database calls cannot fill."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Request
from pydantic import BaseModel

from democrai_sandbox.access.node import ask_in_time
from democrai_sandbox.errors import ExternalAccessCheckFailed, SandboxError, SchemaOutdated
from democrai_sandbox.host.directories import full_folders

from .auth import Visitor, admitted, sandbox_of, visit_of, visitor_of
from .plain_json import PlainResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.host.scopes import Scope

T = TypeVar("T")

_THREADS = 8
_limiter = CapacityLimiter(_THREADS)


async def aside(work: Callable[[], T]) -> T:
    """Run work on a thread that is reserved for answers during an outage."""
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
