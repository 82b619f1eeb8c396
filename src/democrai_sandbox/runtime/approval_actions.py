"""Actions of modules around approvals: managers that decide about others, and resume actions after a decision."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access import Administration
from democrai_sandbox.access.caller import Caller, GuardedSubject
from democrai_sandbox.errors import ExternalAccessAdminRequired, InvalidInputError, RuntimeServiceFailed
from democrai_sandbox.policy import Subject, SubjectKind

from .access_environment import GuardSurroundings
from .modules import ACTION

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator

    from democrai_sandbox.access import Access
    from democrai_sandbox.access.resumptions import ResumeHandler
    from democrai_sandbox.access.values import Requester, StoredRequest
    from democrai_sandbox.guard.interface import RawView

    from .modules import ModuleRuntime
    from .task_runtime import TaskRuntime

_ACTS = MappingProxyType(
    {
        "approve_for_session": "session",
        "approve_permanently": "permanent",
        "deny_external_access": "deny",
        "revoke": "revoke",
    }
)
"""Functions of ``sdk.access``, and their acts."""


class _ManagingCaller(GuardSurroundings):
    """Access environment of a guarded caller, from the core's view of its guard."""

    def __init__(self, view: RawView) -> None:
        self._view = view

    def is_guarded(self) -> bool:
        return True

    def guard(self) -> GuardedSubject:
        return GuardedSubject(Subject(*self._view.actor), self._view.chain)  # type: ignore[arg-type] # a kind as text


class AccessManagers:
    """The service behind the managing half of ``sdk.access``."""

    def __init__(self, access: Access, managers: Collection[Subject]) -> None:
        """Take the subjects that may decide."""
        self._node = access.node
        self._managers = frozenset(managers)

    def manage(self, view: RawView | None, act: str, details: dict[str, Any]) -> Any:
        """List pending requests, or decide. The service checks from the guard's view whether the caller may."""
        if view is None:
            raise ExternalAccessAdminRequired("the host decides through the access service, not through the SDK")
        administration = Administration(self._node, _ManagingCaller(view), managers=self._managers)
        if act == "pending":
            return [_request_fields(request) for request in administration.pending_requests().items]
        if act not in _ACTS:
            raise InvalidInputError.of(f"unknown act {act!r}; one of: {', '.join(_ACTS)}", pointer="/act")
        outcome = administration.decide(_ACTS[act], details.get("id", ""), reason=details.get("reason", ""))
        made = outcome.decision
        decision = made and {"id": made.id, "effect": str(made.effect), "scope": str(made.scope)}
        return {"decision": decision, "skipped": outcome.skipped}


def _request_fields(request: StoredRequest) -> dict[str, Any]:
    wanted, origin = request.access, request.origin
    return {
        "id": request.id,
        "subject": str(wanted.subject),
        "resource_type": str(wanted.resource_type),
        "operation": str(wanted.operation),
        "target": wanted.target,
        "user_id": origin.user_id,
        "has_session": bool(origin.session_key),
        "count": request.count,
    }


_TASK = "task"
_SLACK = 5.0
"""Seconds beyond a call's own timeout, whose error is more specific."""


class ModuleResumes(Mapping[str, "ResumeHandler"]):
    """Resume actions by name: actions and tasks of the modules, as ``name`` or ``module.name``.

    ``requester`` returns the caller of an action, ``timeout`` is the limit of a call in seconds. Nothing runs
    before ``open``.
    """

    def __init__(
        self, modules: ModuleRuntime, tasks: TaskRuntime, *, requester: Callable[[Requester], Caller], timeout: float
    ) -> None:
        self._modules = modules
        self._tasks = tasks
        self._requester = requester
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Run actions from now on, on the running loop."""
        self._loop = asyncio.get_running_loop()

    def __getitem__(self, action: str) -> ResumeHandler:
        if action not in set(self):
            raise KeyError(action)

        def resume(context: Any, *, origin: Requester, subject: Subject, request_id: str) -> object:
            del request_id  # a module that must not repeat an action stores the id in its context
            self._resume(action, context, origin, subject)
            return None

        return resume

    def __iter__(self) -> Iterator[str]:
        for module in self._modules.all_loaded():
            for kind, name in module.surfaces:
                if kind in {ACTION, _TASK}:
                    yield name
                    yield f"{module.extension.name}.{name}"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _resume(self, action: str, context: Any, origin: Requester, subject: Subject) -> None:
        """Run an action and wait for its end; for a task, wait until it is stored."""
        name, params = _own(action, subject), _params(context)
        caller = self._requester(origin)
        self._wait(self._modules.started(subject.name))
        surfaces = self._modules.loaded(subject.name).surfaces
        if (ACTION, name) not in surfaces and (_TASK, name) in surfaces:
            self._wait(self._tasks.submit(subject.name, name, params, caller))
        else:
            self._wait(self._modules.action(subject.name, name, params, caller))

    def _wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work on the loop and wait for it on this thread, which only serves resume actions."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeServiceFailed("cannot resume: the runtime is not running")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(self._timeout + _SLACK)
        except TimeoutError:
            future.cancel()
            raise


def as_asked(origin: Requester) -> Caller:
    """Return the requester from the request, without a role. Hosts with accounts look up the current role instead."""
    return Caller(origin.user_id, origin.organization_id, origin.session_key, task_id=origin.task_id)


def _own(action: str, subject: Subject) -> str:
    """Return the action's name within its module. A subject can resume only its own module, and only as that module."""
    if subject.kind is not SubjectKind.MODULE:
        what = f"{subject} has no actions: only a module can resume with one"
        raise InvalidInputError.of(what, pointer="/resume_action")
    module, dot, name = action.rpartition(".")
    if dot and module != subject.name:
        raise InvalidInputError.of(f"{action!r} is not an action of {subject}", pointer="/resume_action")
    return name


def _params(context: Any) -> dict[str, Any]:
    if context is None:
        return {}
    if type(context) is not dict:
        what = f"expected an object with the action's parameters, got {type(context).__name__}"
        raise InvalidInputError.of(what, pointer="/resume_context")
    return context
