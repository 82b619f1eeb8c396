"""Answers during an outage: on separate threads, which waiting database calls cannot fill, to users in memory."""

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
