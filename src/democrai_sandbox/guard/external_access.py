"""Access questions before an access: first the policies of the call chain, then the decider, as in every check."""

from __future__ import annotations

import json
from functools import lru_cache

from democrai_sandbox.policy import (
    EXTERNAL_URL_LOCKED,
    AccessDecision,
    DecisionCode,
    InvalidInputError,
    Operation,
    ResourceType,
    TargetKind,
    normalise_target,
    parse_request,
    read_operation,
)

from . import _core
from .interface import current_guard

_LONGEST_REMEMBERED = 512
_LONGEST_CONTEXT = 65536
_ALLOWED = AccessDecision(
    allowed=True,
    code=DecisionCode.SANDBOX_ALLOWLIST,
    requires_approval=False,
    message="Allowed by the sandbox allowlist of the subject.",
)
_LOCKED = {
    ResourceType.NETWORK: EXTERNAL_URL_LOCKED,
    ResourceType.FILESYSTEM: "This path is not available to guarded code.",
    ResourceType.SYSTEM_DEPENDENCY: "This program is not available to guarded code.",
}


def ask_external_access(
    resource_type: str,
    operation: str,
    target: str,
    *,
    register_request: bool = True,
    resume_action: str = "",
    resume_context: str | None = None,
) -> AccessDecision:
    """Return whether the guarded subject may do this; the decider may file a request.

    The identity comes from the guard's state. ``resume_context`` is JSON text.
    """
    resource, act = read_operation(resource_type, operation)
    _check_context(resume_context)
    if resource is ResourceType.SYSTEM_DEPENDENCY and _is_declared(act, target):
        return _ALLOWED
    short = len(_exact(target)) <= _LONGEST_REMEMBERED
    kind, exact, port = (_place if short else _place.__wrapped__)(str(resource), target)
    answer = _core.ask(kind, act.value, exact, port, register_request, resume_action, resume_context)
    if answer is None:
        raise InvalidInputError.of("no guard is active; call the access service directly")
    if isinstance(answer, AccessDecision):
        return answer
    if answer is True:
        return _ALLOWED
    message = _LOCKED[resource]
    return AccessDecision(allowed=False, code=DecisionCode.NOT_ENABLED, requires_approval=False, message=message)


def location_of(path: str) -> str:
    """Return an absolute path with all links resolved, for host code; refused inside a guard."""
    return _core.location(path)


def _check_context(text: object) -> None:
    """Reject invalid JSON while still guarded, because the decider could only report a failed check."""
    if text is None:
        return
    if type(text) is not str or len(text) > _LONGEST_CONTEXT:
        raise InvalidInputError.of(f"expected JSON of at most {_LONGEST_CONTEXT} characters", pointer="/resume_context")
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError.of(f"not JSON: {error}", pointer="/resume_context") from None


def _exact(target: object) -> str:
    if type(target) is not str:
        raise InvalidInputError.of(f"expected a text, got {type(target).__name__}", pointer="/target")
    return target


@lru_cache(maxsize=1024)
def _place(resource_type: str, target: str) -> tuple[str, str, int]:
    """Return the core's form of a target: plain values, which callers cannot change in the cache."""
    if resource_type != ResourceType.NETWORK:
        kind = "path" if resource_type == ResourceType.FILESYSTEM else "dependency"
        return kind, normalise_target(ResourceType(resource_type), target), 0
    parsed = parse_request(target)
    if parsed.kind is TargetKind.URL:
        # As written, so that an ambiguous path is recognized as one again.
        return "url", target, 0
    if parsed.kind is TargetKind.UNIX:
        return "unix", parsed.socket or "", 0
    return "host", parsed.host, parsed.port or 0


def _is_declared(operation: Operation, target: str) -> bool:
    """Return whether the call chain declares a program; the core has no rules for programs, because it starts none."""
    view = current_guard()
    wanted = (ResourceType.SYSTEM_DEPENDENCY, operation, target)
    rules = () if view is None else (rule for link in view.subject_allow_chain for rule in link.rules)
    return any((rule.resource_type, rule.operation, rule.normalized_target) == wanted for rule in rules)
