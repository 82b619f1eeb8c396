"""What is told during an outage, too: on threads that requests to the database do not fill, to those in memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from democrai_sandbox.access.probe import ask_in_time
from democrai_sandbox.errors import ExternalAccessCheckFailed

from .visitors import Visitor, admitted, sandbox_of, visit_of, visitor_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from democrai_sandbox.host.scopes import Scope

T = TypeVar("T")

_THREADS = 8
_limiter = CapacityLimiter(_THREADS)


async def aside(work: Callable[[], T]) -> T:
    """Do work on a thread that is kept for what has to be answered during an outage."""
    return await to_thread.run_sync(work, limiter=_limiter)


def observer(scope: Scope) -> Callable[[Request], Awaitable[Visitor]]:
    """Return a dependency like ``holder``, for what is told while the database is away as well."""

    async def found(request: Request) -> Visitor:
        return admitted(request, await aside(partial(_visitor_or_known, request)), scope)

    return found


def _visitor_or_known(request: Request) -> Visitor | None:
    """Return who sends a request: by the database, or by what is in memory when that does not answer."""
    sandbox = sandbox_of(request)
    if sandbox.accounts is None:
        return visitor_of(request)  # the application's own people: it knows best what they need
    try:
        return ask_in_time(sandbox.access.node, partial(visitor_of, request))
    except ExternalAccessCheckFailed:
        known = sandbox.accounts.recall(visit_of(request))
        if known is None:
            raise
    identity, roles = known
    return Visitor(identity, sandbox.caller_with(identity, roles), roles.name)
