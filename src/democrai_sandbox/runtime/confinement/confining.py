"""Start of a process through the spawn server, confined to the rights of its subject."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from functools import lru_cache
from os import O_CLOEXEC, close, geteuid, pipe2  # saved: a subject in this process could replace them
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.kernel.egress.endpoints import endpoints_of
from democrai_sandbox.kernel.egress.interface import NotMaterialised
from democrai_sandbox.kernel.seccomp import Inet, child_profile, program
from democrai_sandbox.kernel.spawn import Enforcement, SpawnOrder, confinement_of, enforcement_of
from democrai_sandbox.policy import ResourceType, TargetKind, is_at_or_below, parse_declaration

from .limits import resource_limits
from .paths import Shut, followed, runtime_paths, written_places

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from democrai_sandbox.kernel.egress.interface import ChildCgroup, Endpoint
    from democrai_sandbox.kernel.spawn import SpawnedChild

    from .interface import KernelLayer, Spawner, Whose

_log = logging.getLogger(__name__)
_MOST_NOTED = 1024
_BACKSTOP = 5.0
"""Seconds after a process's timeout at which the server kills it, if it still runs."""
_KNOWN_SECONDS = 30.0
"""Seconds for which resolved links of the system's paths are cached."""
_PATTERN = "hosts: a rule without a host and a port permits everything that the application may access"

_enforcement_of = lru_cache(maxsize=256)(enforcement_of)
"""Depends only on its arguments, which are mostly the same for programs of one subject."""


class Program(NamedTuple):
    """A program to start."""

    path: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    pass_fds: tuple[int, ...] = ()


class Prepared(NamedTuple):
    """Prepared confinement of a process that is not started yet."""

    label: str
    enforcement: Enforcement
    cgroup: ChildCgroup | None = None
    closed: tuple[str, ...] = ()
    """Writable folders around code of the host: the kernel allows no new files directly in them."""


class Confiner:
    """Prepares confinements and starts processes in them. Thread-safe; call it outside any guard."""

    def __init__(self, kernel: KernelLayer, spawner: Spawner) -> None:
        """Read the paths of this machine once, before any guard."""
        self._kernel = kernel
        self._spawner = spawner
        self._runtime = runtime_paths()
        self._known = self._ways()
        self._root = geteuid() == 0
        self._lock = threading.Lock()
        self._noted: OrderedDict[str, Prepared] = OrderedDict()

    @property
    def unenforced(self) -> dict[str, tuple[str, ...]]:
        """Unenforced rules of the latest confinement of each subject, in words."""
        with self._lock:
            return {label: prepared.enforcement.unenforced for label, prepared in self._noted.items()}

    @property
    def closed(self) -> dict[str, tuple[str, ...]]:
        """Writable folders of each subject in which the kernel allows no new files; see ``Prepared``."""
        with self._lock:
            return {label: prepared.closed for label, prepared in self._noted.items() if prepared.closed}

    def needs_temp(self, protected: tuple[str, ...]) -> bool:
        """Return whether a process needs a separate temp folder: the usual one contains files or code of the host."""
        temp = followed(self._runtime.temp) or self._runtime.temp
        places = (followed(place) or place for place in (*protected, *self._runtime.read_only))
        return any(is_at_or_below(place, temp) for place in places)

    def prepare(self, whose: Whose | None) -> Prepared:
        """Derive the confinement of a process, and create its cgroup; may block on the helper. None is for the host."""
        if whose is None:
            return Prepared("", Enforcement(None, _host_filter(), (), None, ()))
        egress = self._kernel.egress
        endpoints = None if egress is None else _endpoints(whose)
        enforcement, closed = self._enforcement(whose, packet_filter=endpoints is not None)
        if egress is not None and endpoints is None:
            enforcement = enforcement._replace(unenforced=(*enforcement.unenforced, _PATTERN))
        prepared = Prepared(whose.label, enforcement, closed=closed)
        self._note(prepared)
        cgroup = None if egress is None or endpoints is None else egress.child(endpoints)
        return prepared._replace(cgroup=cgroup)

    def start_with_pipes(
        self, prepared: Prepared, what: Program, *, with_input: bool = False
    ) -> tuple[SpawnedChild, tuple[int, int, int]]:
        """Start it with pipes as its standard streams; also return our ends, with -1 for a missing input.

        On failure, release the preparation. ``OSError`` is an error of the program.
        """
        theirs: list[int] = []
        ours: list[int] = []
        try:
            for wanted, reading in ((with_input, True), (True, False), (True, False)):
                pair = pipe2(O_CLOEXEC) if wanted else (-1, -1)
                theirs.append(pair[not reading])
                ours.append(pair[reading])
        except BaseException:
            _close(ours)
            _close(theirs)
            self.release(prepared)
            raise
        try:
            child = self.start(prepared, what, (theirs[0], theirs[1], theirs[2]))
        except BaseException:
            _close(ours)
            raise
        finally:
            _close(theirs)
        return child, (ours[0], ours[1], ours[2])

    def start(self, prepared: Prepared, what: Program, streams: tuple[int, int, int]) -> SpawnedChild:
        """Start it with these descriptors as its standard streams. On failure, release the preparation."""
        try:
            named = dict(zip(("stdin", "stdout", "stderr"), streams, strict=True))
            child = self._spawner.spawn(_order(prepared, what, named))
        except BaseException:
            self.release(prepared)
            raise
        if prepared.cgroup is not None:
            prepared.cgroup.close()
        self._kernel.flow("child_started", subject=prepared.label, pid=child.pid, program=what.path)
        return child

    def release(self, prepared: Prepared) -> None:
        """Remove the cgroup with all processes in it. Never raises, because the process has already ended."""
        if prepared.cgroup is None or self._kernel.egress is None:
            return
        prepared.cgroup.close()
        try:
            self._kernel.egress.release(prepared.cgroup)
        except KernelLayerError as error:
            _log.warning("the cgroup of a process of %s could not be removed: %s", prepared.label, error)

    def _enforcement(self, whose: Whose, *, packet_filter: bool) -> tuple[Enforcement, tuple[str, ...]]:
        written = written_places(whose.rules, *whose.write, *whose.written, self._runtime.temp)
        own, code = (*whose.read, *whose.write), self._runtime.read_only
        shut = Shut(whose.protected, own, self._system(), written=written, read_only=code)
        rules, temp = shut.rules(whose.rules), () if whose.own_temp else (self._runtime.temp,)
        closed = shut.split
        confinement = confinement_of(
            rules,
            runtime_read=shut.paths((*self._runtime.read, *whose.readable)),
            runtime_listed=shut.paths(self._runtime.listed),
            runtime_execute=(*shut.paths(self._runtime.execute), *_ways(whose.execute, written)),
            # Its own folders cover their content; a link there may come from its installation.
            own_read=_ways(whose.read, frozenset(whose.read)),
            own_write=(*_ways(whose.write, ()), *shut.paths(temp, writing=True)),
            limits=resource_limits(whose.limits, wall=whose.wall),
        )
        abi, root = self._kernel.abi, self._root
        return _enforcement_of(confinement, abi, packet_filter=packet_filter, root=root, exact=True), closed

    def _system(self) -> Mapping[str, str]:
        """Return the resolved paths of the system, refreshed regularly because an administrator may change them."""
        if monotonic() - self._known_at > _KNOWN_SECONDS:
            self._known = self._ways()
        return self._known

    def _ways(self) -> Mapping[str, str]:
        self._known_at = monotonic()
        fixed = (*self._runtime.read, *self._runtime.listed, *self._runtime.execute, self._runtime.temp)
        return {path: followed(path) or "" for path in fixed}

    def _note(self, prepared: Prepared) -> None:
        with self._lock:
            self._noted[prepared.label] = prepared
            self._noted.move_to_end(prepared.label)
            while len(self._noted) > _MOST_NOTED:
                self._noted.popitem(last=False)


def _order(prepared: Prepared, what: Program, streams: dict[str, int]) -> SpawnOrder:
    held = prepared.enforcement
    return SpawnOrder(
        program=what.path,
        argv=what.argv,
        environment=what.environment,
        folder=what.folder,
        pass_fds=what.pass_fds,
        plan=held.plan,
        filter=held.filter,
        limits=held.limits,
        wall_seconds=None if held.wall_seconds is None else held.wall_seconds + _BACKSTOP,
        cgroup=-1 if prepared.cgroup is None else prepared.cgroup.descriptor,
        **streams,
    )


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            close(descriptor)


def _ways(paths: Iterable[str], written: Container[str]) -> tuple[str, ...]:
    return tuple(way for path in paths if (way := followed(path, written)) is not None)


def _endpoints(whose: Whose) -> list[Endpoint] | None:
    """Return all endpoints that a process may reach; None if they are not known in advance."""
    found: list[Endpoint] = []
    targets = dict.fromkeys(
        rule.normalized_target for rule in whose.rules if rule.resource_type is ResourceType.NETWORK
    )
    for target in map(parse_declaration, targets):
        endpoints = endpoints_of(target, whose.label)
        if isinstance(endpoints, NotMaterialised):
            if target.kind is not TargetKind.UNIX:
                return None
        else:
            found += endpoints
    return found


def _host_filter() -> bytes:
    """Return the filter for programs of the host: without calls that no program needs, with ordinary sockets."""
    try:
        return program(child_profile(inet=Inet.ALL, unix=True, fastopen=True))
    except KernelLayerError:
        return b""  # reported with the status of the application's own filter
