"""Error reports of the event loop about guarded code, formatted without running its code outside a guard.

The loop reports a failed callback or task and formats the objects involved: arguments, the future, the error. Their
``repr`` is code of the extension. Here it runs inside a guard that allows nothing, and only the resulting text reaches
the host's handler.
"""

from __future__ import annotations

from asyncio import format_helpers
from functools import partial
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExtensionFailed
from democrai_sandbox.guard import exact_guard_context, plain

from .outcomes import FAILED, describe

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

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
    return type(error).__module__ == "builtins" and not type(error).__flags__ & 1 << 9 and _are_texts(args)


def _are_texts(args: Any) -> bool:
    return type(args) is tuple and all(type(part) in {str, int, float, bool, type(None)} for part in args)


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
