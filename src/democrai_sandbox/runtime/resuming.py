"""What goes on after an approval: an action or a task of the module that was stopped, for whom it was stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.errors import InvalidInputError, RuntimeServiceFailed
from democrai_sandbox.policy import SubjectKind

from .modules import ACTION

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from democrai_sandbox.access.interface import ResumeHandler
    from democrai_sandbox.access.values import Origin
    from democrai_sandbox.policy import Subject

    from .modules import ModuleRuntime
    from .tasks import TaskRuntime

_TASK = "task"
_SLACK = 5.0
"""Seconds beyond a call's own limit: that one tells more when it strikes."""


class ModuleResumes(Mapping[str, "ResumeHandler"]):
    """The resume actions that there are: actions and tasks of the modules, by name or as ``module.name``.

    ``requester`` returns for whom an action goes on, ``timeout`` is the limit of a call in seconds. Nothing runs
    before ``open``.
    """

    def __init__(
        self, modules: ModuleRuntime, tasks: TaskRuntime, *, requester: Callable[[Origin], Caller], timeout: float
    ) -> None:
        self._modules = modules
        self._tasks = tasks
        self._requester = requester
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Call the modules from now on, on the loop that runs here."""
        self._loop = asyncio.get_running_loop()

    def __getitem__(self, action: str) -> ResumeHandler:
        if action not in set(self):
            raise KeyError(action)

        def go_on(context: Any, *, origin: Origin, subject: Subject, request_id: str) -> object:
            del request_id  # a module that must not do a thing twice has it in its context
            self._go_on(action, context, origin, subject)
            return None

        return go_on

    def __iter__(self) -> Iterator[str]:
        for module in self._modules.all_loaded():
            for kind, name in module.surfaces:
                if kind in {ACTION, _TASK}:
                    yield name
                    yield f"{module.extension.name}.{name}"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _go_on(self, action: str, context: Any, origin: Origin, subject: Subject) -> None:
        """Run it, and wait for its end; of a task, until it is recorded and will be run."""
        name, params = _own(action, subject), _params(context)
        caller = self._requester(origin)
        surfaces = self._modules.loaded(subject.name).surfaces
        if (ACTION, name) not in surfaces and (_TASK, name) in surfaces:
            self._wait(self._tasks.submit(subject.name, name, params, caller))
        else:
            self._wait(self._modules.action(subject.name, name, params, caller))

    def _wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Have it run on the loop; this thread is the one of the resumptions, and is there to wait."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeServiceFailed("nothing can go on: the runtime is not running")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(self._timeout + _SLACK)
        except TimeoutError:
            future.cancel()
            raise


def as_asked(origin: Origin) -> Caller:
    """Return the requester as the request has it, without a role: a host that knows more says who they are by now."""
    return Caller(origin.user_id, origin.organization_id, origin.session_key, task_id=origin.task_id)


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
