"""Kernel layer for the runtimes: how processes are started, and which sources the egress allowlist follows.

Without a kernel layer nothing is confined, and the runtimes work unchanged.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.guard import EndpointObserver, ObservedEndpoint
from democrai_sandbox.kernel.egress.allowlist import ObservedConnection
from democrai_sandbox.manifests.limits import NO_LIMITS, Limits
from democrai_sandbox.policy import AccessRule, Operation, ResourceType, Subject, rules_from_json
from democrai_sandbox.policy.hosts import is_address
from democrai_sandbox.runtime.children.service import PopenChild, unconfined_because
from democrai_sandbox.runtime.extensions.settings import default_processes
from democrai_sandbox.runtime.worker.handle import WorkerHandle

from .allowlist_sources import AllowlistSources, Approvals
from .confiner import ConfinedLauncher, ConfinedStarter, Confiner, declared_limits
from .process_paths import ProcessRights

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from democrai_sandbox.access import Access
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.kernel.egress.control import EgressControl
    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.runtime.children.launch_request import ChildLauncher
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.store import RuntimeStore
    from democrai_sandbox.runtime.worker.process import ConnectionReport, WorkerHostServices, WorkerSpec, WorkerStarter

_TEMP = "TMPDIR"


class Confinement:
    """Interface of the runtimes to confinement. Create it before the first guard."""

    def __init__(
        self,
        kernel: Kernel | None,
        access: Access,
        settings: RuntimeSettings,
        registry: Registry,
        *,
        owned: Callable[[Subject], tuple[str, ...]],
    ) -> None:
        """Take ``owned``, which returns the folders that the runtime gave to a subject."""
        _check_stage(kernel)
        self._settings = settings
        self._registry = registry
        self.approvals = Approvals(access.node)
        """Approvals in force, as rules."""
        self._access = access
        self._egress: EgressControl | None = None if kernel is None else kernel.egress
        self._confiner: Confiner | None = None
        if kernel is not None and kernel.spawn is not None:
            spawn, abi = kernel.spawn, kernel.abi
            self._confiner = Confiner(spawn, abi, kernel.flow, self._egress, unfiltered=kernel.unfiltered)
        self._worker_limits = settings.worker_limits
        is_vain = self._confiner is not None and not self.limits_processes
        if is_vain and self._worker_limits.processes == default_processes():
            self._worker_limits = replace(self._worker_limits, processes=None)
        self._default = Limits(processes=self._worker_limits.processes)
        """Default limit of programs and installations."""
        self._observer: EndpointObserver | None = None
        self._has_landlock = kernel is not None and kernel.abi > 0
        self._following: AllowlistSources | None = None
        self._temp: TemporaryDirectory[str] | None = None
        self.unconfined = () if self._confiner else unconfined_because("" if kernel is None else kernel.unconfined)
        """Missing restrictions of all children and workers, with the reason and the fix; empty if they are confined."""
        self.launcher: ChildLauncher = lambda order: PopenChild(order, self.unconfined)
        """Starter of children."""
        if self._confiner is not None:
            launcher = ConfinedLauncher(self._confiner, self.approvals, owned, self.temp_of, self.limits_of)
            self.launcher = launcher.start

    # ---- allowlist ---------------------------------------------------------------------------------------------------

    def follow(self, store: RuntimeStore, endpoints: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> None:
        """Give the allowlist its sources, and follow their changes; ``endpoints`` are the host's own."""
        if self._egress is not None and self._following is None:
            self._following = AllowlistSources(self._egress, self._access, self._registry, store, endpoints)
            self._following.begin()

    def observer(self, given: EndpointObserver | None) -> EndpointObserver | None:
        """Return the observer of the guard's connections: the allowlist, followed by the host's observer."""
        self._observer = given
        return given if self._egress is None else _Observers(self._egress, given)

    def observe(self, told: ConnectionReport) -> None:
        """Permit a worker's connection in the packet filter if a rule or approval covers it; record it."""
        if self._egress is not None and self._following is not None:
            if not self._following.permitted(told.subject_kind, told.subject, told.host, told.port):
                raise KernelLayerError(f"no rule covers the connection by {told.subject_kind}:{told.subject}")
            self._egress.observe(_resolved(told))
        if self._observer is not None:
            self._observer.observe(ObservedEndpoint(told))

    @property
    def protected(self) -> tuple[str, ...]:
        """Files of the kernel layer that are protected from all subjects, because they control the allowlist."""
        return () if self._egress is None else (self._egress.policy_file, self._egress.socket)

    @property
    def unenforced(self) -> dict[str, tuple[str, ...]]:
        """Unenforced rules of the latest confinement of each subject, in words."""
        return {} if self._confiner is None else self._confiner.unenforced

    def unenforced_of(self, label: str, rules: Iterable[AccessRule]) -> tuple[str, ...]:
        """Return the rules of a subject that the kernel does not enforce for its processes, in words."""
        return self.unconfined if self._confiner is None else self._confiner.unenforced_of(label, rules)

    @property
    def has_landlock(self) -> bool:
        """Whether the kernel restricts the files of workers and children."""
        return self._confiner is not None and self._has_landlock

    @property
    def closed(self) -> dict[str, tuple[str, ...]]:
        """Writable folders of each subject that contain host code, so that the kernel allows no new files in them."""
        return {} if self._confiner is None else self._confiner.closed

    # ---- limits ------------------------------------------------------------------------------------------------------

    @property
    def limits_processes(self) -> bool:
        """Whether the kernel enforces the limit of processes for workers and children."""
        return self._confiner is not None and self._confiner.limits_processes

    def limits_of(self, view: RawView | None) -> Limits:
        """Return the limits of a child: the host's, those of all subjects in the call chain, and the default one."""
        limits = self._settings.limits
        labels = frozenset(() if view is None else view.labels)
        for extension in self._registry:
            if str(extension.subject) in labels:
                limits = limits.stricter(declared_limits(extension.manifest))
        return NO_LIMITS if view is None else limits.otherwise(self._default)

    def longest(self, view: RawView | None) -> float | None:
        """Return the maximum run time of a child in seconds."""
        return self.limits_of(view).wall_seconds

    # ---- processes ---------------------------------------------------------------------------------------------------

    def worker(
        self,
        extension: RegisteredExtension,
        spec: WorkerSpec,
        host: WorkerHostServices,
        events: Counter[tuple[str, str]],
        *,
        starter: WorkerStarter | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> WorkerHandle:
        """Return the worker of a subject; ``starter`` starts its process if the kernel does not confine it."""
        given = self._settings.limits.stricter(declared_limits(extension.manifest))
        limits = given.otherwise(self._worker_limits)
        spec = spec._replace(longest_call=limits.wall_seconds, is_observed=self._observer is not None)
        confiner = self._confiner
        if confiner is None:
            return WorkerHandle(spec, host, starter=starter, on_end=on_end, events=events)
        has_egress = self._egress is not None
        temp = str(Path(self._temp_folder(), f"{spec.kind}-{spec.name}"))
        spec = spec._replace(env=(*spec.env, (_TEMP, temp)), own_write=(*spec.own_write, temp))
        confined = spec._replace(
            no_exec=True,
            tells_endpoints=has_egress,
            confined=self._has_landlock,
            limits=tuple(limits.given()),
            temp=temp,
        )

        def rights() -> object:
            return frozenset(self.approvals.of_worker(spec.kind, spec.name))

        folders = declared_folders(extension.manifest)
        starter = ConfinedStarter(confiner, lambda: self._rights_of(confined, limits, folders), temp)
        return WorkerHandle(confined, host, starter=starter, on_end=on_end, rights=rights, events=events)

    def _temp_folder(self) -> str:
        """Return the folder for the temp folders of the workers. No subject reads it, and this process removes it."""
        if self._temp is None:
            self._temp = _own_folder(Path(self._settings.data_dir, "temp"))
        return self._temp.name

    def temp_of(self, subject: Subject) -> tuple[str, ...]:
        """Return the temp folder of a subject's worker, if it has one; its children may use it too."""
        if self._temp is None:
            return ()
        return (str(Path(self._temp.name, f"{subject.kind}-{subject.name}")),)

    def _rights_of(self, spec: WorkerSpec, limits: Limits, folders: tuple[str, ...]) -> ProcessRights:
        read = (*spec.own_read, spec.folder, spec.environment, *spec.code_paths)
        return ProcessRights(
            label=spec.label,
            rules=(*rules_from_json(spec.access), *self.approvals.of_worker(spec.kind, spec.name)),
            read=tuple(dict.fromkeys(filter(None, read))),
            write=spec.own_write,
            folders=folders,
            protected=spec.protected,
            own_temp=True,
            limits=limits,
            wall=False,
        )

    def host_starter(self) -> WorkerStarter | None:
        """Return the starter for programs of the host; None to start them directly."""
        return None if self._confiner is None else ConfinedStarter(self._confiner, lambda: None)

    def install_limits(self, extension: RegisteredExtension) -> Limits:
        """Return the limits of the processes of an installation."""
        declared = declared_limits(extension.manifest, installing=True)
        return self._settings.limits.stricter(declared).otherwise(self._default)

    @asynccontextmanager
    async def installing(self, rights: ProcessRights, otherwise: WorkerStarter) -> AsyncIterator[WorkerStarter]:
        """Permit the network access of an installation while it runs, and yield the starter of its processes."""
        if self._confiner is None:
            yield otherwise
            return
        kind, _, name = rights.label.partition(":")
        whole = rights._replace(rules=(*rights.rules, *self.approvals.of_worker(kind, name)))
        starter = ConfinedStarter(self._confiner, lambda: whole)
        if self._following is None:
            yield starter
            return
        try:
            with self._following.installs.needing(whole.rules, rights.label):
                await asyncio.to_thread(self._following.refresh, f"install {rights.label}")
                yield starter
        finally:
            self._following.changed()


def _own_folder(around: Path) -> TemporaryDirectory[str]:
    """Create a folder of this process, and remove those of killed processes, which are no longer locked."""
    around.mkdir(mode=0o700, parents=True, exist_ok=True)
    outer = os.open(around, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(outer, fcntl.LOCK_EX)  # so that no other process sees a folder before its lock
        for other in around.iterdir():
            lock = os.open(other, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                rmtree(other, ignore_errors=True)
            except BlockingIOError:
                continue
            finally:
                os.close(lock)
        own = TemporaryDirectory(dir=around, ignore_cleanup_errors=True)
        fcntl.flock(os.open(own.name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), fcntl.LOCK_EX)  # held to the end
    finally:
        os.close(outer)
    return own


def declared_folders(manifest: Manifest | None) -> tuple[str, ...]:
    """Return the folders that a manifest lets its subject create: those whose entry ends with a slash."""
    sections = () if manifest is None else manifest.sections.values()
    rules = (rule for section in sections if section for rule in section.access)
    return tuple(
        rule.normalized_target
        for rule in rules
        if (rule.resource_type, rule.operation) == (ResourceType.FILESYSTEM, Operation.CREATE)
        and rule.target.endswith("/")
    )


def _resolved(told: ConnectionReport) -> ObservedConnection:
    """Return a report with the addresses of its host on this machine. May block on a resolver."""
    connection = ObservedConnection(*told)
    if is_address(told.host):
        return connection._replace(addresses=(told.host,))
    try:
        found = socket.getaddrinfo(told.host, told.port, type=socket.SOCK_STREAM)
    except OSError:
        return connection  # the helper may resolve it
    return connection._replace(addresses=tuple(dict.fromkeys(str(address[0]) for *_, address in found)))


def _check_stage(kernel: Kernel | None) -> None:
    """Refuse a kernel layer that is not prepared or already stopped, because processes would start unconfined."""
    stage = str(getattr(kernel, "stage", ""))
    if stage in ("new", "stopped"):
        raise KernelLayerError(
            f"the kernel layer of the runtime is {stage}",
            fix="call its prepare() and confine() before you create the runtime",
        )


class _Observers:
    """Notifies the allowlist first, because the connection waits for it; then the host's observer."""

    def __init__(self, egress: EgressControl, given: EndpointObserver | None) -> None:
        self._egress = egress
        self._given = given

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Notify both."""
        connection = ObservedConnection(
            endpoint.subject, str(endpoint.subject_kind), endpoint.host, endpoint.addresses, endpoint.port
        )
        self._egress.observe(connection)
        if self._given is not None:
            self._given.observe(endpoint)
