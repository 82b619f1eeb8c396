"""Engines and extractors: installed once into a separate environment, then called in a worker that uses it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, defaultdict
from contextlib import ExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from democrai_sandbox.policy import InvalidInputError, SandboxError, nearest
from democrai_sandbox.runtime.calls.invocation import require_object
from democrai_sandbox.runtime.installs.environments import runtime_rules, worker_spec
from democrai_sandbox.runtime.installs.installer import Installations, Installer
from democrai_sandbox.runtime.worker.process import NOBODY, PlainStarter, WorkerHostServices, WorkerStarter

from .access_environment import caller_of
from .sdk_services import SdkFutures

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.guard import Decider
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.manifests import Manifest, ManifestKind
    from democrai_sandbox.policy.subjects import CallIdentity
    from democrai_sandbox.runtime.confinement.confinement import Confinement
    from democrai_sandbox.runtime.extensions.registry import Registry
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.installs.environments import InstalledEnvironment, InstallReporter, InstallStatus
    from democrai_sandbox.runtime.worker.handle import CallOptions, WorkerHandle

_MOST_STREAMS = 64


@dataclass(eq=False, slots=True)
class _OpenStream:
    """A stream, the only caller that may read it, and whether a read is in progress."""

    runtime: InstalledRuntime
    owner: tuple[Any, ...]
    items: AsyncGenerator[Any, None]
    busy: bool = False


class EngineServices:
    """The functions behind the service names of ``services``."""

    def __init__(self, engines: InstalledRuntime, extractors: InstalledRuntime) -> None:
        self._runtimes: Mapping[str, InstalledRuntime] = {"engine": engines, "extractor": extractors}
        self._streams: dict[str, _OpenStream] = {}

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the service functions by name."""
        return {
            "engines.call": self.call,
            "engines.open": self.open,
            "engines.next": self.next,
            "engines.close": self.close,
            "engines.settings": self.settings,
        }

    def call(self, view: RawView | None, address: Any, params: Any, seconds: Any) -> Any:
        """Return a future of a method's result; its address is the kind, the name, and the method."""
        runtime, chain, caller = self._checked(view, address, params, seconds)
        name, method = address[1:]
        return runtime.promises.promise(runtime.call(name, method, params, caller, ancestors=chain, timeout=seconds))

    def open(self, view: RawView | None, address: Any, params: Any, seconds: Any) -> str:
        """Return the token for reading the items of a generator method. Nothing runs until the first read."""
        runtime, chain, caller = self._checked(view, address, params, seconds)
        _, name, method = address
        owner = _owner(view)
        if sum(stream.owner == owner for stream in self._streams.values()) >= _MOST_STREAMS:
            raise InvalidInputError.of(f"more than {_MOST_STREAMS} streams are open: close those you no longer read")
        token = secrets.token_urlsafe(16)
        items = runtime.stream(name, method, params, caller, ancestors=chain, timeout=seconds)
        self._streams[token] = _OpenStream(runtime, owner, items)
        return token

    def next(self, view: RawView | None, token: Any) -> Any:
        """Return a future of a list with the next item; the list is empty at the end."""
        stream = self._streams.get(token) if type(token) is str else None
        # The guard identifies the owner, so a token is useless to another subject.
        if stream is None or stream.owner != _owner(view) or stream.busy:
            raise InvalidInputError.of("unknown stream, or another read is in progress", pointer="/stream")
        stream.busy = True
        return stream.runtime.promises.promise(self._next(token, stream))

    async def _next(self, token: str, stream: _OpenStream) -> list[Any]:
        try:
            return [await anext(stream.items)]
        except StopAsyncIteration:
            self._streams.pop(token, None)
            return []
        except BaseException:
            self._streams.pop(token, None)
            raise
        finally:
            stream.busy = False

    def close(self, view: RawView | None, token: Any) -> None:
        """End a stream; ignore one that has ended already."""
        stream = self._streams.get(token) if type(token) is str else None
        if stream is not None and stream.owner == _owner(view):
            del self._streams[token]
            stream.runtime.promises.promise(_close(stream.items))

    def settings(self, view: RawView | None) -> dict[str, Any]:
        """Return the stored configuration of the calling engine or extractor."""
        for label in reversed(view.labels if view else ()):
            kind, _, name = label.partition(":")
            if kind in self._runtimes:
                return dict(self._runtimes[kind].configuration(name))
        raise InvalidInputError.of("only an engine or an extractor has a stored configuration")

    def _checked(
        self, view: RawView | None, address: Any, params: Any, seconds: Any
    ) -> tuple[InstalledRuntime, tuple[str, ...], Caller]:
        if view is None:
            raise InvalidInputError.of("this code is not guarded: call the runtime of the host directly")
        if type(address) not in (list, tuple) or [type(part) for part in address] != [str, str, str]:
            raise InvalidInputError.of("expected the name of an engine, and of one of its methods", pointer="/name")
        kind, name, _ = address
        if kind not in self._runtimes:
            suggestion = nearest(kind, self._runtimes)
            raise InvalidInputError.of("expected engine or extractor", pointer="/kind", suggestion=suggestion)
        require_object(params, "/params")
        if seconds is not None and (type(seconds) not in (int, float) or not 0 < seconds < float("inf")):
            raise InvalidInputError.of("expected a positive number of seconds", pointer="/timeout")
        if f"{kind}:{name}" in view.labels:
            # It would wait for itself: its worker may have no free thread for the call.
            raise InvalidInputError.of(f"{kind} {name} is already in the call chain", pointer="/name")
        return self._runtimes[kind], tuple(view.labels), caller_of(view)


def _owner(view: RawView | None) -> tuple[Any, ...]:
    return () if view is None else (view.labels, *view.identity)


async def _close(items: Any) -> None:
    await items.aclose()


METHOD = "method"
_NO_CONFIGURATION: Mapping[str, Any] = {}
_DRAIN_PAUSE = 0.05
_PATIENCE = 3600.0
"""Longest wait of synchronous callers; the call itself has a shorter timeout."""
_log = logging.getLogger(__name__)


class _RunningInstallation(NamedTuple):
    """A worker, and the installation and configuration it was started with."""

    worker: WorkerHandle
    use: ExitStack
    environment: str
    configuration: Mapping[str, Any]


class InstalledRuntime:
    """All engines, or all extractors. Belongs to one event loop.

    One class serves both kinds. The install phase writes the environment and the runtime phase reads it. They share
    nothing else: rules, imports, variables and the permission to start programs belong to the phase.
    """

    def __init__(
        self,
        kind: ManifestKind,
        settings: RuntimeSettings,
        registry: Registry,
        host: WorkerHostServices,
        *,
        configuration: Callable[[str, str], Mapping[str, Any]],
        decider: Decider,
        confinement: Confinement,
        protected: tuple[str, ...],
    ) -> None:
        """Take the registered extensions. ``configuration(kind, name)`` reads the stored configuration and may block.

        ``confinement`` starts processes where the kernel confines them.
        """
        self.kind = kind
        self._settings = settings
        self._host = host
        self._configuration = configuration
        self._confinement = confinement
        self._starter: WorkerStarter = confinement.host_starter() or PlainStarter()
        self._protected = (*settings.protected, *protected)
        make = partial(Installer, decider=decider, protected=self._protected, confinement=confinement)
        self._installations = Installations(kind, registry, lambda extension: make(extension, settings, self._starter))
        self.worker_events: Counter[tuple[str, str]] = Counter()
        """Changes of worker processes, by label and event."""
        self._running: dict[str, _RunningInstallation] = {}
        self._looked: dict[str, float] = {}
        self._look_seconds = 2.0
        """Maximum age of a read configuration before a call reads it again."""
        self._candidates: dict[str, Manifest] = {}
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retiring: set[asyncio.Task[None]] = set()
        self.promises = SdkFutures(f"{kind.value}s", patience=_PATIENCE)
        """Runs work of the SDK services on this runtime's loop."""

    # ---- install phase -----------------------------------------------------------------------------------------------

    async def recover(self) -> dict[str, list[str]]:
        """Use the running loop from now on; remove and return the leftovers of interrupted installations."""
        self.promises.open()
        return await self._installations.recover()

    async def install(
        self, name: str, report: InstallReporter | None = None, *, caller: CallIdentity = NOBODY, again: bool = False
    ) -> InstalledEnvironment:
        """Install an extension. Concurrent callers wait for the same installation.

        Running calls keep the previous environment; the first call afterwards goes to a new worker.
        """
        installed = await self._installations.install(name, report, caller=caller, again=again)
        self._looked.pop(name, None)
        return installed

    def status(self, name: str) -> InstallStatus:
        """Return whether an extension is installed, and the progress of its installation."""
        return self._installations.status(name)

    # ---- runtime phase -----------------------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        caller: CallIdentity = NOBODY,
        **options: Unpack[CallOptions],
    ) -> Any:
        """Call a method on behalf of ``caller``."""
        worker = await self._worker(name)
        return await worker.call(METHOD, method, params, caller=caller, **options)

    async def stream(
        self,
        name: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        caller: CallIdentity = NOBODY,
        **options: Unpack[CallOptions],
    ) -> AsyncGenerator[Any, None]:
        """Yield the items of a method as they arrive."""
        worker = await self._worker(name)
        async with aclosing(worker.stream(METHOD, method, params, caller=caller, **options)) as items:
            async for item in items:
                yield item

    def configuration(self, name: str) -> Mapping[str, Any]:
        """Return the stored configuration that the running worker was started with."""
        running = self._running.get(name)
        return _NO_CONFIGURATION if running is None else running.configuration

    @property
    def workers(self) -> Mapping[str, int | None]:
        """Process id of each extension's worker; None for a worker that has ended. Thread-safe."""
        return {name: running.worker.pid for name, running in tuple(self._running.items())}

    def hold_against(self, name: str, candidate: Manifest | None) -> str:
        """Compare the runtime phase with a candidate, or with none; return its rules as JSON. Thread-safe."""
        if candidate is None:
            self._candidates.pop(name, None)
        else:
            self._candidates[name] = candidate
        running = self._running.get(name)
        if running is not None:
            running.worker.hold_against(*self._candidate(name, running.configuration))
        return self._candidate(name, self.configuration(name))[0]

    def access_changed(self) -> None:
        """Make the guards in all workers ask again. Thread-safe."""
        for running in tuple(self._running.values()):
            running.worker.access_changed()

    async def stop(self) -> None:
        """Stop all workers and installations."""
        await self._installations.stop()
        for running in tuple(self._running.values()):
            await _end(running)
        self._running.clear()
        if self._retiring:
            for retiring in self._retiring:
                retiring.cancel()
            await asyncio.wait(self._retiring)

    # ---- workers -----------------------------------------------------------------------------------------------------

    async def _worker(self, name: str) -> WorkerHandle:
        """Return the worker for an extension, with its current environment and configuration."""
        now = asyncio.get_running_loop().time()
        running = self._running.get(name)
        if running is not None and now < self._looked.get(name, 0.0) + self._look_seconds:
            return running.worker
        installer = self._installations.of(name)
        async with self._turns[name]:
            running = self._running.get(name)
            configuration = await self._read_configuration(name, running)
            installed = installer.place.installed()
            same = running is not None and installed is not None and running.environment == installed.folder
            if running is None or not same or running.configuration != configuration:
                running = await self._replace(name, running, configuration)
            self._looked[name] = now
            return running.worker

    async def _read_configuration(self, name: str, running: _RunningInstallation | None) -> Mapping[str, Any]:
        """Return the stored configuration; if the database is down, keep the configuration of the running worker."""
        try:
            return await asyncio.to_thread(self._configuration, self.kind.value, name)
        except SandboxError as error:
            if running is None:
                raise
            _log.warning("the configuration of %s %s could not be read: %s", self.kind, name, error)
            return running.configuration

    async def _replace(
        self, name: str, old: _RunningInstallation | None, configuration: Mapping[str, Any]
    ) -> _RunningInstallation:
        installer = self._installations.of(name)
        installed, use = await asyncio.to_thread(self._installations.take, name)
        try:
            spec = worker_spec(installer.extension, installed, configuration, self._settings)
        except BaseException:
            use.close()
            raise
        access, imports = self._candidate(name, configuration)
        spec = spec._replace(
            candidate_access=access,
            candidate_imports=imports,
            protected=self._protected,
            native_packages=self._settings.native_packages,
        )
        worker = self._confinement.worker(
            installer.extension, spec, self._host, self.worker_events, starter=self._starter
        )
        running = self._running[name] = _RunningInstallation(worker, use, installed.folder, configuration)
        if old is not None:
            task = asyncio.create_task(_retire(old, self._settings.call_timeout))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return running

    def _candidate(self, name: str, configuration: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the rules of the candidate as JSON, and its imports; empty without a candidate."""
        candidate = self._candidates.get(name)
        return ("", ()) if candidate is None else runtime_rules(candidate, configuration)


async def _retire(running: _RunningInstallation, seconds: float) -> None:
    """Stop a worker after its running calls, at the latest after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            while running.worker.in_flight:  # noqa: ASYNC110 - workers do not report that they are idle
                await asyncio.sleep(_DRAIN_PAUSE)
    except TimeoutError:
        pass
    finally:
        await _end(running)


async def _end(running: _RunningInstallation) -> None:
    try:
        await running.worker.stop()
    finally:
        running.use.close()
