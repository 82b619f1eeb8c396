"""For the tests of an extension: run it under its real guard, and say exactly what it asked for.

The extension runs in a process of its own, so any number of them can be tested in one run of pytest::

    with testing.module("modules/reports") as module:
        assert module.action("total", month=5) == 12
        module.assert_accesses([("network", "receive", "https://api.example.com/v1/reports")])

Nothing outside that process is armed or sealed. What the manifest declares is allowed, what ``approve`` names as well,
and all of it is written down; the rest is denied, as it would be in a host where nobody has decided yet.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from democrai_sandbox.errors import ExtensionBroken
from democrai_sandbox.manifests import FILE_NAME, ManifestKind, Section, load_manifest
from democrai_sandbox.policy import (
    EXTERNAL_URL_LOCKED,
    AccessDecision,
    CompiledPolicy,
    DecisionCode,
    Operation,
    ResourceType,
    compile_policy,
    file_access,
    parse_access,
    parse_request,
    rules_to_json,
)
from democrai_sandbox.runtime.worker.interface import Identity, WorkerSpec
from democrai_sandbox.runtime.worker.pool import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from os import PathLike
    from typing import Self

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.runtime.confinement.observing import Told

T = TypeVar("T")

__all__ = ["Access", "Extension", "engine", "extractor", "module"]

_ALLOWED = AccessDecision(True, DecisionCode.SANDBOX_ALLOWLIST, False, "Allowed in this test.")  # noqa: FBT003
_DENIED = AccessDecision(False, DecisionCode.NOT_ENABLED, False, EXTERNAL_URL_LOCKED)  # noqa: FBT003


class Access(NamedTuple):
    """Something an extension asked for: a file or a folder beyond its own, a host or a URL, a program."""

    resource_type: str
    operation: str
    target: str


def module(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return a module to be tested, as a context manager; see ``Extension`` for the options."""
    return Extension(ManifestKind.MODULE, folder, **options)


def engine(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return an engine in its runtime phase, on the packages of this interpreter."""
    return Extension(ManifestKind.ENGINE, folder, **options)


def extractor(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return an extractor in its runtime phase, on the packages of this interpreter."""
    return Extension(ManifestKind.EXTRACTOR, folder, **options)


class Extension:
    """An extension in a process of its own. Its calls wait for their results, and raise what the host would get."""

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
    ) -> None:
        """``approve`` are entries as in a manifest, allowed as if an administrator had approved them.

        ``services`` stand in for what the SDK would ask of a host, such as ``{"engines.call": fake}``; each is called
        with a view of who asks, and the arguments.
        """
        self._folder = Path(folder).resolve()
        self._manifest = load_manifest(self._folder / FILE_NAME, kind)
        self._section = _section(self._manifest)
        approved = parse_access(list(approve), base=str(self._folder))
        self._book = _Book(compile_policy(subject=self._manifest.subject, rules=(*self._section.access, *approved)))
        self._host = _Host(self._book, dict(services or {}))
        self._identity = Identity(user_id=user_id, session_key=session_key)
        self._timeout = timeout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._worker: Worker | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="extension-test-")

    def __enter__(self) -> Self:
        self._thread.start()
        self._worker = Worker(self._spec(), self._host)
        try:
            self._wait(self._worker.start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._wait(self._worker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._timeout)
        self._loop.close()
        self._scratch.cleanup()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def render(self, **params: Any) -> Any:
        """Return what a module shows."""
        return self.call("render", "render", **params)

    def action(self, action: str, /, **params: Any) -> Any:
        """Call an action of a module."""
        return self.call("action", action, **params)

    def command(self, command: str, /, **params: Any) -> Any:
        """Call a command of a module."""
        return self.call("command", command, **params)

    def task(self, task: str, /, **params: Any) -> Any:
        """Run a task of a module to its end."""
        return self.call("task", task, **params)

    def tool(self, tool: str, /, **params: Any) -> Any:
        """Call a tool of a module, under the module's own declarations."""
        return self.call("tool", tool, **params)

    def method(self, method: str, /, **params: Any) -> Any:
        """Call a method of an engine or extractor; one that yields gives a list."""
        running = self._running()
        if running.surfaces_of("method").get(method):
            return self._wait(_listed(running.worker.stream("method", method, params, caller=self._identity)))
        return self.call("method", method, **params)

    def call(self, kind: str, name: str, /, **params: Any) -> Any:
        """Call anything that the extension declares."""
        return self._wait(self._running().worker.call(kind, name, params, caller=self._identity))

    # ---- what it did -------------------------------------------------------------------------------------------------

    @property
    def accesses(self) -> frozenset[Access]:
        """All that it asked for so far beyond its own folder and data: declared, approved or denied."""
        return frozenset(self._book.asked)

    @property
    def denied(self) -> frozenset[Access]:
        """What of that was denied."""
        return frozenset(access for access, allowed in self._book.asked.items() if not allowed)

    @property
    def printed(self) -> str:
        """What it wrote to its standard output and error."""
        return "".join(self._host.printed)

    @property
    def data_dir(self) -> Path:
        """Its data folder, which is empty at first and goes with the test."""
        return Path(self._scratch.name, "data")

    def assert_accesses(self, expected: Iterable[Sequence[str]]) -> None:
        """Fail unless it asked for exactly these, each as (resource type, operation, target)."""
        wanted = {Access(*entry) for entry in expected}
        more, less = sorted(self.accesses - wanted), sorted(wanted - self.accesses)
        lines = [f"  asked for, but not expected: {' '.join(access)}" for access in more]
        lines += [f"  expected, but not asked for: {' '.join(access)}" for access in less]
        if lines:
            raise AssertionError("\n".join([f"{self._manifest.subject} asked for other things:", *lines]))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _spec(self) -> WorkerSpec:
        self.data_dir.mkdir()
        return WorkerSpec(
            kind=self._manifest.kind.value,
            name=self._manifest.name,
            folder=str(self._folder),
            interpreter=str(getattr(sys, "_base_executable", sys.executable)),
            environment=sys.prefix,
            entry=getattr(self._manifest, "entry", ""),
            data_dir=str(self.data_dir),
            # Nothing is declared inside, so that everything is asked for here, and written down.
            access=rules_to_json(()),
            allowed_imports=self._section.allowed_imports,
            own_read=(str(self._folder),),
            own_write=(str(self.data_dir),),
            # The temp directory, which everybody may use, is where tests keep what an extension must ask for.
            protected=(str(self._scratch.name),),
            call_timeout=self._timeout,
            start_timeout=self._timeout,
        )

    def _running(self) -> _Running:
        if self._worker is None:
            raise ExtensionBroken("the extension is not running: use it in a with statement")
        return _Running(self._worker, self._wait(self._worker.start()))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._timeout * 2)


async def _listed(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


class _Running(NamedTuple):
    worker: Worker
    surfaces: Mapping[tuple[str, str], Any]

    def surfaces_of(self, kind: str) -> dict[str, bool]:
        """Return by name whether a surface of a kind yields."""
        return {name: info.streams for (of_kind, name), info in self.surfaces.items() if of_kind == kind}


class _Book:
    """What was asked for, and whether it was allowed."""

    def __init__(self, policy: CompiledPolicy) -> None:
        self._policy = policy
        self.asked: dict[Access, bool] = {}

    def decide(self, question: AccessQuestion) -> AccessDecision:
        allowed = _allows(self._policy, question)
        self.asked[Access(question.resource_type, question.operation, question.target)] = allowed
        return _ALLOWED if allowed else _DENIED


def _allows(policy: CompiledPolicy, question: AccessQuestion) -> bool:
    """Match as the guard itself does with declared rules."""
    operation = Operation(question.operation)
    if question.resource_type == ResourceType.FILESYSTEM:
        return policy.paths.allows(question.target, file_access(operation))
    if question.resource_type == ResourceType.NETWORK:
        return policy.network.allows(operation, parse_request(question.target))
    wanted = (ResourceType(question.resource_type), operation, question.target)
    return wanted in {(rule.resource_type, rule.operation, rule.normalized_target) for rule in policy.rules}


class _Host:
    """The host of one worker under test."""

    def __init__(self, book: _Book, services: dict[str, Callable[..., Any]]) -> None:
        self._book = book
        self._services = services
        self.printed: list[str] = []

    @property
    def services(self) -> tuple[str, ...]:
        return tuple(self._services)

    def decide(self, question: AccessQuestion) -> AccessDecision:
        return self._book.decide(question)

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        return self._services[name](view, *args)

    def output(self, label: str, stream: str, text: str) -> None:
        del label, stream
        self.printed.append(text)

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Denials are in the book already, and what code was told is raised in it."""

    def observe(self, told: Told) -> None:
        """Nothing below Python has to be opened for a connection."""


def _section(manifest: Any) -> Section:
    found = manifest.sections.get("/runtime") or manifest.sections.get("")
    return found if isinstance(found, Section) else Section()
