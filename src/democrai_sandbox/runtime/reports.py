"""What the event loop reports of guarded code: told without running anything of it outside a guard.

A callback or a task that fails is reported by the loop, which asks for the texts of whatever was involved: arguments,
the future, the error. Those texts are made by code of whoever left the objects there. Here they are made inside a guard
that allows nothing, and only they reach the host's own handler.
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

_UNTOLD = "(its text cannot be had)"
_LONGEST = 10_000

_arguments = format_helpers._format_args_and_kwargs  # noqa: SLF001 - what Handle._run asks


def watch_reports(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Have the reports of a loop pass by here; return what undoes it. Done by the host, when it starts."""
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
    """Format arguments inside a guard; `options` are those of the interpreter's version (`debug` since 3.13)."""
    return _text(partial(_arguments, **options), args, kwargs)


def _told(context: dict[str, Any]) -> dict[str, Any]:
    """Return a report in texts. An error of the interpreter's own, or of ours, with a plain text stays itself."""
    error = context.get("exception")
    told: dict[str, Any] = {"message": _text(str, context.get("message", ""))}
    if isinstance(error, BaseException):
        told["exception"] = error if _is_plain(error) else _described(error)
    return told


def _is_plain(error: BaseException) -> bool:
    """Tell whether nobody's code runs when an error is shown: a class of the interpreter, with a text for arguments."""
    args = BaseException.args.__get__(error)  # type: ignore[attr-defined] # not what the class says they are
    return type(error).__module__ == "builtins" and not type(error).__flags__ & 1 << 9 and _are_texts(args)


def _are_texts(args: Any) -> bool:
    return type(args) is tuple and all(type(part) in {str, int, float, bool, type(None)} for part in args)


def _described(error: BaseException) -> ExtensionFailed:
    try:
        outcome = plain(_nothing().run(describe, error))
    except BaseException:  # noqa: BLE001 - whatever it does, it is only to be told
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
