"""Requests that the helper serves for a verified client."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from .cgroups import JoinSockets
from .policy import read_policy, requested_endpoints
from .protocol import VERSION, HelperRequest, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .arguments import Arguments
    from .enforcer import Enforcer
    from .main import HelperLog
    from .processes import Handle, ProcessFamily
    from .user_files import UserFiles

_LONGEST_WAIT = 60.0


class ActionResult(NamedTuple):
    """Answer to a request."""

    fields: dict[str, Any]
    descriptor: int = -1
    """Descriptor to send with the answer."""
    child: int | None = None
    """Child to release when the answer does not arrive, because no other process knows it."""
    ends: bool = False
    """Whether the helper ends after the answer is sent."""


class Actions:
    """Handlers of all requests, one at a time."""

    def __init__(
        self,
        enforcer: Enforcer,
        family: ProcessFamily,
        arguments: Arguments,
        user_files: UserFiles,
        log: HelperLog,
    ) -> None:
        self._enforcer = enforcer
        self._family = family
        self._arguments = arguments
        self._user_files = user_files
        self._log = log
        self._lock = threading.Lock()
        self._join_sockets = JoinSockets(family, log)
        self._applied = False
        self.in_force = True
        """Whether rules may exist, including those of a predecessor; false after they are cleared."""
        self._refresh: dict[str, Any] = {"at": None, "error": ""}
        self._table: dict[str, tuple[Callable[[HelperRequest, Handle], ActionResult], frozenset[str]]] = {
            "ping": (self._ping, frozenset()),
            "apply": (self._apply, frozenset({"pid"})),
            "join": (self._join, frozenset({"pid"})),
            "child": (self._child, frozenset({"endpoints"})),
            "release": (self._release, frozenset({"child"})),
            "status": (self._status, frozenset()),
            "clear": (self._clear, frozenset({"exit"})),
        }

    def answer(self, request: HelperRequest, client: Handle) -> ActionResult:
        """Serve or refuse a request. Check the client before and after, because process ids are reused."""
        act, known = self._table.get(request.action, (None, frozenset()))
        if act is None:
            error = f"unknown action {request.action[:40]!a}"
            raise RequestRefused("unknown_action", error, f"use one of {', '.join(self._table)}")
        if unknown := request.fields.keys() - known:
            error = f"{request.action} does not accept {', '.join(sorted(map(ascii, unknown)))[:200]}"
            raise RequestRefused("bad_request", error, f"it accepts {', '.join(sorted(known)) or 'no fields'}")
        client.check()
        outcome = act(request, client)
        try:
            client.check()
        except RequestRefused:
            self.undo(outcome)
            raise
        return outcome

    def undo(self, outcome: ActionResult) -> None:
        """Release a child whose number did not reach the client."""
        if outcome.descriptor >= 0:
            os.close(outcome.descriptor)
        if outcome.child is not None:
            try:
                with self._alone():
                    self._enforcer.release(outcome.child)
            except RequestRefused as refused:
                self._log.say(f"child {outcome.child} could not be released: {refused}")

    def resume(self) -> None:
        """Continue after a killed predecessor: apply the current policy file for the whole application."""
        with self._alone():
            if not self._applied:
                self._put_in_force(self._family.parent)

    def refresh(self) -> None:
        """Renew applied rules. On failure, keep the old rules and store the error for the status."""
        with self._alone():
            if not self._applied:
                return
            try:
                found, error = self._enforcer.refresh(), ""
            except RequestRefused as refused:
                found, error = {}, str(refused)
            if error and error != self._refresh["error"]:
                self._log.say(f"the refresh failed; the rules stay unchanged: {error}")
            self._refresh = {"at": time.time(), "error": error}
            self._log.flow("refresh", error=error, found=found)

    def repair(self) -> None:
        """Restore applied rules that another program has changed."""
        with self._alone():
            if self._applied and self._enforcer.repair():
                self._log.say("another program changed the packet filter; the rules were restored")

    def close(self, patience: float) -> bool:
        """Refuse all requests from now on; return whether the running request finished in time."""
        return self._lock.acquire(timeout=patience)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_LONGEST_WAIT):
            raise RequestRefused("busy", "the helper is busy with another request, or is stopping", "try again")
        try:
            yield
        finally:
            self._lock.release()

    def _put_in_force(self, target: Handle) -> dict[str, Any]:
        policy = read_policy(self._arguments.policy_file, self._user_files.user.uid, self._user_files.open_file)
        target.check()  # it may have ended during the wait
        fields = self._enforcer.apply(policy, target.pid)
        self._applied = self.in_force = True
        return {"digest": policy.digest, **fields}

    def _ping(self, _: HelperRequest, __: Handle) -> ActionResult:
        return ActionResult({"pid": os.getpid(), "version": VERSION, "privileged": True})

    def _apply(self, request: HelperRequest, _: Handle) -> ActionResult:
        with self._family.target(request.fields.get("pid", self._family.parent.pid)) as target, self._alone():
            return ActionResult(self._put_in_force(target))

    def _join(self, request: HelperRequest, _: Handle) -> ActionResult:
        with self._family.target(request.fields.get("pid")) as target, self._alone():
            target.check()
            return ActionResult(self._enforcer.join(target.pid))

    def _child(self, request: HelperRequest, _: Handle) -> ActionResult:
        endpoints = requested_endpoints(request.fields.get("endpoints"))
        with self._alone():
            fields, procs = self._enforcer.child(endpoints)
        try:
            descriptor = self._join_sockets.opened(procs)
        except OSError as error:
            self.undo(ActionResult(fields, child=fields["child"]))
            raise RequestRefused(
                "busy", f"the entry socket could not be created: {error.strerror}", "try again"
            ) from None
        return ActionResult(fields, descriptor, fields["child"])

    def _release(self, request: HelperRequest, _: Handle) -> ActionResult:
        child = request.fields.get("child")
        if type(child) is not int or child < 0:
            raise RequestRefused("bad_request", "child must be a number", "send the number from the answer of child")
        with self._alone():
            return ActionResult(self._enforcer.release(child))

    def _status(self, _: HelperRequest, __: Handle) -> ActionResult:
        with self._alone():
            found = self._enforcer.status()
        own = {
            "pid": os.getpid(),
            "version": VERSION,
            "parent_pid": self._family.parent.pid,
            "policy_file": self._arguments.policy_file,
            "refresh_seconds": self._arguments.refresh_seconds,
            "last_refresh": dict(self._refresh),
        }
        return ActionResult({**own, **found})

    def _clear(self, request: HelperRequest, client: Handle) -> ActionResult:
        ends = request.fields.get("exit", False)
        if type(ends) is not bool:
            raise RequestRefused("bad_request", "exit must be true or false", "send true to end the helper, or omit it")
        if not self._family.is_parent(client):
            error = f"only the application itself (process {self._family.parent.pid}) may remove its rules"
            raise RequestRefused("not_the_parent", error, "stop the kernel layer in the process of the application")
        with self._alone():
            fields = self._enforcer.clear()
            self._applied = self.in_force = False
        return ActionResult({**fields, "exiting": True} if ends else fields, ends=ends)
