"""Boundary of a guard: plain data, doors to functions of the host, entrances to a subject, served users, questions."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from democrai_sandbox import policy
from democrai_sandbox.policy import AccessDecision, InvalidInputError, Operation, ResourceType

from . import _core
from .contexts import policy_of
from .interface import current_guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

    from ._core import Door, Entrance


def plain(value: Any, *, lists: bool = False) -> Any:
    """Return a copy of plain data: None, bool, int, float, str, bytes, and lists, tuples and dicts of these.

    Only exact types are accepted, so no code of the value's creator runs where the copy is used. Other values raise
    ``InvalidInputError`` with their JSON pointer. With ``lists``, tuples become lists, as in JSON.
    """
    return _core.plain(value, lists)


def door(function: Callable[..., Any]) -> Door:
    """Return a callable through which guarded code calls a function of the host; refused inside a guard.

    The function runs unguarded, as ``function(view, *arguments)``: the view describes the caller (None for unguarded
    code), and the arguments are plain copies. Python functions are passed unchanged; store them, but do not call them
    there. The return value is passed back unchanged: plain data, or a future of plain data.
    """
    return _core.door(function)


def entrance(
    function: Callable[..., Any],
    *,
    exact: bool = False,
    whose: Callable[..., Any] | None = None,
    **declarations: Any,
) -> Entrance:
    """Return a callable that runs a function as the subject of these declarations; refused inside a guard.

    Any caller runs this function and no other under them. The identity and, unless ``exact``, the rights of the caller
    are added. The declarations are those of ``process_guard_context``. ``whose`` is the function of an extension that
    is finally called: its code runs under the rights in force there, also in the guard of another extension.
    """
    return _core.entrance(policy_of(**declarations), function, exact, whose)


def own_code(code: CodeType) -> None:
    """Mark the code of a module as owned by the guarded subject; without a guard, as owned by no subject.

    If it is called later without a guard, or where the host works unguarded, it runs with that subject's declarations
    and without a user. The same applies to code that the subject compiles from then on.
    """
    _core.own_code(code)


def own_process(*, confined: bool = False) -> None:
    """Give the standard streams of this process to its subjects; called by a process that runs a single subject.

    ``confined`` says that the kernel restricts the process to the subject's files and addresses. All installed packages
    may use ctypes and cffi there.
    """
    _core.own_process(confined)


@contextmanager
def serve(value: object) -> Iterator[None]:
    """Set the served value for this task and all tasks it starts; refused inside a guard. It must be immutable."""
    token = _core.serve(value)
    try:
        yield
    finally:
        _core.unserve(token)


def served() -> Any:
    """Return the current value, or None."""
    return _core.served()


_LONGEST_REMEMBERED = 512
_LONGEST_CONTEXT = 65536
_ALLOWED = AccessDecision(
    allowed=True,
    code=policy.DecisionCode.SANDBOX_ALLOWLIST,
    requires_approval=False,
    message="Allowed by the sandbox allowlist of the subject.",
)
_LOCKED = {
    ResourceType.NETWORK: policy.EXTERNAL_URL_LOCKED,
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

    First the policies of the call chain answer, then the decider, as in every check.
    The identity comes from the guard's state. ``resume_context`` is JSON text.
    """
    resource, act = policy.read_operation(resource_type, operation)
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
    return AccessDecision(allowed=False, code=policy.DecisionCode.NOT_ENABLED, requires_approval=False, message=message)


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
        return kind, policy.normalise_target(ResourceType(resource_type), target), 0
    parsed = policy.parse_request(target)
    if parsed.kind is policy.TargetKind.URL:
        # As written, so that an ambiguous path is recognized as one again.
        return "url", target, 0
    if parsed.kind is policy.TargetKind.UNIX:
        return "unix", parsed.socket or "", 0
    return "host", parsed.host, parsed.port or 0


def _is_declared(operation: Operation, target: str) -> bool:
    """Return whether the call chain declares a program; the core has no rules for programs, because it starts none."""
    view = current_guard()
    wanted = (ResourceType.SYSTEM_DEPENDENCY, operation, target)
    rules = () if view is None else (rule for link in view.subject_allow_chain for rule in link.rules)
    return any((rule.resource_type, rule.operation, rule.normalized_target) == wanted for rule in rules)
