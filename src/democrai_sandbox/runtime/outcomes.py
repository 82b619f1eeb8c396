"""What a call into an extension came to, as plain data: the one form in which it leaves a guard or a process.

``capture`` runs inside the guard, next to the extension's objects; ``release`` runs in the host and never touches one
of them. An exception is told in texts, because its methods are code of whoever raised it; the errors of the sandbox
itself are rebuilt, so that the host and the other side of a process see the same denial.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import traceback
from errno import EACCES, EPERM
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox import errors
from democrai_sandbox.guard import plain
from democrai_sandbox.policy import AccessDecision, DecisionCode, InvalidInputError, Problem, SandboxError

from .plain_values import plain_result

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

VALUE = "value"
DENIED = "denied"
INVALID = "invalid"
RESULT = "result"
REFUSED = "refused"
FAILED = "failed"

_LONGEST_TEXT = 20_000
_UNTOLD = "(its text cannot be had)"
_CLASSES: dict[str, type[Any]] = {
    name: kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)
}
_DENIALS = MappingProxyType({name: kind for name, kind in _CLASSES.items() if issubclass(kind, errors.SandboxDenied)})
_INVALID = MappingProxyType({name: kind for name, kind in _CLASSES.items() if issubclass(kind, InvalidInputError)})
_known: Mapping[str, tuple[type[SandboxError], ...]] | None = None

Outcome = tuple[Any, ...]


def capture(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Outcome:
    """Return what a call comes to. Whatever it raises is an outcome too, an exit of the interpreter included."""
    try:
        return (VALUE, plain_result(function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001 - an extension must not end its host
        return describe(error)


async def capture_async(function: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Outcome:
    """Return what a coroutine comes to. Its cancellation is the caller's, and goes on to it."""
    try:
        return (VALUE, plain_result(await function(*args, **kwargs)))
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - likewise
        return describe(error)


def describe(error: BaseException) -> Outcome:
    """Return an exception as plain data, whatever its own code makes of being looked at: that must not get out.

    Nor must one of ours with facts that it cannot have: it is made again here, as the other side will do.
    """
    try:
        told: Outcome = plain(_described(error))
        kind, *facts = plain(told)
        _rebuilt(kind, facts)
    except BaseException:  # noqa: BLE001 - properties that a traceback reads are the extension's, and may raise an exit
        return (FAILED, "Exception", _UNTOLD, "")
    return told


def _described(error: BaseException) -> Outcome:
    name = type(error).__name__
    if _DENIALS.get(name) is type(error) and isinstance(error, errors.SandboxDenied):
        return (DENIED, name, _denial_facts(error))
    if _INVALID.get(name) is type(error) and isinstance(error, InvalidInputError):
        return (INVALID, name, problem_facts(error))
    if type(error) is errors.ResultInvalid:
        return (RESULT, _text(error), problem_facts(error))
    if type(error) is not errors.ExtensionFailed and type(error) in _ours(name):
        return (REFUSED, name, _text(error), *_parts(error))
    lines = traceback.format_exception(error, limit=-20)
    return (FAILED, name, _text(error), "".join(lines)[-_LONGEST_TEXT:], *_advice(error))


def _advice(error: BaseException) -> Iterator[str]:
    """Yield what helps where the system refused a path that the guard permits."""
    if type(error) is PermissionError and error.errno in (EACCES, EPERM) and type(error.filename) is str:
        yield (
            f"The guard permits {error.filename!r}, and the system refuses it: by the permissions of the file, or by "
            "Landlock, whose lists for the application are made when it starts. "
            f"Run `democrai-sandbox explain --target {shlex.quote(error.filename)}` with the subject and the operation."
        )


def release(outcome: Any) -> Any:
    """Return the value of an outcome, or raise what it says. The outcome is copied first: an extension made it."""
    kind, *facts = plain(outcome)
    if kind == VALUE:
        return facts[0]
    raise _rebuilt(kind, facts)  # not by way of a variable here, which the error would keep, and itself with it


def _rebuilt(kind: Any, facts: list[Any]) -> BaseException:
    if kind == DENIED:
        return _denial(*facts)
    if kind == INVALID:
        name, problems = facts
        found: BaseException = _INVALID[name](Problem(*problem) for problem in problems)
        return found
    if kind == RESULT:
        message, problems = facts
        return errors.ResultInvalid(message, problems=[Problem(*problem) for problem in problems])
    if kind == REFUSED:
        return _refusal(*facts)
    name, message, trace, *advice = facts
    return errors.ExtensionFailed(message, kind=name, traceback=trace, advice=advice[0] if advice else "")


def problem_facts(error: InvalidInputError | errors.ResultInvalid) -> list[list[str | None]]:
    """Return what is wrong with an input or a result as plain data."""
    return [[item.pointer, item.message, item.suggestion] for item in error.problems]


def _denial_facts(error: errors.SandboxDenied) -> dict[str, Any]:
    decision = getattr(error, "decision", None)
    return {
        "target": error.target,
        "subject": error.subject,
        "subject_kind": error.subject_kind,
        "chain": list(map(str, error.subject_chain)),
        "operations": list(error.operations),
        "installing": error.installing,
        "package": error.package,
        "is_host_code": getattr(error, "is_host_code", False),
        "decision": [str(decision.code), decision.requires_approval, decision.message, decision.request_id]
        if isinstance(decision, AccessDecision)
        else None,
    }


def _denial(name: str, facts: dict[str, Any]) -> errors.SandboxDenied:
    decision, package, is_host_code = facts.pop("decision"), facts.pop("package"), facts.pop("is_host_code")
    for key in ("chain", "operations"):
        facts[key] = tuple(facts[key])
    denial = _DENIALS[name](**facts)
    denial.package = str(package)
    if isinstance(denial, errors.FilesystemDenied):
        denial.is_host_code = bool(is_host_code)
    if decision is not None and isinstance(denial, errors.NetworkDenied):
        code, *rest = decision
        denial.decision = AccessDecision(DecisionCode(code).allows, DecisionCode(code), *rest)
    return denial


def _refusal(name: str, message: str, *parts: str) -> SandboxError:
    """Return another error of the sandbox, made of its parts or its text; one that cannot be is told by its name."""
    for kind in _ours(name):
        try:
            return kind(*(parts or (message,)))
        except TypeError:
            continue
    return errors.ExtensionFailed(message, kind=name)


def _parts(error: BaseException) -> tuple[str, ...]:
    """Return what an error of ours is made of, where its class takes more than a text."""
    parts = getattr(error, "parts", ())
    return tuple(part for part in parts if type(part) is str) if type(parts) is tuple else ()


def know_errors() -> None:
    """Settle which errors are this distribution's: those there are now, before any code of an extension is loaded.

    A class that an extension makes later can look like one of ours, and would be called here, outside its guard.
    """
    global _known  # noqa: PLW0603 - settled once
    if _known is None:
        _known = MappingProxyType(_all_errors())


def _ours(name: str) -> tuple[type[SandboxError], ...]:
    """Return the errors of this distribution with a name; a class that somebody else made up is not among them."""
    return (_all_errors() if _known is None else _known).get(name, ())


def _all_errors() -> dict[str, tuple[type[SandboxError], ...]]:
    found: dict[str, tuple[type[SandboxError], ...]] = {}
    waiting = [SandboxError]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        name = kind.__name__
        place = sys.modules.get(kind.__module__) if kind.__module__.startswith("democrai_sandbox.") else None
        if getattr(place, name, None) is kind:
            found[name] = (*found.get(name, ()), kind)
    return found


def _text(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:  # noqa: BLE001 - __str__ is the extension's, and may want to end the interpreter
        return _UNTOLD
    return str.encode(text, "utf-8", "backslashreplace").decode()[:_LONGEST_TEXT]
