"""Test support for extensions: run one under its real guard, and check exactly which accesses it makes.

The extension runs in a separate process, so any number of them can be tested in one run of pytest::

    with testing.module("modules/reports") as module:
        assert module.action("total", month=5) == 12
        module.assert_accesses([("network", "receive", "https://api.example.com/v1/reports")])

The test process itself stays unguarded. Access that the manifest declares or ``approve`` names is allowed and recorded;
all other access is denied, as in a host without decisions. With ``observe=True`` everything is allowed and recorded,
and ``proposal()`` returns the smallest sufficient manifest.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.errors import ExtensionBroken, GuardUsageError
from democrai_sandbox.manifests import FILE_NAME, ManifestKind, load_manifest
from democrai_sandbox.manifests.lint import SENSITIVE_IMPORTS
from democrai_sandbox.manifests.proposal import section_of
from democrai_sandbox.policy import compile_policy, parse_access, rules_to_json
from democrai_sandbox.runtime.ai.model import KINDS
from democrai_sandbox.runtime.ai.via_worker import WorkerAsset
from democrai_sandbox.runtime.worker.handle import WorkerHandle
from democrai_sandbox.runtime.worker.process import CallIdentity, WorkerSpec

from .fake_host import Access, AccessBook, FakeHost, TestedPrograms
from .recording import Recording

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
    from os import PathLike
    from typing import Self

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.manifests.proposal import Suggestion
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime.children.launch_request import ChildLauncher
    from democrai_sandbox.runtime.worker.process import WorkerStarter

T = TypeVar("T")
_PATIENCE = 30.0

__all__ = ["Access", "Extension", "engine", "extractor", "module"]


def module(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return a module for a test, as a context manager; see ``Extension`` for the options."""
    return Extension(ManifestKind.MODULE, folder, **options)


def engine(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return an engine in its runtime phase, with the packages of this interpreter."""
    return Extension(ManifestKind.ENGINE, folder, **options)


def extractor(folder: str | PathLike[str], **options: Any) -> Extension:
    """Return an extractor in its runtime phase, with the packages of this interpreter."""
    return Extension(ManifestKind.EXTRACTOR, folder, **options)


class Extension:
    """An extension in a separate process. Its calls wait for their results, and raise the same errors as in a host."""

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
        self._approved = parse_access(list(approve), base=str(self._folder))
        declared = self._section.access if observe else ()
        policy = compile_policy(subject=self.manifest.subject, rules=(*declared, *self._approved))
        self.recording = Recording()
        """All accesses with the lines that led to them, and denials: the data of ``record``, with ``observe``."""
        self._book = AccessBook(policy, self.recording, kept=str(self._folder) if observe else None)
        self._host = FakeHost(self._book, dict(services or {}), self.recording)
        self._programs: TestedPrograms | None = None
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
        self._programs = TestedPrograms(self._book, self.recording, self._data_of, launcher)
        self._host.offer(self._programs.services())

    def __enter__(self) -> Self:
        self._thread.start()
        self._worker = WorkerHandle(self._spec(), self._host, starter=self._starter)
        try:
            if self._programs is not None:
                self._wait(self._programs.open())
            surfaces = self._wait(self._worker.start())
        except BaseException:
            self.__exit__()
            raise
        self._book.narrowed = frozenset(
            f"{one.kind}:{self.manifest.name}.{one.name}" for one in surfaces.values() if "access" in one.options
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._wait(self._worker.stop())
        if self._programs is not None:
            self._programs.close()
        self._wait(_rest(self._timeout))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(self._timeout)
        self._loop.close()
        self._scratch.cleanup()

    # ---- calls -------------------------------------------------------------------------------------------------------

    def render(self, **params: Any) -> Any:
        """Return the rendered output of a module."""
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
        """Call a tool of a module: under its own ``access``, or with the rights of its module if it declares none."""
        return self.call("tool", tool, **params)

    def method(self, method: str, /, **params: Any) -> Any:
        """Call a method of an engine or extractor; a generator returns a list."""
        running = self._running()
        if running.surfaces_of("method").get(method):
            return self._wait(_listed(running.worker.stream("method", method, params, caller=self._identity)))
        return self.call("method", method, **params)

    def call(self, kind: str, name: str, /, **params: Any) -> Any:
        """Call any declared function of the extension. For an agent or a pipeline, return the ``value`` of its run."""
        worker = self._running().worker
        if kind in KINDS:
            run = WorkerAsset(kind, name, "", worker).run(params, Caller(*self._identity), self._timeout)
            return self._wait(run).value
        return self._wait(worker.call(kind, name, params, caller=self._identity))

    # ---- accesses ----------------------------------------------------------------------------------------------------

    @property
    def accesses(self) -> frozenset[Access]:
        """All accesses so far beyond its own folder and data: declared, approved or denied."""
        return frozenset(self._book.asked)

    @property
    def denied(self) -> frozenset[Access]:
        """The denied accesses."""
        return frozenset(self._book.denied)

    def proposal(self, *, most: int | None = None) -> Suggestion:
        """Return the smallest manifest for its behavior so far; see ``manifests.proposing.propose``."""
        if not self._observe:
            raise GuardUsageError("a proposal needs all accesses of the extension: use observe=True")
        return self.recording.suggestion(self.manifest, pointer=self._pointer, most=most, granted=self._approved)

    @property
    def surfaces(self) -> tuple[tuple[str, str], ...]:
        """Declared functions: kinds and names."""
        return tuple(sorted(self._running().surfaces))

    @property
    def printed(self) -> str:
        """Its output on standard output and error."""
        return "".join(self._host.printed)

    @property
    def data_dir(self) -> Path:
        """Its data folder, which is empty at first and removed after the test."""
        return Path(self._scratch.name, "data")

    def assert_accesses(self, expected: Iterable[Sequence[str]]) -> None:
        """Fail unless it accessed exactly these, each as (resource type, operation, target)."""
        wanted = {Access(*entry) for entry in expected}
        more, less = sorted(self.accesses - wanted), sorted(wanted - self.accesses)
        lines = [f"  used, but not expected: {' '.join(access)}" for access in more]
        lines += [f"  expected, but not used: {' '.join(access)}" for access in less]
        if lines:
            raise AssertionError("\n".join([f"{self.manifest.subject} used other accesses than expected:", *lines]))

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
            access=rules_to_json(() if self._observe else self._section.access),
            allowed_imports=imports,
            candidate_access="" if self._observe else rules_to_json(()),
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

    def _data_of(self, _subject: Subject) -> str:
        return str(self.data_dir)

    def _running(self) -> _RunningExtension:
        if self._worker is None:
            raise ExtensionBroken("the extension is not running: use it in a with statement")
        return _RunningExtension(self._worker, self._wait(self._worker.start()))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        # The worker enforces the timeout, and needs a little longer to stop a call that hangs: this is only a fallback.
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(self._timeout * 2 + _PATIENCE)


async def _rest(patience: float) -> None:
    """Wait for remaining tasks, such as the end of a process whose start failed."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=patience)


async def _listed(stream: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in stream]


class _RunningExtension(NamedTuple):
    worker: WorkerHandle
    surfaces: Mapping[tuple[str, str], Any]

    def surfaces_of(self, kind: str) -> dict[str, bool]:
        """Return whether each surface of a kind is a stream, by name."""
        return {name: info.streams for (of_kind, name), info in self.surfaces.items() if of_kind == kind}
