"""The kernel layer in the hands of the runtimes: who starts what how, and what the allowlist follows.

Without a kernel layer everything here answers that nothing is confined, and the runtimes go on as they are.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.manifests.limits import NO_LIMITS
from democrai_sandbox.policy import rules_from_json

from .approvals import Approvals
from .confining import Confiner
from .following import Following
from .interface import Whose
from .launching import ConfinedLauncher
from .limits import declared_limits
from .observing import resolved
from .starting import ConfinedStarter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from democrai_sandbox.access import Access
    from democrai_sandbox.guard import EndpointObserver, ObservedEndpoint
    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.manifests import Limits
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime.extensions import Extension, Registry
    from democrai_sandbox.runtime.settings import RuntimeSettings
    from democrai_sandbox.runtime.store import RuntimeStore
    from democrai_sandbox.runtime.worker.interface import Starter, WorkerSpec

    from .interface import Egress, KernelLayer
    from .observing import Told

_TEMP = "TMPDIR"


class ConfinedWorker(NamedTuple):
    """What a worker is made with."""

    spec: WorkerSpec
    starter: Starter | None
    """None for the one that confines nothing."""
    rights: Callable[[], object] | None
    """What its process is confined to beyond its declarations, as a value to compare."""


class Confinement:
    """What the runtimes ask about confining. Made before the first guard."""

    def __init__(
        self,
        kernel: KernelLayer | None,
        access: Access,
        settings: RuntimeSettings,
        registry: Registry,
        *,
        owned: Callable[[Subject], tuple[str, ...]],
    ) -> None:
        """``owned`` gives the places that the runtime has given to a subject."""
        _check_stage(kernel)
        self._settings = settings
        self._registry = registry
        self.approvals = Approvals(access.node)
        """The approvals in force, as rules."""
        self._access = access
        spawner = None if kernel is None else kernel.spawn
        self._egress: Egress | None = None if kernel is None else kernel.egress
        self._confiner = None if kernel is None or spawner is None else Confiner(kernel, spawner)
        self._has_landlock = kernel is not None and kernel.abi > 0
        self._following: Following | None = None
        self._temps: list[TemporaryDirectory[str]] = []
        self.launcher: ConfinedLauncher | None = None
        """How children are started; None for directly."""
        if self._confiner is not None:
            self.launcher = ConfinedLauncher(self._confiner, self.approvals, owned=owned, limits_of=self.limits_of)

    # ---- what is followed --------------------------------------------------------------------------------------------

    def follow(self, store: RuntimeStore, endpoints: Mapping[str, str] | Callable[[], Mapping[str, str]]) -> None:
        """Give the allowlist its sources, and have it follow them from now on; ``endpoints`` are the host's own."""
        if self._egress is not None and self._following is None:
            self._following = Following(self._egress, self._access, self._registry, store, endpoints)
            self._following.begin()

    def changed(self) -> None:
        """Look at everything again: something was decided, registered or configured. From any thread."""
        if self._following is not None:
            self._following.changed()

    def observer(self, given: EndpointObserver | None) -> EndpointObserver | None:
        """Return what the guard tells of connections: the allowlist, and whom the host has given."""
        return given if self._egress is None else _Observers(self._egress, given)

    def observe(self, told: Told) -> None:
        """Open the way for a connection of a worker, if a rule or an approval covers it; waits until it is open."""
        if self._egress is None or self._following is None:
            return
        if not self._following.permitted(told.subject_kind, told.subject, told.host, told.port):
            raise KernelLayerError(f"no rule covers the connection of {told.subject_kind}:{told.subject}")
        self._egress.observe(resolved(told))

    @property
    def protected(self) -> tuple[str, ...]:
        """What of the kernel layer no subject may reach: it could open everything for itself by it."""
        return () if self._egress is None else (self._egress.policy_file, self._egress.socket)

    @property
    def unenforced(self) -> dict[str, tuple[str, ...]]:
        """What was not kept of the latest confinement of each subject, in words."""
        return {} if self._confiner is None else self._confiner.unenforced

    @property
    def closed(self) -> dict[str, tuple[str, ...]]:
        """Writable folders of each subject in which the kernel lets it make nothing new: host code lies in them."""
        return {} if self._confiner is None else self._confiner.closed

    # ---- limits ------------------------------------------------------------------------------------------------------

    def limits_of(self, view: RawView | None) -> Limits:
        """Return the limits of a child of whoever has this view: the host's, and those of all in its chain."""
        limits = self._settings.limits
        labels = frozenset(() if view is None else view.labels)
        for extension in self._registry:
            if str(extension.subject) in labels:
                limits = limits.stricter(declared_limits(extension.manifest))
        return NO_LIMITS if view is None else limits

    def longest(self, view: RawView | None) -> float | None:
        """Return how many seconds a child of whoever has this view may run."""
        return self.limits_of(view).wall_seconds

    # ---- processes ---------------------------------------------------------------------------------------------------

    def worker(self, extension: Extension, spec: WorkerSpec) -> ConfinedWorker:
        """Return how the worker of a subject is started, and what it is told about that."""
        limits = self._settings.limits.stricter(declared_limits(extension.manifest))
        spec = spec._replace(longest_call=limits.wall_seconds)
        confiner = self._confiner
        if confiner is None:
            return ConfinedWorker(spec, None, None)
        has_egress = self._egress is not None
        if confiner.needs_temp(spec.protected):
            spec = self._with_temp(spec)
        confined = spec._replace(
            no_exec=not spec.allow_subprocess, tells_endpoints=has_egress, confined=self._has_landlock
        )

        def rights() -> object:
            return frozenset(self.approvals.of_worker(spec.kind, spec.name))

        starter = ConfinedStarter(confiner, lambda: self._whose(confined, limits))
        return ConfinedWorker(confined, starter, rights)

    def _with_temp(self, spec: WorkerSpec) -> WorkerSpec:
        """Give a worker a temp folder of its own, which is removed when this process ends."""
        folder = TemporaryDirectory(prefix=f"{spec.kind}-", ignore_cleanup_errors=True)
        self._temps.append(folder)
        return spec._replace(env=(*spec.env, (_TEMP, folder.name)), own_write=(*spec.own_write, folder.name))

    def _whose(self, spec: WorkerSpec, limits: Limits) -> Whose:
        read = (*spec.own_read, spec.folder, spec.environment, *spec.code_paths)
        return Whose(
            label=spec.label,
            rules=(*rules_from_json(spec.access), *self.approvals.of_worker(spec.kind, spec.name)),
            read=tuple(dict.fromkeys(filter(None, read))),
            write=spec.own_write,
            protected=spec.protected,
            own_temp=_TEMP in dict(spec.env),
            limits=limits,
            wall=False,
        )

    def host_starter(self) -> Starter | None:
        """Return how programs of the host's own are started; None for directly."""
        return None if self._confiner is None else ConfinedStarter(self._confiner, lambda: None)

    def install_limits(self, extension: Extension) -> Limits:
        """Return the limits of the processes of an installation."""
        return self._settings.limits.stricter(declared_limits(extension.manifest, installing=True))

    @asynccontextmanager
    async def installing(self, whose: Whose, otherwise: Starter) -> AsyncIterator[Starter]:
        """Open the way to what an installation needs for as long as it runs, and give what starts its processes."""
        if self._confiner is None:
            yield otherwise
            return
        kind, _, name = whose.label.partition(":")
        whole = whose._replace(rules=(*whose.rules, *self.approvals.of_worker(kind, name)))
        starter = ConfinedStarter(self._confiner, lambda: whole)
        if self._following is None:
            yield starter
            return
        wanted = self._following.installs.begin(whole.rules, whose.label)
        try:
            await asyncio.to_thread(self._following.refresh, f"install {whose.label}")
            yield starter
        finally:
            self._following.installs.end(wanted)
            self._following.changed()


def _check_stage(kernel: KernelLayer | None) -> None:
    """Refuse a layer that starts nothing at the moment: without this, everything would be started unconfined."""
    stage = str(getattr(kernel, "stage", ""))
    if stage in ("new", "stopped"):
        raise KernelLayerError(
            f"the runtime was given a kernel layer that is {stage}",
            fix="call its prepare() and confine() before the runtime is made",
        )


class _Observers:
    """The allowlist first: the connection waits for it. Then whom the host has given."""

    def __init__(self, egress: Egress, given: EndpointObserver | None) -> None:
        self._egress = egress
        self._given = given

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Tell both."""
        self._egress.observe(endpoint)
        if self._given is not None:
            self._given.observe(endpoint)
