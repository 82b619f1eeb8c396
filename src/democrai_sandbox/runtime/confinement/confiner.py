"""Start of processes through the spawn server, confined to the rights of their subject."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from os import O_CLOEXEC, close, geteuid, mkdir, pipe2  # saved: a subject in this process could replace them
from os.path import lexists
from pathlib import Path
from shutil import rmtree
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError, SpawnFailed
from democrai_sandbox.guard import _core
from democrai_sandbox.kernel.egress.allowlist import ChildCgroup, Endpoint, NotMaterialised, endpoints_of
from democrai_sandbox.kernel.seccomp import Inet, child_profile, program
from democrai_sandbox.kernel.spawn import Enforcement, SpawnOrder, confinement_of, enforcement_of
from democrai_sandbox.kernel.spawn.confinement import ChildConfinement, ResourceLimits
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, Limits, Manifest, ModuleManifest
from democrai_sandbox.manifests.limits import NO_LIMITS
from democrai_sandbox.policy import Operation, ResourceType, TargetKind, is_at_or_below, parse_declaration
from democrai_sandbox.runtime.child_process import wait_until_readable
from democrai_sandbox.runtime.children.path_rights import decoded, named_programs

from .process_paths import ProcessRights, ProtectedPaths, executed_files, followed, runtime_paths, written_places

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.kernel import FlowLog
    from democrai_sandbox.kernel.egress.control import EgressControl
    from democrai_sandbox.kernel.spawn import SpawnedChild, SpawnServer
    from democrai_sandbox.policy import AccessRule, Subject
    from democrai_sandbox.runtime.children.launch_request import LaunchRequest

    from .allowlist_sources import Approvals

_MEGABYTE = 1024 * 1024


def declared_limits(manifest: Manifest | None, *, installing: bool = False) -> Limits:
    """Return the limits that a manifest declares for a phase."""
    if isinstance(manifest, ModuleManifest):
        return manifest.limits
    if isinstance(manifest, EngineManifest | ExtractorManifest):
        return (manifest.install if installing else manifest.runtime).limits
    return NO_LIMITS


def resource_limits(limits: Limits, *, wall: bool = True) -> ResourceLimits:
    """Return limits for the kernel. A worker's time limit applies to each call, not to the process."""
    return ResourceLimits(
        address_space=_bytes(limits.address_space_mb),
        memory=_bytes(limits.memory_mb),
        file_size=_bytes(limits.file_size_mb),
        cpu_seconds=limits.cpu_seconds,
        open_files=limits.open_files,
        processes=limits.processes,
        wall_seconds=limits.wall_seconds if wall else None,
        cpu_weight=limits.cpu_weight,
    )


def shares_by_session() -> bool:
    """Return whether the kernel divides the processor between sessions before it does between threads."""
    try:
        return Path("/proc/sys/kernel/sched_autogroup_enabled").read_text(encoding="ascii").strip() == "1"
    except OSError:
        return False


def unenforced_limits(*, processes: bool) -> tuple[str, ...]:
    """Return the limits that this machine does not enforce for this user, by name.

    ``processes``: the spawn server limits the processes of root.
    """
    lacking = geteuid() == 0 and not processes
    return (*(("processes",) if lacking else ()), *(() if shares_by_session() else ("cpu_weight",)))


def _bytes(megabytes: int | None) -> int | None:
    return None if megabytes is None else megabytes * _MEGABYTE


_log = logging.getLogger(__name__)
_MOST_NOTED = 1024
_BACKSTOP = 5.0
"""Seconds after a process's timeout at which the server kills it, if it still runs."""
_KNOWN_SECONDS = 30.0
"""Seconds for which resolved links of the system's paths are cached."""
_PATTERN = "hosts: a rule without a host and a port permits everything that the application may access"

_enforcement_of = lru_cache(maxsize=256)(enforcement_of)
"""Depends only on its arguments, which are mostly the same for programs of one subject."""


class PreparedConfinement(NamedTuple):
    """Prepared confinement of a process that is not started yet."""

    label: str
    enforcement: Enforcement
    cgroup: ChildCgroup | None = None
    closed: tuple[str, ...] = ()
    """Writable folders around code of the host: the kernel allows no new files directly in them."""


@dataclass(eq=False, repr=False)
class Confiner:
    """Prepares confinements and starts processes in them. Thread-safe; call it outside any guard."""

    _spawner: SpawnServer
    _abi: int
    """Landlock ABI, 0 without Landlock."""
    _flow: FlowLog
    _egress: EgressControl | None = None
    unfiltered: str = ""
    """Reason why processes get no system call filter; empty if they do."""

    def __post_init__(self) -> None:
        """Read the paths of this machine once, before any guard."""
        self._runtime = runtime_paths()
        self._known = self._ways()
        self._root = geteuid() == 0
        self._shared = shares_by_session()
        self._lock = threading.Lock()
        self._noted: OrderedDict[str, PreparedConfinement] = OrderedDict()

    @property
    def limits_processes(self) -> bool:
        """Whether the kernel enforces the limit of processes for this user."""
        return not self._root or (self._abi > 0 and self._spawner.limits_processes)

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

    def prepare(self, rights: ProcessRights | None) -> PreparedConfinement:
        """Derive the confinement of a process, and create its cgroup; may block on the helper. None is for the host."""
        if rights is None:
            return PreparedConfinement(
                "", Enforcement(None, b"" if self.unfiltered else _host_filter(), (), None, 0, ())
            )
        self._make_folders(rights)
        egress = self._egress
        endpoints = None if egress is None else _endpoints(rights)
        enforcement, closed = self._enforcement(rights, packet_filter=endpoints is not None)
        if egress is not None and endpoints is None:
            enforcement = enforcement._replace(unenforced=(*enforcement.unenforced, _PATTERN))
        prepared = PreparedConfinement(rights.label, enforcement, closed=closed)
        self._note(prepared)
        cgroup = None if egress is None or endpoints is None else egress.child(endpoints)
        return prepared._replace(cgroup=cgroup)

    def start_with_pipes(
        self, prepared: PreparedConfinement, what: SpawnOrder, *, with_input: bool = False
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

    def start(self, prepared: PreparedConfinement, what: SpawnOrder, streams: tuple[int, int, int]) -> SpawnedChild:
        """Start it with these descriptors as its standard streams. On failure, release the preparation."""
        try:
            child = self._spawner.spawn(_confined(prepared, what, streams))
        except BaseException:
            self.release(prepared)
            raise
        if prepared.cgroup is not None:
            prepared.cgroup.close()
        self._flow("child_started", subject=prepared.label, pid=child.pid, program=what.program)
        return child

    def is_worker(self, argv: Sequence[str]) -> bool:
        """Return whether the template process can be forked for this command."""
        start, rest = tuple(argv[:-4]), argv[-4:]
        template = self._spawner.template
        if not start or template[: len(start) + 1] != (*start, "template"):
            return False
        environment, *packages = template[len(start) + 1 :]
        return not packages or environment == rest[0]

    def release(self, prepared: PreparedConfinement) -> None:
        """Remove the cgroup with all processes in it. Never raises, because the process has already ended."""
        if prepared.cgroup is None or self._egress is None:
            return
        prepared.cgroup.close()
        try:
            self._egress.release(prepared.cgroup)
        except KernelLayerError as error:
            _log.warning("the cgroup of a process of %s could not be removed: %s", prepared.label, error)

    def _enforcement(self, rights: ProcessRights, *, packet_filter: bool) -> tuple[Enforcement, tuple[str, ...]]:
        written = written_places(rights.rules, *rights.write, *rights.written, self._runtime.temp)
        own, code = (*rights.read, *rights.write), self._runtime.read_only
        shut = ProtectedPaths(rights.protected, own, self._system(), written=written, read_only=code)
        rules, temp = shut.rules(rights.rules), () if rights.own_temp else (self._runtime.temp,)
        closed = shut.split
        system = self._runtime.execute
        programs, libraries = (system, ()) if rights.programs is None else (rights.programs, system)
        confinement = confinement_of(
            rules,
            runtime_read=shut.paths((*self._runtime.read, *rights.readable, *libraries)),
            runtime_listed=shut.paths(self._runtime.listed),
            runtime_execute=(*shut.paths(programs), *_ways(rights.execute, written)),
            # Its own folders cover their content; a link there may come from its installation.
            own_read=_ways(rights.read, frozenset(rights.read)),
            own_write=(*_ways(rights.write, ()), *shut.paths(temp, writing=True)),
            limits=resource_limits(rights.limits, wall=rights.wall),
        )
        return self._enforced(confinement, packet_filter=packet_filter), closed

    def _make_folders(self, rights: ProcessRights) -> None:
        """Create the declared folders that are missing: the kernel cannot allow a path that does not exist."""
        if not rights.folders or not self._abi:
            return
        written = written_places(rights.rules, *rights.write, *rights.written)
        for path in rights.folders:
            above, _, name = path.rpartition("/")
            parent = None if lexists(path) else followed(above or "/", written)
            if parent is not None and not any(is_at_or_below(f"{parent}/{name}", place) for place in rights.protected):
                with suppress(OSError):  # the operation that needs it reports the reason
                    mkdir(f"{parent}/{name}")  # noqa: PTH102 - saved at import

    def unenforced_of(self, label: str, rules: Iterable[AccessRule]) -> tuple[str, ...]:
        """Return the unenforced rules of a subject's latest process; without one, those of a process with its rules."""
        with self._lock:
            noted = self._noted.get(label)
        if noted is not None:
            return noted.enforcement.unenforced
        return self._enforced(confinement_of(rules), packet_filter=self._egress is not None).unenforced

    def _enforced(self, confinement: ChildConfinement, *, packet_filter: bool) -> Enforcement:
        return _enforcement_of(
            confinement,
            self._abi,
            packet_filter=packet_filter,
            root=self._root,
            pids=self._spawner.limits_processes,
            exact=True,
            unfiltered=self.unfiltered,
            shared=self._shared,
        )

    def _system(self) -> Mapping[str, str]:
        """Return the resolved paths of the system, refreshed regularly because an administrator may change them."""
        if monotonic() - self._known_at > _KNOWN_SECONDS:
            self._known = self._ways()
        return self._known

    def _ways(self) -> Mapping[str, str]:
        self._known_at = monotonic()
        fixed = (*self._runtime.read, *self._runtime.listed, *self._runtime.execute, self._runtime.temp)
        return {path: followed(path) or "" for path in fixed}

    def _note(self, prepared: PreparedConfinement) -> None:
        with self._lock:
            self._noted[prepared.label] = prepared
            self._noted.move_to_end(prepared.label)
            while len(self._noted) > _MOST_NOTED:
                self._noted.popitem(last=False)


def _confined(prepared: PreparedConfinement, what: SpawnOrder, streams: tuple[int, int, int]) -> SpawnOrder:
    """Return an order with its confinement and its standard streams."""
    held, (stdin, stdout, stderr) = prepared.enforcement, streams
    return replace(
        what,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        plan=held.plan,
        filter=held.filter,
        limits=held.limits,
        wall_seconds=None if held.wall_seconds is None else held.wall_seconds + _BACKSTOP,
        nice=held.nice,
        cgroup=-1 if prepared.cgroup is None else prepared.cgroup.descriptor,
    )


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        if descriptor >= 0:
            close(descriptor)


def _ways(paths: Iterable[str], written: Container[str]) -> tuple[str, ...]:
    return tuple(way for path in paths if (way := followed(path, written)) is not None)


def _endpoints(rights: ProcessRights) -> list[Endpoint] | None:
    """Return all endpoints that a process may reach; None if they are not known in advance."""
    found: list[Endpoint] = []
    targets = dict.fromkeys(
        rule.normalized_target for rule in rights.rules if rule.resource_type is ResourceType.NETWORK
    )
    for target in map(parse_declaration, targets):
        endpoints = endpoints_of(target, rights.label)
        if isinstance(endpoints, NotMaterialised):
            if target.kind is not TargetKind.UNIX:
                return None
        else:
            found += endpoints
    return found


def _host_filter() -> bytes:
    """Return the filter for programs of the host: without calls that no program needs, with ordinary sockets."""
    try:
        return program(child_profile(inet=Inet.ALL))
    except KernelLayerError:
        return b""  # reported with the status of the application's own filter


_READING = (Operation.READ,)
_WRITING = (Operation.CREATE, Operation.MODIFY, Operation.DELETE)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ConfinedLauncher:
    """Starts programs through the spawn server, confined to the guard of the caller."""

    _confiner: Confiner
    _approvals: Approvals
    _owned: Callable[[Subject], tuple[str, ...]]
    """Returns the folders that the runtime gave to a subject below protected paths."""
    _temp_of: Callable[[Subject], tuple[str, ...]]
    """Returns the temp folder of the subject's worker."""
    _limits_of: Callable[[RawView], Limits]

    def start(self, order: LaunchRequest) -> ConfinedChild:
        """Start it; ``OSError`` is an error of the program, ``KernelLayerError`` of the start or the confinement."""
        view = order.view
        if view is None:
            return ConfinedChild(self._confiner, self._confiner.prepare(None), order)
        given = self._approved(view)  # before the rights, which may have more
        prepared = self._confiner.prepare(self._rights(order, view))
        return ConfinedChild(
            self._confiner,
            prepared,
            order,
            lambda: bool(given) and self._approvals.are_known and not given <= self._approved(view),
        )

    def _approved(self, view: RawView) -> frozenset[object]:
        """Return everything that decisions allow to a caller now."""
        return frozenset((*self._approvals.of_caller(view), *self._approvals.programs_of(view)))

    def _rights(self, order: LaunchRequest, view: RawView) -> ProcessRights:
        chain = view.allow_chain  # the property creates it anew each time
        rules = tuple(dict.fromkeys(rule for link in chain for rule in link.rules))
        places = [place for link in chain for place in self._owned(link.subject)]
        temps = dict.fromkeys(place for link in chain for place in self._temp_of(link.subject))
        kind, name = view.actor
        approved = self._approvals.of_caller(view)
        allowed = (*rules, *approved)
        return ProcessRights(
            label=f"{kind}:{name}",
            rules=allowed,
            read=tuple(place for place in places if _is_covered(place, rules, _READING)),
            readable=order.readable,
            write=(*(place for place in places if _is_covered(place, rules, _WRITING)), *temps),
            execute=(order.program,),
            programs=started_programs(order.program, allowed, rules, self._approvals.programs_of(view)),
            written=tuple(dict.fromkeys(place for link in chain for place in self._approvals.written_by(link.subject))),
            protected=tuple(decoded(path) for path, _ in _core.protected_entries()),
            limits=self._limits_of(view),
        )


def started_programs(
    program: str, allowed: Iterable[AccessRule], declared: Iterable[AccessRule], approved: Iterable[str] = ()
) -> tuple[str, ...] | None:
    """Return the programs that a child may start if its subject declares named ones; None for all of the system."""
    named = named_programs(declared)
    return executed_files(program, allowed, (*named, *approved)) if named else None


class ConfinedChild:
    """A program that the spawn server has started."""

    def __init__(
        self,
        confiner: Confiner,
        prepared: PreparedConfinement,
        order: LaunchRequest,
        is_revoked: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start it; ``is_revoked`` returns whether it has lost an approval."""
        self._confiner = confiner
        self._prepared = prepared
        self.is_revoked = is_revoked
        self._returncode: int | None = None
        self.unenforced = prepared.enforcement.unenforced
        self.failure = ""
        self.timed_out = False
        what = SpawnOrder(order.program, order.argv, order.environment, order.folder)
        self._child: SpawnedChild
        self._child, pipes = confiner.start_with_pipes(prepared, what, with_input=order.with_input)
        stdin, self.stdout, self.stderr = pipes
        self.stdin = stdin if stdin >= 0 else None
        self.pid = self._child.pid
        self.ended = self._child.ended

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group."""
        self._child.signal_group(number)

    def collect(self) -> int:
        """Return the exit status, and stop all remaining processes in its cgroup, if it has one."""
        if self._returncode is None:
            try:
                self._returncode = self._child.collect()
                self.timed_out = self._child.timed_out
            except SpawnFailed as error:
                # The server is gone, and the kernel has killed the processes it had started.
                self._returncode, self.failure = -signal.SIGKILL, str(error)
            finally:
                self._child.close()
                self._confiner.release(self._prepared)
        return self._returncode


def _is_covered(place: str, rules: tuple[AccessRule, ...], operations: tuple[Operation, ...]) -> bool:
    return any(
        rule.resource_type is ResourceType.FILESYSTEM
        and any(rule.operation is operation for operation in operations)
        and is_at_or_below(place, rule.normalized_target)
        for rule in rules
    )


_starts = ThreadPoolExecutor(16, "starts")
"""Separate threads, so that a spawn server or helper that hangs does not block other work."""


class ConfinedStarter:
    """Starts processes of one subject through the spawn server. Its rights are read at each start."""

    def __init__(self, confiner: Confiner, rights: Callable[[], ProcessRights | None], temp: str = "") -> None:
        """Take ``rights``, which returns None for a program of the host, and the temp folder of its processes."""
        self._confiner = confiner
        self._rights = rights
        self._temp = temp
        self._lock = threading.Lock()
        self._running = 0

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> ConfinedProcess:
        """Start a program in a new session with these descriptors and without standard input."""
        prepared = await self._prepared()
        fork = self._confiner.is_worker(argv)
        what = SpawnOrder(argv[0], tuple(argv), env, cwd, pass_fds=tuple(pass_fds), fork=fork)
        # On a thread, because the spawn server may block.
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(_starts, self._started, prepared, what)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # A canceled caller closes the descriptors, whose numbers are reused: wait until the start is over.
            # Also if canceled again: the spawn server answers within a limited time.
            while not work.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            if not work.cancelled() and work.exception() is None:
                _starts.submit(work.result().discard)
            raise

    def _started(self, prepared: PreparedConfinement, what: SpawnOrder) -> ConfinedProcess:
        try:
            return ConfinedProcess(self._confiner, prepared, what, self._ended)
        except BaseException:
            self._ended()
            raise

    def _prepare(self, rights: ProcessRights | None) -> PreparedConfinement:
        """Create the temp folder, which has to exist when the process is confined, and prepare the confinement."""
        with self._lock:
            self._running += 1
        try:
            if self._temp:
                Path(self._temp).mkdir(mode=0o700, exist_ok=True)
            return self._confiner.prepare(rights)
        except BaseException:
            self._ended()
            raise

    def _ended(self) -> None:
        """Remove the temp folder when no process uses it."""
        with self._lock:
            self._running -= 1
            if self._temp and self._running == 0:
                rmtree(self._temp, ignore_errors=True)

    async def _prepared(self) -> PreparedConfinement:
        """Prepare it on a thread, because the helper may block."""
        work = asyncio.get_running_loop().run_in_executor(_starts, self._prepare, self._rights())
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._give_back)
            raise

    def _give_back(self, work: asyncio.Future[PreparedConfinement]) -> None:
        if not work.cancelled() and work.exception() is None:
            # On a thread, because the helper may block.
            _starts.submit(self._confiner.release, work.result())
            _starts.submit(self._ended)


class ConfinedProcess:
    """A process that the spawn server has started."""

    def __init__(
        self, confiner: Confiner, prepared: PreparedConfinement, what: SpawnOrder, on_end: Callable[[], None]
    ) -> None:
        """Start it with pipes for both outputs; ``on_end`` is called on a thread when it has ended."""
        self._confiner = confiner
        self._on_end = on_end
        self._prepared = prepared
        self._returncode: int | None = None
        self._ending = asyncio.Lock()
        self._child: SpawnedChild
        self._child, (_, self.stdout, self.stderr) = confiner.start_with_pipes(prepared, what)
        self.pid = self._child.pid

    def kill(self) -> None:
        """Kill the process group. May be called repeatedly, and after its end."""
        self._child.signal_group(signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit code after all processes of its group, and of its cgroup if it has one, have ended."""
        async with self._ending:
            if self._returncode is None:
                # The server reports the end; the pidfd covers a server that hangs.
                await wait_until_readable(self._child.ended, self._child.pidfd)
                self.kill()
                # On a thread, because the spawn server and the helper may block.
                loop = asyncio.get_running_loop()
                self._returncode = await asyncio.shield(loop.run_in_executor(_starts, self._collected))
                await asyncio.shield(loop.run_in_executor(_starts, self._release))
        return self._returncode

    def discard(self) -> None:
        """Kill it and release everything, on a thread, instead of waiting for its end."""
        self.kill()
        self.close()
        self._collected()
        self._release()

    def _release(self) -> None:
        self._confiner.release(self._prepared)
        self._on_end()

    def _collected(self) -> int:
        try:
            return self._child.collect()
        except SpawnFailed:
            return -signal.SIGKILL  # the server is gone, and the kernel has killed the processes it had started
        finally:
            self._child.close()

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self.stdout, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = -1
