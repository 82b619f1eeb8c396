"""Answers of the host to a worker: access questions and service requests.

A worker's process belongs to the subject, so the host does not rely on the guard inside: it verifies that a worker
never asks as another subject, or for a user who did not call it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from fcntl import F_SETFL, fcntl
from functools import cached_property
from os import close, fstat
from os import open as open_file
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.access.caller import Caller
from democrai_sandbox.errors import InvalidInputError, NoRuntime, RuntimeServiceFailed
from democrai_sandbox.errors.extensions import FrameError
from democrai_sandbox.guard import AccessQuestion, serve
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.guard.runtime_paths import is_host_code
from democrai_sandbox.manifests.coverage import Coverage
from democrai_sandbox.policy import AccessRule, Operation, ResourceType, is_at_or_below, normalise_path
from democrai_sandbox.runtime.calls.outcome import describe

from .process import NOBODY, ConnectionReport, WorkerHostServices, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.policy.subjects import CallIdentity

    from .session import PendingCall

_QUESTION = 12
_INNER = frozenset({"task", "tool", "agent", "pipeline", "skill"})
_EXACT = 1
_NO_ONE = ("", "", "")
_MOST_LINKS = 256
_LONGEST_RULES = 256 * 1024
"""Maximum characters of all rules in one request."""


class SharedCall(NamedTuple):
    """The shared tool, agent or pipeline that another subject calls, and the rights that this subject lends it."""

    label: str
    access: str
    """Rules as JSON."""
    allowed_imports: tuple[str, ...] = ()


class KnownCaller(NamedTuple):
    """Caller and call chain of a pending call."""

    caller: CallIdentity
    ancestors: tuple[str, ...]
    shared: SharedCall | None = None
    """Set if the call continues the chain with a shared asset instead of the worker's own subject."""


class CallerCheck:
    """Reads questions and requests of one worker."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec

    def question(self, fields: Any, standing: Iterable[KnownCaller]) -> tuple[AccessQuestion, KnownCaller] | None:
        """Return the question for the service, and the call it belongs to; None without such a call."""
        if type(fields) is not list or len(fields) != _QUESTION:
            raise FrameError("a malformed question")
        subject, kind, chain, resource, operation, target, register, *who, action, context = fields
        texts = (subject, kind, resource, operation, target, action)
        has_texts = all(type(text) is str for text in texts) and (context is None or type(context) is str)
        if not has_texts or type(register) is not bool:
            raise FrameError("a malformed question")
        labels = self._chain(chain)
        if f"{kind}:{subject}" != labels[-1]:
            raise FrameError("a question by a subject that is not the last of its call chain")
        found = self._found(labels, who, standing)
        if found is None:
            return None
        identity, caller = found
        question = AccessQuestion(  # type: ignore[call-arg] # a structure sequence takes one sequence
            (subject, kind, labels, resource, operation, target, register, *identity, action, context)  # type: ignore[arg-type]
        )
        return question, caller

    def connection(self, fields: Any) -> ConnectionReport:
        """Return a report of a connection, only for the worker's own subject and its parts.

        Addresses are not part of it: the worker could choose one to be permitted.
        """
        subject, kind, host, port = fields
        if not all(type(text) is str for text in (subject, kind, host)) or type(port) is not int:
            raise ValueError("a malformed connection report")
        if not 0 < port <= _HIGHEST_PORT or not 0 < len(host) <= _LONGEST_HOST:
            raise ValueError("a malformed connection report")
        spec = self._spec
        part = spec.kind == "module" and kind in _INNER and subject.rpartition(".")[0] == spec.name
        if not part and (kind, subject) != (spec.kind, spec.name):
            raise ValueError("a connection report for another subject")
        return ConnectionReport(subject, kind, host, (), port)

    def view(self, fields: Any, standing: Iterable[KnownCaller]) -> tuple[RawView, KnownCaller] | None:
        """Return the view of the asking code for a service, and its call; None without such a call."""
        if type(fields) is not list or len(fields) != 5:  # noqa: PLR2004 - chain, identity and inner links
            raise FrameError("a request without the identity of its caller")
        chain, *who, inner = fields
        labels = self._chain(chain)
        found = self._found(labels, who, standing)
        if found is None:
            return None
        identity, caller = found
        spec = self._spec
        outer, imports = (spec.kind, spec.name, self._rules[1], 0), spec.allowed_imports
        if caller.shared is not None:
            asset, access, imports = caller.shared
            kind, _, name = asset.partition(":")
            outer = (kind, name, access, _EXACT)
        links = (outer, *self._narrower(inner))
        return RawView(links, labels, *identity, allow_subprocess=False, allowed_imports=frozenset(imports)), caller

    def _chain(self, chain: Any) -> tuple[str, ...]:
        """Return a call chain whose last subject is the worker's own, or one of its parts."""
        if type(chain) is not list or not 0 < len(chain) <= _MOST_LINKS or any(type(one) is not str for one in chain):
            raise FrameError("a malformed call chain")
        if not self._is_own(chain[-1]):
            raise FrameError(f"a question by {chain[-1]} in the worker of {self._spec.label}")
        return tuple(chain)

    def _is_own(self, label: str) -> bool:
        """Return whether a label is the worker's subject or one of its parts."""
        kind, _, name = label.partition(":")
        spec = self._spec
        return label == spec.label or (
            spec.kind == "module" and kind in _INNER and name.rpartition(".")[0] == spec.name
        )

    def _found(
        self, labels: tuple[str, ...], who: Any, standing: Iterable[KnownCaller]
    ) -> tuple[tuple[Any, Any, Any], KnownCaller] | None:
        """Return the identity, and the first pending call that has it and the same outer call chain."""
        identity = _identity(who)
        user, organization, session = identity
        known = (user or None, organization or None, session or None)
        for one in standing:
            if identity == one.caller[:3] and self._continues(labels, one):
                return known, one
        # An access without a user needs no call: a subject also asks during its import.
        nobody = KnownCaller(NOBODY, ())
        return (known, nobody) if identity == _NO_ONE and self._continues(labels, nobody) else None

    def _continues(self, labels: tuple[str, ...], call: KnownCaller) -> bool:
        """Return whether a chain is that of a pending call, followed only by the worker's own subjects."""
        at = len(call.ancestors)
        first = self._spec.label if call.shared is None else call.shared.label
        return labels[: at + 1] == (*call.ancestors, first) and all(map(self._is_own, labels[at + 1 :]))

    def covers(self, rule: AccessRule) -> bool:
        """Return whether the worker's rules allow everything that a rule allows."""
        return self._coverage.covers(rule)

    @cached_property
    def _coverage(self) -> Coverage:
        return Coverage(self._rules[0])

    @cached_property
    def _rules(self) -> tuple[tuple[AccessRule, ...], str]:
        """All rules of the worker, also as JSON."""
        rules = self._spec.rules
        return rules, policy.rules_to_json(rules)

    def _narrower(self, inner: Any) -> Iterable[tuple[str, str, str, int]]:
        """Return declarations of inner subjects, limited to those that the worker's own rules cover."""
        if type(inner) is not list or len(inner) > _MOST_LINKS:
            raise FrameError("malformed links")
        for link in inner:
            if type(link) is not list or [type(part) for part in link] != [str, str, str, int]:
                raise FrameError("malformed links")
        if sum(len(link[2]) for link in inner) > _LONGEST_RULES:
            raise FrameError("links with too many rules")
        for kind, name, declared, mode in inner:
            if mode == _EXACT:
                kept = tuple(filter(self.covers, policy.rules_from_json(declared)))
                yield kind, name, policy.rules_to_json(kept), _EXACT


def _identity(who: Any) -> tuple[str, ...]:
    if len(who) != len(_NO_ONE) or any(part is not None and type(part) is not str for part in who):
        raise FrameError("a malformed identity")
    return tuple(part or "" for part in who)


_ACCEPTED = (
    os.O_ACCMODE | os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY | os.O_NOFOLLOW
) | (os.O_CLOEXEC | os.O_NOCTTY | os.O_SYNC | os.O_DSYNC | getattr(os, "O_LARGEFILE", 0))
_STATUS = os.O_APPEND | os.O_NONBLOCK | os.O_SYNC | os.O_DSYNC
_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ONE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_LONGEST_PATH = 4096
_OF_PROCESSES = "/proc"
"""Its entries depend on the process that opens them."""


class LateFiles:
    """Opens files for one worker, because the kernel rules of a confined process cannot grow. May block."""

    def __init__(self, spec: WorkerSpec, rules: Callable[[AccessRule], bool]) -> None:
        """Take ``rules``, which returns whether the worker's rules cover a rule."""
        self._rules = rules
        self._own = tuple(map(normalise_path, (*spec.own_read, *spec.own_write)))
        self._protected = tuple(map(normalise_path, spec.protected))

    def open(self, path: str, flags: int, mode: int, decide: Callable[[Operation], bool]) -> int:
        """Return a descriptor, or a negative error number; ``decide`` is asked about what no rule allows."""
        if flags & ~_ACCEPTED or flags & os.O_ACCMODE == os.O_ACCMODE:
            return -errno.EINVAL
        if len(path) >= _LONGEST_PATH:
            return -errno.ENAMETOOLONG
        if not path.startswith("/") or normalise_path(path) != path or self._is_shut(path):
            return -errno.EACCES
        for operation in operations_of(flags):
            wanted = AccessRule(ResourceType.FILESYSTEM, operation, path, path)
            if is_host_code(path, operation.value) or not (self._rules(wanted) or decide(operation)):
                return -errno.EACCES
        try:
            return open_without_links(path, flags, mode & 0o777)
        except (OSError, ValueError) as error:
            return -(getattr(error, "errno", None) or errno.EINVAL)

    def _is_shut(self, path: str) -> bool:
        if is_at_or_below(path, _OF_PROCESSES):
            return True
        return _is_below(path, self._protected) and not _is_below(path, self._own)


def _is_below(path: str, roots: Iterable[str]) -> bool:
    return any(is_at_or_below(path, root) for root in roots)


def operations_of(flags: int) -> Iterator[Operation]:
    """Yield the operations that an open with these flags needs; it creates the file only with ``O_CREAT``."""
    access, creates = flags & os.O_ACCMODE, flags & os.O_CREAT
    if access != os.O_WRONLY:
        yield Operation.READ
    if creates:
        yield Operation.CREATE
    if (access != os.O_RDONLY or flags & os.O_TRUNC) and not (creates and flags & os.O_EXCL):
        yield Operation.MODIFY


def open_without_links(path: str, flags: int, mode: int) -> int:
    """Open a file or folder without following a link in any place; refuse devices, pipes and sockets."""
    *above, name = path.split("/")[1:]
    held = open_file("/", _FOLDER)
    try:
        for part in above:
            held, outer = open_file(part, _FOLDER, dir_fd=held), held
            close(outer)
        found = open_file(name or ".", flags | _ONE, mode, dir_fd=held)
    finally:
        close(held)
    kind = stat.S_IFMT(fstat(found).st_mode)
    if kind not in (stat.S_IFREG, stat.S_IFDIR):
        close(found)
        return -errno.EACCES
    fcntl(found, F_SETFL, flags & _STATUS)
    return found


_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 256
_MOST_CONNECTIONS = 64
_LONGEST_HOST = 255
_HIGHEST_PORT = 65535
_MOST_TIMES = 1_000_000_000
_PROGRESS = "tasks.progress"
_OVER = policy.AccessDecision(
    allowed=False,
    code=policy.DecisionCode.NOT_ENABLED,
    requires_approval=False,
    message="The call that asked for this has ended.",
)


class HostRequests:
    """Answers over the control socket, on the loop; blocking questions run on a thread."""

    def __init__(
        self,
        spec: WorkerSpec,
        host: WorkerHostServices,
        tell: Callable[[list[Any]], None],
        flights: Mapping[int, PendingCall],
        give: Callable[[list[Any], int], bool],
    ) -> None:
        """Take ``tell``, which sends a message, and ``give``, which sends one with a descriptor."""
        self._label = spec.label
        self._services = frozenset(host.services)
        self._check = CallerCheck(spec)
        self._host = host
        self._tell = tell
        self._give_descriptor = give
        self._files = LateFiles(spec, self._check.covers)
        self._flights = flights
        self._open = 0
        self._connections = 0
        self._promised: dict[int, asyncio.Future[Any]] = {}

    def decide(self, number: int, fields: Any, flight: PendingCall | None) -> None:
        """Answer a question of the guard through the host's service; ``flight`` is the call it claims to belong to."""
        found = self._check.question(fields, self._standing(flight))
        if found is None:
            self._tell(["answer", number, _told(_OVER)])
            return
        self._begin()
        asked = asyncio.get_running_loop().run_in_executor(None, self._decide, *found)
        asked.add_done_callback(lambda done: self._decided(number, done))

    def _decide(self, question: AccessQuestion, standing: KnownCaller) -> bool | policy.AccessDecision:
        with serve(Caller(*standing.caller)):  # as in process: the service finds the task in which the subject works
            return self._host.decide(question)

    def open(self, number: int, fields: Any, flight: PendingCall | None, flags: int, mode: int) -> None:
        """Open a file that the kernel refuses to the worker, if its rules and the current decisions allow it."""
        if type(flags) is not int or type(mode) is not int:
            raise FrameError("a malformed request to open a file")
        found = self._check.question(fields, self._standing(flight))
        if found is None or found[0].resource_type != ResourceType.FILESYSTEM.value:
            self._tell(["answer", number, -errno.EACCES])
            return
        self._begin()
        opening = asyncio.get_running_loop().run_in_executor(None, self._open_file, *found, flags, mode)
        opening.add_done_callback(lambda done: self._opened_file(number, done))

    def _open_file(self, question: AccessQuestion, standing: KnownCaller, flags: int, mode: int) -> int:
        def decide(operation: Operation) -> bool:
            one: Any = (*question[:4], operation.value, *question[5:])
            answer = self._decide(AccessQuestion(one), standing)  # type: ignore[call-arg] # as in CallerCheck
            return answer.allowed if isinstance(answer, policy.AccessDecision) else answer is True

        return self._files.open(question.target, flags, mode, decide)

    def _opened_file(self, number: int, done: asyncio.Future[int]) -> None:
        self._open -= 1
        try:
            result = done.result()
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - any failure means that the file is not open
            _log.exception("a file of %s could not be opened", self._label)
            self._tell(["answer", number, None])
            return
        if result < 0:
            self._tell(["answer", number, result])
            return
        try:
            if not self._give_descriptor(["opened", number], result):
                _log.error("%s does not read its messages, so it cannot get a file", self._label)
                self._tell(["answer", number, None])
        finally:
            os.close(result)

    def _standing(self, flight: PendingCall | None = None) -> Iterator[KnownCaller]:
        """Yield the pending calls, beginning with the one that code in the worker claims to belong to."""
        if flight is not None:
            yield flight.standing
        yield from (pending.standing for pending in self._flights.values())

    def saw(self, seen: Any) -> int:
        """Report checks that a candidate decides differently; return the number of entries."""
        if type(seen) is not list:
            raise FrameError("malformed shadow report: not a list")
        for entry in seen[:_MOST_AT_ONCE]:
            fields, allowed, times = entry
            if type(allowed) is not bool or type(times) is not int or not 0 < times < _MOST_TIMES:
                raise FrameError("malformed entry in a shadow report")
            found = self._check.question(fields, self._standing())
            if found is not None:
                self._host.saw(self._label, found[0], allowed=allowed, times=times)
        return len(seen)

    def observe(self, number: int, fields: Any) -> None:
        """Permit a connection that the worker is about to open."""
        told = self._check.connection(fields)
        if self._connections >= _MOST_CONNECTIONS:
            raise ValueError("too many pending connections of one worker")
        self._connections += 1
        opened = asyncio.get_running_loop().run_in_executor(None, self._host.observe, told)
        opened.add_done_callback(lambda done: self._opened(number, done))

    def _opened(self, number: int, done: asyncio.Future[None]) -> None:
        self._connections -= 1
        answer = None
        try:
            done.result()
            answer = True
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - any failure means that the connection is not permitted
            _log.exception("a connection of %s could not be permitted", self._label)
        self._tell(["answer", number, answer])

    def used(self, number: int, fields: Any) -> None:
        """Record an access that the rules of a subject under test allow; the worker waits for the answer."""
        found = self._check.question(fields, self._standing())
        if found is not None:
            self._host.used(found[0])  # type: ignore[attr-defined] # the host of a test has it
        self._tell(["answer", number, True])

    def _decided(self, number: int, done: asyncio.Future[bool | policy.AccessDecision]) -> None:
        """Send the decision. Without one, send None, which becomes a failed check in the worker."""
        self._open -= 1
        answer: Any = None
        try:
            result = done.result()
            answer = _told(result) if isinstance(result, policy.AccessDecision) else result is True
            self._tell(["answer", number, answer])
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - any failure means that no decision exists
            _log.exception("an access question of %s could not be answered", self._label)
            self._tell(["answer", number, None])

    def serve(self, number: int, name: str, flight: PendingCall | None, who: Any, args: list[Any]) -> None:
        """Call a service for code in the worker."""
        if type(name) is not str or type(args) is not list:
            raise FrameError("malformed service request")
        found = self._check.view(who, self._standing(flight))
        try:
            result = self._served(name, flight, found, args)
        except Exception as error:  # noqa: BLE001 - the worker raises it
            self._tell(["answer", number, self._failure(name, error)])
            return
        if not asyncio.isfuture(result):
            self._give("answer", number, name, result)
            return
        self._begin()
        self._promised[number] = result
        result.add_done_callback(lambda done: self._kept(number, name, done))
        self._tell(["answer", number, ["promise"]])

    def _served(
        self, name: str, flight: PendingCall | None, found: tuple[RawView, KnownCaller] | None, args: list[Any]
    ) -> Any:
        if found is None:
            raise RuntimeServiceFailed(f"{name}: the call that asked for this has ended")
        if name == _PROGRESS and flight is not None and flight.progress is not None:
            return flight.progress(*args)
        if name not in self._services:
            raise NoRuntime(f"no runtime serves {name} in this process")
        view, standing = found
        with serve(Caller(*standing.caller)):  # as in process: the service finds the caller of the subject
            return self._host.door(name, view, args)

    def drop(self, number: int) -> None:
        """Cancel a request whose answer the worker no longer awaits."""
        if number in self._promised:
            self._promised[number].cancel()

    def close(self) -> None:
        """Cancel all requests, because the process has ended."""
        for result in tuple(self._promised.values()):
            result.cancel()

    def _kept(self, number: int, name: str, done: asyncio.Future[Any]) -> None:
        self._open -= 1
        self._promised.pop(number, None)
        error = RuntimeServiceFailed(f"{name} was canceled") if done.cancelled() else done.exception()
        if error is not None:
            self._tell(["settle", number, self._failure(name, error)])
        else:
            self._give("settle", number, name, done.result())

    def _give(self, how: str, number: int, name: str, result: Any) -> None:
        try:
            self._tell([how, number, ["value", result]])
        except InvalidInputError as error:
            self._tell([how, number, self._failure(name, error)])

    def _failure(self, name: str, error: BaseException) -> Any:
        """Return an error for the worker to raise; log errors that are not the sandbox's, and replace them."""
        if isinstance(error, policy.SandboxError):
            return describe(error)
        _log.error("service %s failed for %s", name, self._label, exc_info=error)
        return describe(RuntimeServiceFailed(f"{name} failed in the runtime"))

    def _begin(self) -> None:
        self._open += 1
        if self._open > _MOST_AT_ONCE:
            raise FrameError("too many open questions from one worker")


def _told(decision: policy.AccessDecision) -> list[Any]:
    return [decision.allowed, decision.code.value, *decision[2:]]
