"""What goes on after an approval: an action or a task of the module that was stopped, for whom it was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.errors import InvalidInputError, RuntimeServiceFailed
from democrai_sandbox.policy import SubjectKind
from democrai_sandbox.runtime.modules import ACTION

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from democrai_sandbox.access.interface import ResumeHandler
    from democrai_sandbox.access.values import Origin
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime import Runtime

    from .interface import RoleLookup

_TASK = "task"
_SLACK = 5.0
"""Seconds beyond a call's own limit: that one tells more when it strikes."""


class Resumptions(Mapping[str, "ResumeHandler"]):
    """The resume actions that there are: actions and tasks of the modules, by name or as ``module.name``.

    Empty until a runtime is given to it, for the service that asks it is made before the runtime.
    """

    def __init__(self) -> None:
        self._house: _House | None = None

    def serve(self, runtime: Runtime, roles: RoleLookup, loop: asyncio.AbstractEventLoop) -> None:
        """Call the modules of this runtime from now on, on its loop; ``roles`` says what a requester is by then."""
        self._house = _House(runtime, roles, loop)

    def __getitem__(self, action: str) -> ResumeHandler:
        if action not in set(self):
            raise KeyError(action)

        def go_on(context: Any, *, origin: Origin, subject: Subject, request_id: str) -> object:
            del request_id  # a module that must not do a thing twice has it in its context
            self._go_on(action, context, origin, subject)
            return None

        return go_on

    def __iter__(self) -> Iterator[str]:
        for module in () if self._house is None else self._house.runtime.modules.all_loaded():
            for kind, name in module.surfaces:
                if kind in {ACTION, _TASK}:
                    yield name
                    yield f"{module.extension.name}.{name}"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _go_on(self, action: str, context: Any, origin: Origin, subject: Subject) -> None:
        """Run it, and wait for its end; of a task, until it is recorded and will be run."""
        if self._house is None:
            raise RuntimeServiceFailed("nothing can go on: the runtime is not running")
        name, params = _own(action, subject), _params(context)
        runtime, caller = self._house.runtime, _requester(origin, self._house.roles)
        surfaces = runtime.modules.loaded(subject.name).surfaces
        if (ACTION, name) not in surfaces and (_TASK, name) in surfaces:
            self._house.wait(runtime.tasks.submit(subject.name, name, params, caller))
        else:
            self._house.wait(runtime.modules.action(subject.name, name, params, caller))


class _House(NamedTuple):
    """Where modules are called."""

    runtime: Runtime
    roles: RoleLookup
    loop: asyncio.AbstractEventLoop

    def wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Have it run on the loop; this thread is the one of the resumptions, and is there to wait."""
        if self.loop.is_closed():
            work.close()
            raise RuntimeServiceFailed("nothing can go on: the runtime is not running any more")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            future.result(self.runtime.settings.call_timeout + _SLACK)
        except TimeoutError:
            future.cancel()
            raise


def _requester(origin: Origin, lookup: RoleLookup) -> Caller:
    """Return the requester as they are now: what they were when they asked may be over."""
    if not origin.user_id:
        return Caller(session_key=origin.session_key, organization_id=origin.organization_id)
    found = lookup.roles(origin.user_id)
    if found is None:
        raise RuntimeServiceFailed(f"user {origin.user_id!r} is not there any more, or shut out: nothing was run")
    return Caller(
        user_id=origin.user_id,
        organization_id=found.organization_id,
        session_key=origin.session_key,
        role=found.role,
        access_level=found.access_level,
        task_id=origin.task_id,
    )


def _own(action: str, subject: Subject) -> str:
    """Return the action's name within its module: nobody has another module act, and what is narrowed no wider one."""
    if subject.kind is not SubjectKind.MODULE:
        what = f"{subject} has no actions: only a module goes on by one"
        raise InvalidInputError.of(what, pointer="/resume_action")
    module, dot, name = action.rpartition(".")
    if dot and module != subject.name:
        raise InvalidInputError.of(f"{action!r} is not an action of {subject}", pointer="/resume_action")
    return name


def _params(context: Any) -> dict[str, Any]:
    """Return the context as the parameters of an action."""
    if context is None:
        return {}
    if type(context) is not dict:
        what = f"expected an object with the action's parameters, got {type(context).__name__}"
        raise InvalidInputError.of(what, pointer="/resume_context")
    return context
