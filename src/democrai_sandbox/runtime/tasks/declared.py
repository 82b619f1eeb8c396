"""Declared tasks of modules, and jobs made from them: arguments are checked here, before they are recorded."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.access.ids import new_id
from democrai_sandbox.errors import ExtensionUnknown, InvalidInputError
from democrai_sandbox.policy import nearest
from democrai_sandbox.runtime.store.documents import checked_name
from democrai_sandbox.runtime.store.scheduling import LONGEST, SHORTEST

from .jobs import Job, subject_of

if TYPE_CHECKING:
    from .settings import TaskSettings


class Declared:
    """Declared tasks with their timeouts."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._timeouts: dict[tuple[str, str], float | None] = {}

    def add(self, module: str, name: str, timeout: float | None) -> None:
        """Register a task; None for the default timeout."""
        self._check_timeout(timeout)
        subject_of(module, checked_name(name, "/name"))
        self._timeouts[module, name] = timeout

    def remove(self, module: str) -> None:
        """Remove all tasks of a module."""
        self._timeouts = {key: value for key, value in self._timeouts.items() if key[0] != module}

    def job(
        self,
        module: str,
        name: str,
        params: object,
        caller: Caller,
        *,
        timeout: float | None = None,
        task_id: str = "",
        scheduled: bool = False,
    ) -> Job:
        """Return a task that can run, or refuse the arguments."""
        if type(params) is not dict:
            raise InvalidInputError.of(f"expected an object, got {type(params).__name__}", pointer="/params")
        if (module, name) not in self._timeouts:
            close = nearest(name, [other for of, other in self._timeouts if of == module])
            hint = f"; did you mean {close!r}?" if close else ""
            raise ExtensionUnknown(f"module {module} has no task {name!r}{hint}")
        self._check_timeout(timeout)
        seconds = timeout or self._timeouts[module, name] or self._settings.timeout
        task_id = task_id or new_id()
        # Without role and access level: a task keeps user, organization and session, but cannot decide requests.
        serving = Caller(caller.user_id, caller.organization_id, caller.session_key, task_id=task_id)
        return Job(task_id, module, name, params, serving, seconds, scheduled)

    def _check_timeout(self, timeout: float | None) -> None:
        longest = self._settings.longest_timeout
        if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout <= longest):
            raise InvalidInputError.of(f"expected a number greater than 0 and at most {longest:g}", pointer="/timeout")


def period(every: float) -> timedelta:
    """Return the period of a schedule, or refuse it."""
    try:
        found = timedelta(seconds=every) if type(every) in (int, float) else timedelta(0)
    except (OverflowError, ValueError):
        found = timedelta(0)
    if not SHORTEST <= found <= LONGEST:
        raise InvalidInputError.of(f"expected a period in seconds, from {SHORTEST} to {LONGEST}", pointer="/every")
    return found
