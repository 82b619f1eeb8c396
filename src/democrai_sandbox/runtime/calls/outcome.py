"""Results of calls into extensions: the outcome as plain data, printed output, and reports of the event loop."""

from __future__ import annotations

import asyncio
import io
import shlex
import sys
import threading
import traceback
from asyncio import format_helpers
from collections import deque
from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from enum import Enum
from errno import EACCES, EPERM
from functools import partial
from pathlib import PurePath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from democrai_sandbox import errors
from democrai_sandbox.errors import ExtensionFailed, ResultInvalid
from democrai_sandbox.guard import exact_guard_context, is_guarded, plain
from democrai_sandbox.policy import AccessDecision, DecisionCode, InvalidInputError, Problem, SandboxError
from democrai_sandbox.runtime import sdk_services

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.guard.interface import RawView

_DEEPEST = 64
_TEXT_TYPES = (("uuid", "UUID"), ("decimal", "Decimal"))
_MOST_VALUES = 1_000_000
"""The limit of ``plain``."""


def plain_result(value: Any) -> Any:
    """Return a result as plain data, or raise ``ResultInvalid`` with the location of the invalid value.

    Besides plain data: an ``Enum`` becomes its value; a dataclass or named tuple an object of its fields; a date, time
    or datetime its ISO 8601 text; a ``timedelta`` its seconds; a ``UUID``, ``Decimal`` or path its text. Tuples become
    lists.
    """
    try:
        try:
            return plain(value, lists=True)
        except InvalidInputError:
            return plain(_Conversion().of(value, 0), lists=True)
    except InvalidInputError as error:
        raise ResultInvalid.of(error.problems) from None


class _Conversion:
    """Converts one result. Unknown types stay as they are, so that ``plain`` refuses them with their location."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise InvalidInputError.of("more than a million values")
        kind = type(value)
        if depth > _DEEPEST or value is None or kind in (str, int, float, bool, bytes):
            return value
        if kind is dict:
            return self._members(value.items(), depth)
        if kind in (list, tuple):
            return [self.of(item, depth + 1) for item in value]
        return self._other(value, depth)

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.of(value.value, depth + 1)
        if is_dataclass(value) and not isinstance(value, type):
            return self._members(((field.name, getattr(value, field.name)) for field in fields(value)), depth)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._members(zip(value._fields, value, strict=True), depth)
        return _scalar(value)

    def _members(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for name, inner in pairs:
            key = name if type(name) is str else self.of(name, depth + 1)
            if type(key) is not str:
                raise InvalidInputError.of(f"expected texts as keys, got {type(name).__name__}")
            if key in made:
                raise InvalidInputError.of(f"two keys become the same text: {key[:100]!r}")
            made[key] = self.of(inner, depth + 1)
        return made


def _scalar(value: Any) -> Any:
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    # Without the module, no such value can exist.
    loaded = (getattr(sys.modules[name], kind) for name, kind in _TEXT_TYPES if name in sys.modules)
    return str(value) if isinstance(value, (PurePath, *loaded)) else value


VALUE = "value"
DENIED = "denied"
INVALID = "invalid"
RESULT = "result"
REFUSED = "refused"
FAILED = "failed"

_LONGEST_TEXT = 20_000
_UNTOLD = "(its text could not be read)"
_CLASSES: dict[str, type[Any]] = {
    name: kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)
}
_DENIALS = MappingProxyType({name: kind for name, kind in _CLASSES.items() if issubclass(kind, errors.SandboxDenied)})
_INVALID = MappingProxyType({name: kind for name, kind in _CLASSES.items() if issubclass(kind, InvalidInputError)})
_known: Mapping[str, tuple[type[SandboxError], ...]] | None = None

Outcome = tuple[Any, ...]
"""Outcome of a call: the only form in which a result leaves a guard or a process."""


def capture(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Outcome:
    """Return the outcome of a call. Every exception is an outcome too, including an exit of the interpreter.

    ``capture`` runs inside the guard, because methods of results and errors may be code of the extension; ``release``
    runs in the host and never touches one of their objects. Errors of the sandbox are rebuilt, all others are reduced
    to text.
    """
    try:
        return (VALUE, plain_result(function(*args, **kwargs)))
    except BaseException as error:  # noqa: BLE001 - an extension must not end its host
        return describe(error)


async def capture_async(function: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Outcome:
    """Return the outcome of a coroutine. A cancellation belongs to the caller and is raised again."""
    try:
        return (VALUE, plain_result(await function(*args, **kwargs)))
    except (asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - likewise
        return describe(error)


def describe(error: BaseException) -> Outcome:
    """Return an exception as plain data, even if its own code misbehaves while it is read.

    An error of ours is also rebuilt once here, as the receiver will do, to refuse invalid facts.
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
    """Yield advice for a path that the guard permits and the system refuses."""
    if type(error) is PermissionError and error.errno in (EACCES, EPERM) and type(error.filename) is str:
        yield (
            f"The guard permits {error.filename!r}, but the system refuses it: through file permissions, or through "
            "Landlock, whose rules for the application are set when it starts. "
            f"Run `democrai-sandbox explain --target {shlex.quote(error.filename)}` with the subject and the operation."
        )


def release(outcome: Any) -> Any:
    """Return the value of an outcome, or raise its error. The outcome is copied first, because an extension made it."""
    try:
        kind, *facts = plain(outcome)
    except InvalidInputError as error:  # the outcome adds one level of nesting to the value
        raise errors.ResultInvalid.of(error.problems) from None
    if kind == VALUE:
        return facts[0]
    raise _rebuilt(kind, facts)  # not through a local variable: the error's traceback would keep the error alive


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
    """Return the problems of an input or a result as plain data."""
    return [[item.pointer, item.message, item.suggestion] for item in error.problems]


def _denial_facts(error: errors.SandboxDenied) -> dict[str, Any]:
    decision = getattr(error, "decision", None)
    return {
        "target": str.encode(error.target, "utf-8", "backslashreplace").decode(),  # a file name may be undecodable
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
    """Return another error of the sandbox, rebuilt from its parts or its text; ``ExtensionFailed`` if that fails."""
    for kind in _ours(name):
        try:
            return kind(*(parts or (message,)))
        except TypeError:
            continue
    return errors.ExtensionFailed(message, kind=name)


def _parts(error: BaseException) -> tuple[str, ...]:
    """Return the constructor arguments of an error whose class takes more than a text."""
    parts = getattr(error, "parts", ())
    return tuple(part for part in parts if type(part) is str) if type(parts) is tuple else ()


def know_errors() -> None:
    """Save the error classes of this distribution before any code of an extension is loaded.

    A class that an extension creates later can look like one of ours, and would be called here, outside its guard.
    """
    global _known  # noqa: PLW0603 - settled once
    if _known is None:
        _known = MappingProxyType(_all_errors())


def _ours(name: str) -> tuple[type[SandboxError], ...]:
    """Return the errors of this distribution with a name, never a class of an extension."""
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


_MOST_CHARACTERS = 64 * 1024
_MOST_AT_ONCE = 8 * 1024


class PrintedOutput(NamedTuple):
    """Latest output of a subject, and the number of dropped characters."""

    text: str
    dropped: int
    """Number of dropped characters."""


class ExtensionOutput:
    """Latest output of each subject, bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, deque[str]] = {}
        self._sizes: dict[str, int] = {}
        self._dropped: dict[str, int] = {}

    def write(self, view: RawView | None, text: str, left_out: int = 0) -> None:
        """Store the output of guarded code: a service of the runtime."""
        if view is None or type(text) is not str:
            return
        label = view.labels[-1]
        self.add(label, text[:_MOST_AT_ONCE], left_out + max(0, len(text) - _MOST_AT_ONCE))

    def add(self, label: str, text: str, dropped: int = 0) -> None:
        """Store output of a subject; drop the oldest beyond the limit."""
        with self._lock:
            kept = self._kept.setdefault(label, deque())
            kept.append(text)
            size = self._sizes.get(label, 0) + len(text)
            while size > _MOST_CHARACTERS:
                gone = len(kept.popleft())
                size -= gone
                dropped += gone
            self._sizes[label] = size
            self._dropped[label] = self._dropped.get(label, 0) + dropped

    def of(self, label: str) -> PrintedOutput:
        """Return the output of a subject."""
        with self._lock:
            return PrintedOutput("".join(self._kept.get(label, ())), self._dropped.get(label, 0))


def divert_output() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams that separate subjects. The host calls this once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Diverted):
            setattr(sys, name, _Diverted(stream))


class _Diverted(io.TextIOBase):
    """Stream that passes output of the host through, and sends output of guarded code to the runtime."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not is_guarded():
            return self._stream.write(text)
        exact = text if type(text) is str else "".join(text)
        with suppress(SandboxError):  # a print must not fail because its output is not stored
            sdk_services.call("output.write", exact[:_MOST_AT_ONCE], max(0, len(exact) - _MOST_AT_ONCE))
        return len(exact)

    def flush(self) -> None:
        if not is_guarded():
            self._stream.flush()

    def isatty(self) -> bool:
        return not is_guarded() and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_LONGEST = 10_000

_arguments = format_helpers._format_args_and_kwargs  # noqa: SLF001 - Handle._run calls it


def watch_reports(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Format the reports of a loop safely; return a function that undoes this. The host calls it when it starts.

    The ``repr`` of the objects in a report is code of the extension, so it runs inside a guard that allows nothing.
    """
    before = loop.get_exception_handler()

    def handle(of: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told = _told(context)
        if before is None:
            of.default_exception_handler(told)
        else:
            before(of, told)

    loop.set_exception_handler(handle)
    format_helpers._format_args_and_kwargs = _safe_arguments  # noqa: SLF001 - see above

    def undo() -> None:
        loop.set_exception_handler(before)
        format_helpers._format_args_and_kwargs = _arguments  # noqa: SLF001 - likewise

    return undo


def _safe_arguments(args: Any, kwargs: Any, **options: Any) -> str:
    """Format arguments inside a guard; `options` depend on the interpreter's version (`debug` since 3.13)."""
    return _printed_text(partial(_arguments, **options), args, kwargs)


def _told(context: dict[str, Any]) -> dict[str, Any]:
    """Return a report as text. A built-in error with plain arguments stays as it is."""
    error = context.get("exception")
    told: dict[str, Any] = {"message": _printed_text(str, context.get("message", ""))}
    if isinstance(error, BaseException):
        told["exception"] = error if _is_plain(error) else _described_report(error)
    return told


def _is_plain(error: BaseException) -> bool:
    """Return whether showing an error runs no foreign code: a built-in class with plain arguments."""
    args = BaseException.args.__get__(error)  # type: ignore[attr-defined] # bypasses overrides of the class
    has_plain_args = type(args) is tuple and all(type(part) in {str, int, float, bool, type(None)} for part in args)
    return has_plain_args and type(error).__module__ == "builtins" and not type(error).__flags__ & 1 << 9


def _described_report(error: BaseException) -> ExtensionFailed:
    kind, name, *facts = _alone(describe, error) or (FAILED, "Exception", _UNTOLD, "")
    trace = facts[1] if kind == FAILED else ""
    message = facts[0] if facts and type(facts[0]) is str else str(facts)
    return ExtensionFailed(message[:_LONGEST], kind=name, traceback=trace)


def _printed_text(make: Callable[..., Any], *args: Any) -> str:
    made = _alone(make, *args)
    return made[:_LONGEST] if type(made) is str else _UNTOLD


def _alone(make: Callable[..., Any], *args: Any) -> Any:
    """Return a result made under a guard that allows nothing; None if that fails, because it is only reported."""
    try:
        nothing = exact_guard_context(subject="reports", subject_kind="core", include_runtime_paths=False)
        return plain(nothing.run(make, *args))
    except BaseException:  # noqa: BLE001 - the code of an extension may raise anything
        return None
