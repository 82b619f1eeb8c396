"""Log of failures of the host's callbacks (decider, recorder, observer, watcher), with a rate limit."""

from __future__ import annotations

import logging
import sys
from time import monotonic
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed, HelperOpening

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_CHAIN = 64
_MOST_LINES = 10
_WINDOW = 10.0
"""Seconds in which at most that many failures of a callback are logged, because a subject controls the call rate."""
_write = logging.getLogger("democrai_sandbox.guard").exception
# Native functions, stored before subject code runs, which could replace them in their modules.
_handled, _now = sys.exception, monotonic


def logged(name: str, callback: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a callback so that its exceptions are logged and raised again.

    The wrapper runs unguarded, like the callback. A failure that the callback has logged is not logged twice.
    """
    budget = _LogBudget()

    def call(*args: Any) -> Any:
        handled = _handled()
        try:
            return callback(*args)
        except Exception as error:
            is_logged = isinstance(error, ExternalAccessCheckFailed | HelperOpening) and error.is_logged
            if not is_logged and budget.has_room():
                _cut(error, handled)
                _write("The %s of the guard failed for %s", name, _about(args[0]))
            raise

    return call


def _cut(error: BaseException, handled: BaseException | None) -> None:
    """Remove the exception that the subject was handling from the contexts of an error.

    Logging formats every context, and would call the subject's ``__str__`` unguarded.
    """
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        found = queue.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        if found.__context__ is handled or len(seen) > _LONGEST_CHAIN:
            found.__context__ = None
        if found.__cause__ is handled or len(seen) > _LONGEST_CHAIN:
            found.__cause__ = None
        queue += (found.__context__, found.__cause__)


class _LogBudget:
    """Number of lines that a callback may still log in the current window."""

    def __init__(self) -> None:
        self._since = 0.0
        self._lines = 0

    def has_room(self) -> bool:
        """Count a line and return whether it is within the limit."""
        now = _now()
        if now - self._since > _WINDOW:
            self._since, self._lines = now, 0
        self._lines += 1
        return self._lines <= _MOST_LINES


def _about(value: Any) -> str:
    """Describe a question, an endpoint or a denial by its subject, operation and target or address."""
    subject = f"{value.subject_kind}:{value.subject}"
    if hasattr(value, "target"):
        return f"{subject}: {value.operation} {value.target!r}"
    return f"{subject}: connection to {value.host!r}, port {value.port}"
