"""Output of extensions, kept per subject and bounded, and reports of the event loop about their errors.

The ``repr`` of the objects in a report is code of the extension, so it runs inside a guard that allows nothing.
"""

from __future__ import annotations

import io
import sys
import threading
from asyncio import format_helpers
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from democrai_sandbox.errors import ExtensionFailed, SandboxError
from democrai_sandbox.guard import exact_guard_context, is_guarded, plain
from democrai_sandbox.runtime import sdk_services

from .outcome import FAILED, describe

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from democrai_sandbox.guard.interface import RawView

_MOST_CHARACTERS = 64 * 1024
_MOST_AT_ONCE = 8 * 1024


class PrintedOutput(NamedTuple):
    """Latest output of a subject, and the number of dropped characters."""

    text: str
    dropped: int
    """Number of dropped characters."""


class ExtensionOutput:
    """Latest output of each subject."""

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


_UNTOLD = "(its text could not be read)"
_LONGEST = 10_000

_arguments = format_helpers._format_args_and_kwargs  # noqa: SLF001 - Handle._run calls it


def watch_reports(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Format the reports of a loop safely; return a function that undoes this. The host calls it when it starts."""
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
    return _text(partial(_arguments, **options), args, kwargs)


def _told(context: dict[str, Any]) -> dict[str, Any]:
    """Return a report as text. A built-in error with plain arguments stays as it is."""
    error = context.get("exception")
    told: dict[str, Any] = {"message": _text(str, context.get("message", ""))}
    if isinstance(error, BaseException):
        told["exception"] = error if _is_plain(error) else _described(error)
    return told


def _is_plain(error: BaseException) -> bool:
    """Return whether showing an error runs no foreign code: a built-in class with plain arguments."""
    args = BaseException.args.__get__(error)  # type: ignore[attr-defined] # bypasses overrides of the class
    has_plain_args = type(args) is tuple and all(type(part) in {str, int, float, bool, type(None)} for part in args)
    return has_plain_args and type(error).__module__ == "builtins" and not type(error).__flags__ & 1 << 9


def _described(error: BaseException) -> ExtensionFailed:
    try:
        outcome = plain(_nothing().run(describe, error))
    except BaseException:  # noqa: BLE001 - the error is only reported, even if reading it fails
        outcome = (FAILED, "Exception", _UNTOLD, "")
    kind, name, *facts = outcome
    trace = facts[1] if kind == FAILED else ""
    message = facts[0] if facts and type(facts[0]) is str else str(facts)
    return ExtensionFailed(message[:_LONGEST], kind=name, traceback=trace)


def _text(make: Callable[..., Any], *args: Any) -> str:
    try:
        made = plain(_nothing().run(make, *args))
    except BaseException:  # noqa: BLE001 - likewise
        return _UNTOLD
    return made[:_LONGEST] if type(made) is str else _UNTOLD


def _nothing() -> Any:
    """Return a guard under which nothing is allowed."""
    return exact_guard_context(subject="reports", subject_kind="core", include_runtime_paths=False)
