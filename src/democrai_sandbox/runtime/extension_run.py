"""Run of one extension in a separate process, under its real guard, without a host; and the recording of accesses.

``run``, ``record`` and tests use it. A recording has all accesses of a run in observe mode, and proposes a manifest.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from democrai_sandbox import policy
from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.checks import NEEDS_APPROVAL
from democrai_sandbox.errors import ExtensionBroken, GuardUsageError, SandboxDenied
from democrai_sandbox.manifests import FILE_NAME, Manifest, ManifestKind, load_manifest
from democrai_sandbox.manifests.lint import SENSITIVE_IMPORTS
from democrai_sandbox.manifests.proposal import ObservedUse, Suggestion, section_of, suggest
from democrai_sandbox.policy import AccessRule, InvalidInputError, Operation, ResourceType
from democrai_sandbox.policy.operations import IMPORT
from democrai_sandbox.policy.subjects import CallIdentity
from democrai_sandbox.runtime.calls.access_recorder import DECLARED, RecordedAccess, needed

from .ai.model import KINDS
from .ai.runtime import run_in_worker
from .children.launch_request import LaunchRequests
from .children.path_rights import PathRights
from .children.service import ChildService, PopenChild
from .worker.handle import WorkerHandle
from .worker.process import WorkerSpec, WorkerStarter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
    from os import PathLike

    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.guard.interface import RawView

    from .children.launch_request import ChildLauncher
    from .store import Progress


_MOST = 100_000
_MOST_DENIED = 10_000
_MOST_LETTERS = 64 * 1024 * 1024
_TYPES = (str, str, str, str, str, bool, bool)
_USUAL = ("", "", "", "own", "", True, False)


class Recording:
    """All accesses of one or more runs, in the order of their first occurrence."""

    def __init__(self) -> None:
        self.seen: Counter[RecordedAccess] = Counter()
        """Number of questions about each access: at most one per call of an extension, even in a loop."""
        self.denied: dict[str, SandboxDenied] = {}
        """Denials in spite of observe mode, by text: the host's own limits."""
        self.refused: set[ObservedUse] = set()
        """Accesses that were asked about and refused."""
        self.granted: set[ObservedUse] = set()
        """Accesses that were allowed at least once: a tool may be refused an access that its module has."""
        self.has_programs = False
        """Whether programs were started, whose accesses are not recorded."""
        self.is_full = False
        """Whether a limit was exceeded, so that a proposal is not possible."""
        self._room = _MOST_LETTERS
        self._times: Counter[tuple[ObservedUse, bool]] = Counter()
        self._places: dict[ObservedUse, dict[str, None]] = {}

    def notice(self, facts: Iterable[Any]) -> None:
        """Record a report of a process. The process belongs to the subject, and may report anything."""
        told = tuple(facts)
        given = (*told, *_USUAL[len(told) :])
        if len(given) != len(_TYPES) or any(type(one) is not kind for one, kind in zip(given, _TYPES, strict=True)):
            raise ValueError("malformed observation")
        noticed = RecordedAccess(*given)
        if noticed in self.seen or (len(self.seen) < _MOST and self._has_room(given[:-2])):
            self._add(noticed, 1)
        else:
            self.is_full = True

    def _add(self, noticed: RecordedAccess, times: int) -> None:
        about = _use(noticed)
        self.seen[noticed] += times
        self._times[about, noticed.probe] += times
        places = self._places.setdefault(about, {})
        if noticed.place:
            places[noticed.place] = None

    def _has_room(self, texts: Iterable[str]) -> bool:
        self._room -= sum(map(len, texts))
        return self._room >= 0

    def deny(self, denial: SandboxDenied) -> None:
        """Record a denial, up to a limit."""
        text = str(denial)
        if text not in self.denied and len(self.denied) < _MOST_DENIED and self._has_room([text]):
            self.denied[text] = denial

    # ---- results -----------------------------------------------------------------------------------------------------

    @property
    def accesses(self) -> tuple[ObservedUse, ...]:
        """Accesses to declare, without mere probes by libraries."""
        refused = self.refused - self.granted
        kept = ((one, _use(one)) for one in needed(self.seen) if one.resource_type != IMPORT)
        return tuple(dict.fromkeys(use for one, use in kept if one.by == DECLARED or use not in refused))

    @property
    def looked(self) -> frozenset[ObservedUse]:
        """Files and folders that were only probed, as by ``stat``: never opened, listed or changed."""
        used = {_use(one) for one in self.seen if not one.probe}
        return frozenset(_use(one) for one in self.seen if one.probe) - used

    @property
    def looked_by_libraries(self) -> tuple[ObservedUse, ...]:
        """Existing paths that libraries only probed: whether they are needed is not known."""
        there = {_use(one) for one in self.seen if one.probe and one.exists}
        return tuple(one for one in self.idle if one in there)

    @property
    def idle(self) -> tuple[ObservedUse, ...]:
        """Accesses that need no declaration: libraries continue when such a file looks absent."""
        kept = self.refused.union(self.accesses)
        all_seen = (_use(one) for one in self.seen if one.resource_type != IMPORT)
        return tuple(dict.fromkeys(one for one in all_seen if one not in kept))

    @property
    def created(self) -> frozenset[str]:
        """Files and folders that it was about to make, because they were not there."""
        made = (one for one in self.seen if one.operation == Operation.CREATE and not one.exists)
        return frozenset(one.target for one in made if one.resource_type == ResourceType.FILESYSTEM)

    @property
    def imports(self) -> tuple[str, ...]:
        """Sensitive roots that the subject's own code imported."""
        return tuple(dict.fromkeys(one.target for one in self.seen if one.resource_type == IMPORT))

    def places(self, observed: ObservedUse) -> tuple[str, ...]:
        """Return the lines of the subject's own code that led to an access."""
        return tuple(self._places.get(observed, ()))

    def import_places(self, root: str) -> tuple[str, ...]:
        """Return the lines of the subject's own code that import a root."""
        return self.places(ObservedUse.of_import(root))

    def times(self, observed: ObservedUse) -> int:
        """Return the larger of the numbers of probes and uses of an access."""
        return max(self._times[observed, probe] for probe in (False, True))

    def suggestion(
        self,
        manifest: Manifest,
        *,
        pointer: str = "",
        most: int | None = None,
        granted: tuple[AccessRule, ...] = (),
        with_looks: bool = False,
    ) -> Suggestion:
        """Return the smallest manifest with the same behavior, without rules that are ``granted`` anyway.

        Probes by libraries are omitted unless ``with_looks``: the paths then look absent to them.
        """
        if self.is_full:
            kept = f"{_MOST:,} different accesses with {_MOST_LETTERS:,} characters"
            raise InvalidInputError.of(f"too many accesses to record (limit: {kept}): record less at a time")
        wanted = (*self.accesses, *(self.looked_by_libraries if with_looks else ()))
        files = {one.target for one in wanted if one.resource_type == ResourceType.FILESYSTEM}
        folders = frozenset(filter(os.path.isdir, files))
        return suggest(
            manifest,
            wanted,
            self.imports,
            pointer=pointer,
            most=most,
            granted=granted,
            looked=self.looked,
            folders=folders,
        )

    # ---- traces ------------------------------------------------------------------------------------------------------

    def lines(self) -> Iterator[str]:
        """Yield all observations as JSON, one per line."""
        for one, times in self.seen.items():
            yield json.dumps({**one._asdict(), "times": times}, ensure_ascii=True)

    def read(self, lines: Iterable[str]) -> None:
        """Add observations that ``lines`` has written."""
        read = 0
        try:
            for line in lines:
                self._read(json.loads(line))
                read += 1
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise InvalidInputError.of(
                "expected an observation written by record --trace", pointer=f"/{read + 1}"
            ) from None

    def _read(self, value: Any) -> None:
        times = value.pop("times")
        value.setdefault("probe", False)  # earlier versions did not write it
        if type(times) is not int or times < 1 or value.keys() != set(RecordedAccess._fields):
            raise ValueError("malformed observation")
        noticed = RecordedAccess(**value)
        self.notice(noticed)
        self._add(noticed, times - 1)


def _use(noticed: RecordedAccess) -> ObservedUse:
    return ObservedUse(*noticed[:3])


class Installation:
    """Decides about a recorded installation: its HTTP requests are allowed, all else follows the manifest."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording

    def decide(self, question: AccessQuestion) -> bool:
        """Answer one question."""
        is_request = question.resource_type == ResourceType.NETWORK
        if is_request:
            self._recording.notice((question.resource_type, question.operation, question.target))
        return is_request


T = TypeVar("T")
_LONGEST_STOP = 30.0
_ALLOWED = policy.AccessDecision(True, policy.DecisionCode.SANDBOX_ALLOWLIST, False, "Allowed in this test.")  # noqa: FBT003
_LOCKED = policy.AccessDecision(False, policy.DecisionCode.NOT_ENABLED, False, policy.EXTERNAL_URL_LOCKED)  # noqa: FBT003
_DENIED = policy.AccessDecision(False, policy.DecisionCode.NOT_ENABLED, False, NEEDS_APPROVAL)  # noqa: FBT003


class ExtensionRun:
    """An extension in a separate process. Its calls wait for their results, and raise the same errors as in a host.

    Declared and approved access is allowed and recorded, all other access is denied, as in a host without decisions.
    With ``observe=True`` everything is allowed and recorded, and ``proposal()`` returns the smallest sufficient
    manifest.
    """

    def __init__(
        self,
        kind: ManifestKind,
        folder: str | PathLike[str],
        *,
        approve: Iterable[Mapping[str, Any]] = (),
        services: Mapping[str, Callable[..., Any]] | None = None,
        user_id: str = "tester",
        session_key: str = "test",
        timeout: float = 30.0,
        observe: bool = False,
        manifest: Manifest | None = None,
        environment: str = "",
        env: Iterable[tuple[str, str]] = (),
        protected: Iterable[str] = (),
    ) -> None:
        """Take ``approve``, entries as in a manifest, which are allowed as if an administrator had approved them.

        ``services`` replace services of a host, such as ``{"engines.call": fake}``; each is called with a view of the
        caller, and the arguments.

        ``observe`` allows everything that is not ``protected``, for ``proposal``, including programs that
        ``sdk.tasks.run_subprocess`` starts. ``manifest`` replaces the one in the folder, ``environment`` the virtual
        environment of this interpreter; ``env`` are additional variables.
        """
        self._folder = Path(folder).resolve()
        if manifest is None:
            # As a host names it: by the given path, which may be a link.
            manifest = load_manifest(self._folder / FILE_NAME, kind, name=Path(os.path.abspath(folder)).name)  # noqa: PTH100
        self.manifest = manifest
        self._pointer = "/runtime" if "/runtime" in self.manifest.sections else ""
        self._section = section_of(self.manifest, self._pointer)
        self._observe = observe
        self._starter: WorkerStarter | None = None
        self._environment = environment or sys.prefix
        self._env = tuple(env)
        self._protected = tuple(protected)
        self._approved = policy.parse_access(list(approve), base=str(self._folder))
        declared = self._section.access if observe else ()
        compiled = policy.compile_policy(subject=self.manifest.subject, rules=(*declared, *self._approved))
        self.recording = Recording()
        """All accesses with the lines that led to them, and denials: the data of ``record``, with ``observe``."""
        offered = {"tasks.progress": _take_progress, **(services or {})}
        self._host = _RunHost(compiled, self.recording, offered, str(self._folder) if observe else None)
        self._children: ChildService | None = None
        if observe:
            self.start_by(None, None)
        self._identity = CallIdentity(user_id=user_id, session_key=session_key)
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._worker: WorkerHandle | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="extension-test-")

    def start_by(self, starter: WorkerStarter | None, launcher: ChildLauncher | None) -> None:
        """Set the starters of its process and of its programs; None to start them directly. Call it before ``with``."""
        self._starter = starter
        decisions = _ProgramDecisions(self._host)
        rights = PathRights(decisions, compare=decisions.compare)
        orders = LaunchRequests(rights, home_of=lambda _: str(self.data_dir))
        children = self._children = ChildService(orders, launcher or PopenChild)

        def start(*order: Any) -> Any:
            self.recording.has_programs = True
            return children.start_apart(*order)

        self._host.services = {**children.services(), "children.start": start, **self._host.services}

    def __enter__(self) -> Self:
        self._thread.start()
        self._worker = WorkerHandle(self._spec(), self._host, starter=self._starter)
        try:
            if self._children is not None:
                self._loop.call_soon_threadsafe(self._children.open)
            surfaces = self._wait(self._worker.start())
        except BaseException:
            self.__exit__()
            raise
        self._host.narrowed = frozenset(
            f"{one.kind}:{self.manifest.name}.{one.name}" for one in surfaces.values() if "access" in one.options
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._wait(self._worker.stop())
        if self._children is not None:
            self._children.close()
        self._wait(_rest(self._timeout))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._timeout)
        self._loop.close()
        self._scratch.cleanup()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def method(self, method: str, /, **params: Any) -> Any:
        """Call a method of an engine or extractor; a generator returns a list."""
        worker = self._running()
        info = self._wait(worker.start()).get(("method", method))
        if info is not None and info.is_stream:
            return self._wait(_listed(worker.stream("method", method, params, caller=self._identity)))
        return self.call("method", method, **params)

    def call(self, kind: str, name: str, /, **params: Any) -> Any:
        """Call any declared function of the extension. For an agent or a pipeline, return the ``value`` of its run."""
        worker = self._running()
        if kind in KINDS:
            run = run_in_worker(worker, kind, name, params, caller=Caller(*self._identity), seconds=self._timeout)
            return self._wait(run).value
        return self._wait(worker.call(kind, name, params, caller=self._identity))

    # ---- accesses ----------------------------------------------------------------------------------------------------

    @property
    def accesses(self) -> frozenset[ObservedUse]:
        """All accesses so far beyond its own folder and data: declared, approved or denied."""
        return frozenset(self._host.asked)

    @property
    def denied(self) -> frozenset[ObservedUse]:
        """The denied accesses."""
        return frozenset(self.recording.refused)

    def proposal(self, *, most: int | None = None) -> Suggestion:
        """Return the smallest manifest for its behavior so far; see ``manifests.proposal.propose``."""
        if not self._observe:
            raise GuardUsageError("a proposal needs all accesses of the extension: use observe=True")
        return self.recording.suggestion(self.manifest, pointer=self._pointer, most=most, granted=self._approved)

    @property
    def surfaces(self) -> tuple[tuple[str, str], ...]:
        """Declared functions: kinds and names."""
        return tuple(sorted(self._wait(self._running().start())))

    @property
    def printed(self) -> str:
        """Its output on standard output and error."""
        return "".join(self._host.printed)

    @property
    def data_dir(self) -> Path:
        """Its data folder, which is empty at first and removed after the run."""
        return Path(self._scratch.name, "data")

    # ---- internals ---------------------------------------------------------------------------------------------------

    def _spec(self) -> WorkerSpec:
        self.data_dir.mkdir()
        imports = tuple(sorted(SENSITIVE_IMPORTS)) if self._observe else self._section.allowed_imports
        return WorkerSpec(
            kind=self.manifest.kind.value,
            name=self.manifest.name,
            folder=str(self._folder),
            interpreter=str(getattr(sys, "_base_executable", sys.executable)),
            environment=self._environment,
            entry=getattr(self.manifest, "entry", ""),
            data_dir=str(self.data_dir),
            # The guard inside decides by declarations, as in a host. In observe mode all access is asked about and
            # recorded.
            access=policy.rules_to_json(() if self._observe else self._section.access),
            allowed_imports=imports,
            candidate_access="" if self._observe else policy.rules_to_json(()),
            candidate_imports=imports,
            tells_uses=not self._observe,
            own_read=(str(self._folder),),
            own_write=(str(self.data_dir),),
            # Protected, because the temp directory is open to all subjects and tests keep undeclared files there.
            protected=(str(self._scratch.name), *self._protected),
            tells_accesses=self._observe,
            no_exec=self._starter is not None,
            confined=self._starter is not None,
            env=self._env,
            call_timeout=self._timeout,
            start_timeout=self._timeout,
        )

    def _running(self) -> WorkerHandle:
        if self._worker is None:
            raise ExtensionBroken("the extension is not running: use it in a with statement")
        return self._worker

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        # The worker enforces the timeout, and needs a little longer to stop a call that hangs: this is only a fallback.
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._timeout * 2 + _LONGEST_STOP)


async def _rest(seconds: float) -> None:
    """Wait for remaining tasks, such as the end of a process whose start failed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=seconds)


async def _listed(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


# ---- decisions -------------------------------------------------------------------------------------------------------


@dataclass(eq=False, repr=False)
class _RunHost:
    """Host of the worker, which records used, requested and denied accesses.

    The guard in the extension's process allows declared access, as in a host, and reports it here. Other access is
    asked about here: the policy stands for approvals.
    """

    _rules: policy.CompiledPolicy
    recording: Recording
    services: Mapping[str, Callable[..., Any]]
    _kept: str | None
    """Folder with sources that is writable in observe mode only if the manifest declares it; None in other modes."""
    asked: set[ObservedUse] = field(default_factory=set)
    printed: list[str] = field(default_factory=list)
    narrowed: frozenset[str] = frozenset()
    """Tools, agents and pipelines with their own ``access`` list, which no manifest can extend."""

    def decide(self, question: AccessQuestion) -> policy.AccessDecision:
        """Decide by the policy, and record the question."""
        access = ObservedUse(question.resource_type, question.operation, question.target)
        self.asked.add(access)
        if _allows(self._rules, question) or self._is_observed(question):
            self.recording.granted.add(access)
            return _ALLOWED
        self.recording.refused.add(access)
        return _LOCKED if question.resource_type == policy.ResourceType.NETWORK else _DENIED

    def _is_observed(self, question: AccessQuestion) -> bool:
        """Return whether observe mode allows an access: all except changes of the sources."""
        if self._kept is None or not self.narrowed.isdisjoint(question.subject_chain):
            return False
        changes_file = question.resource_type == policy.ResourceType.FILESYSTEM and question.operation not in (
            policy.Operation.READ,
            policy.Operation.EXECUTE,
        )
        return not (changes_file and policy.is_at_or_below(question.target, self._kept))

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the extension."""
        return self.services[name](view, *args)

    def output(self, _label: str, _stream: str, text: str) -> None:
        """Store its output."""
        self.printed.append(text)

    def denied(self, _label: str, denial: SandboxDenied) -> None:
        """Record a denial."""
        self.recording.deny(denial)

    def noticed(self, facts: list[Any]) -> None:
        """Record an access."""
        self.recording.notice(facts)

    def used(self, question: AccessQuestion) -> None:
        """Record the use of a declared access."""
        self.asked.add(ObservedUse(question.resource_type, question.operation, question.target))

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Do nothing: no candidate is compared, no packet filter permits connections, and errors have the limit."""

    saw = observe = limit_reached = _ignore


def _allows(rules: policy.CompiledPolicy, question: AccessQuestion) -> bool:
    """Match like the guard does with declared rules."""
    operation = policy.Operation(question.operation)
    if question.resource_type == policy.ResourceType.FILESYSTEM:
        return rules.paths.allows(question.target, policy.file_access(operation))
    if question.resource_type == policy.ResourceType.NETWORK:
        return rules.network.allows(operation, policy.parse_request(question.target))
    wanted = (policy.ResourceType(question.resource_type), operation, question.target)
    return wanted in {(rule.resource_type, rule.operation, rule.normalized_target) for rule in rules.rules}


def checked_progress(_view: object, fraction: Any, message: Any) -> Progress:
    """Validate the progress of a task like the service of a host, and return it."""
    from .store import Progress  # noqa: PLC0415 - slow import
    from .store.values import progress_to_json  # noqa: PLC0415

    said = Progress(fraction, message)
    progress_to_json(said)
    return said


def _take_progress(view: object, fraction: Any, message: Any) -> None:
    checked_progress(view, fraction, message)


class _ProgramDecisions:
    """Decisions about started programs, which the guard in the extension's process does not see."""

    def __init__(self, host: _RunHost) -> None:
        self._host = host

    def decide(self, question: AccessQuestion) -> policy.AccessDecision:
        self._host.recording.notice((question.resource_type, question.operation, question.target))
        return self._host.decide(question)

    def compare(self, view: RawView, what: tuple[str, str, str], allows: Callable[[RawView], bool]) -> bool:
        """Record accesses that a declaration allows here, where a host would compare them with a candidate."""
        allowed = allows(view)
        if allowed:
            self._host.asked.add(ObservedUse(*what))
        return allowed
