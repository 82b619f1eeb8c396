"""Errors of idempotency keys."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError


class IdempotencyConflict(SandboxError, RuntimeError):
    """The idempotency key belongs to another HTTP request.

    Nothing was done. The status is 409.
    """

    code = "idempotency_conflict"
    guidance = """
    Cause: The same caller used the key within the last 24 hours with another path or body. Or the first HTTP request
    was carried out, and its answer was too large to keep.
    Fix: Send a new key with every new HTTP request; repeat a key only to repeat the same HTTP request.
    Example:
    POST /api/v1/requests/01K9A/approve   Idempotency-Key: 7
    POST /api/v1/requests/01K9B/approve   Idempotency-Key: 7
    -> 409 {"code": "idempotency_conflict", ...}
    See: api.md
    """


class IdempotencyRunning(SandboxError, RuntimeError):
    """The first HTTP request with this idempotency key is still running.

    Nothing was done. The status is 409, and ``Retry-After`` is the waiting time in seconds.
    """

    code = "idempotency_running"
    guidance = """
    Cause: The HTTP request was repeated before the first one was answered.
    Fix: Wait for the time in `Retry-After`, then repeat the same HTTP request with the same key.
    Example:
    A client times out after 1 s and repeats its POST with the same key at once:
    -> 409 {"code": "idempotency_running", ...}   Retry-After: 1
    See: api.md
    """
