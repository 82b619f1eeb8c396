"""Start the kernel controls of an application in the required order, and monitor the processes that they need."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.errors import KernelLayerError, KernelUnsupported, SpawnFailed

from . import selftest, status
from .egress.allowlist import AllowlistBuilder
from .egress.control import EgressControl
from .flow_log import FlowLog
from .landlock import ruleset as landlock
from .landlock.rights import landlock_support, native_module
from .seccomp import process_filter as seccomp
from .seccomp.filters import APPLICATION
from .settings import ApplicationPlaces
from .spawn.client import SpawnServer
from .spawn.standby import is_stopped
from .status import EGRESS, HELPER, LANDLOCK, SECCOMP, SPAWN_SERVER, ControlState, ControlStatus, KernelStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .landlock.rights import LandlockSupport
    from .settings import OsSettings

__all__ = ["ApplicationPlaces", "Kernel", "KernelStage", "readable", "unenforced_here", "writable"]

_log = logging.getLogger(__name__)
_supervision = logging.getLogger("democrai_sandbox.kernel.supervisor")
"""Logs ends and restarts of processes, under a name of its own, by which operators can filter."""
_ANSWER_SECONDS = 2.0
"""Seconds to wait for the spawn server's statistics while a caller reads the status."""
_IN_FORCE = frozenset({ControlState.ACTIVE, ControlState.PARTIAL})


def writable(paths: landlock.ApplicationPaths | None) -> tuple[str, ...]:
    """Return all writable paths."""
    return () if paths is None else (*paths.write, *paths.scratch, *paths.devices)


def readable(paths: landlock.ApplicationPaths | None) -> tuple[str, ...]:
    """Return all readable paths."""
    return () if paths is None else (*paths.read, *writable(paths))


def unenforced_here(settings: OsSettings) -> tuple[str, ...]:
    """Return what this configuration could not deny to children and workers on this machine; starts nothing.

    It leaves out what depends on a subject's rules, such as hosts without the helper.
    """
    if not settings.wants_spawn_server:
        off = status.not_wanted(SPAWN_SERVER)
        return (f"files, network and system calls: {off.reason}; to confine them, {off.fix}",)
    support, filters = landlock_support(), seccomp.support()
    if lacking := _unconfinable(support, filters):
        return (f"files, network and system calls: {lacking.reason}; to confine them, {lacking.fix}",)
    return selftest.unenforced_in_children(support.abi, _missing(filters))


def _missing(control: ControlStatus) -> str:
    return control.reason if control.state is ControlState.UNSUPPORTED else ""


def _unconfinable(support: LandlockSupport, filters: ControlStatus) -> ControlStatus | None:
    """Return why this machine cannot run the spawn server, or confine nothing with it; None if it can."""
    if support.abi < 1 and _missing(filters):
        return status.unconfinable(landlock.unsupported(support), filters)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        fix = "run Linux 5.3 or newer, and permit pidfd_open in the container"
        return status.unconfinable(ControlStatus("pidfd_open", ControlState.UNSUPPORTED, str(error), fix))
    return None


class KernelStage(StrEnum):
    """Step that a ``Kernel`` has reached."""

    NEW = "new"
    PREPARED = "prepared"
    CONFINED = "confined"
    STOPPED = "stopped"


class Kernel:
    """Kernel layer of an application: call ``prepare``, then ``confine``; ``stop`` at the end.

    1. The spawn server, while the process holds no secrets and no restriction.
    2. The helper and the cgroup: a socket keeps the cgroup in which it was created.
    3. Landlock, which does not apply to threads that already exist.
    4. The seccomp filter, after which the process cannot execute programs.

    Create threads, pools and sockets after that.
    """

    def __init__(
        self,
        settings: OsSettings,
        places: ApplicationPlaces,
        *,
        endpoints: AllowlistBuilder | None = None,
        flow: FlowLog | None = None,
        template: Sequence[str] = (),
    ) -> None:
        """Read the settings without starting or restricting anything. You can add sources to ``endpoints`` later.

        ``template`` is the command of the template process for workers; empty for none.
        """
        self.settings = settings
        self.places = places
        self.endpoints = AllowlistBuilder() if endpoints is None else endpoints
        self.flow = FlowLog() if flow is None else flow
        self._template = tuple(template)
        self.stage = KernelStage.NEW
        self.spawn: SpawnServer | None = None
        """Server that starts and confines children. None when ``enabled`` is False, or where nothing can confine them.
        """
        self.egress: EgressControl | None = None
        """Updates the allowlist. None when ``enabled`` is off, or an optional helper could not be started."""
        self.supervisor: Supervisor | None = None
        """Monitor of both, after ``confine``."""
        self.baseline: landlock.ApplicationPaths | None = None
        """Paths that Landlock allows for this process and all its children, after Landlock is applied."""
        self._support = landlock_support()
        self.abi = self._support.abi
        """Landlock ABI in use; 0 when Landlock is unavailable."""
        self.unfiltered = ""
        """Reason why children get no system call filter; empty if they get one."""
        self._failures: dict[str, ControlStatus] = {}
        self._landlock = self._pending(LANDLOCK)
        self._seccomp = self._pending(SECCOMP)
        self._tested: tuple[selftest.SelfTestAttempt, ...] = ()

    def __enter__(self) -> Self:
        self.prepare()
        self.confine()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Controls that the configuration enables, by its default too."""
        asked = {
            LANDLOCK: self.settings.landlock.enabled,
            SECCOMP: self.settings.seccomp.enabled,
            SPAWN_SERVER: self.settings.wants_spawn_server,
            EGRESS: self.settings.enabled,
            HELPER: self.settings.enabled,
        }
        return tuple(name for name, is_asked in asked.items() if is_asked)

    @property
    def unconfined(self) -> str:
        """Reason why children are not confined, with its fix; empty if the spawn server confines them."""
        if self.spawn is not None:
            return ""
        found = self._pending(SPAWN_SERVER)
        return f"{found.reason}; to confine it, {found.fix}"

    @property
    def _required(self) -> tuple[str, ...]:
        """Controls that ``require`` insists on: the confinement of children only where it is not the default."""
        needs_server = self.settings.needs_spawn_server
        return tuple(name for name in self.wanted if name != SPAWN_SERVER or needs_server)

    def prepare(self) -> None:
        """Start the spawn server and the helper, and join the cgroup. Call before the first thread and socket.

        An unavailable control is reported in the status, and stops the start if ``require`` is set. A spawn server that
        fails always stops the start, because children would run unconfined. It is not started where the machine cannot
        run it, or has neither Landlock nor seccomp, unless the configuration needs it.
        """
        self._advance(KernelStage.NEW, KernelStage.PREPARED)
        if self.wanted:
            self.places.check()
        try:
            if self.settings.wants_spawn_server:
                self._start_server()
            if self.settings.enabled:
                self._start_egress()
            self._refuse_if_required(self._impossible())
        except BaseException:
            self.stop()
            raise

    def confine(self) -> KernelStatus:
        """Apply Landlock, then seccomp, then run the self-test. Neither control can be undone."""
        self._advance(KernelStage.PREPARED, KernelStage.CONFINED)
        try:
            if self.settings.landlock.enabled:
                self._landlock = self._applied(LANDLOCK, self._apply_landlock)
            if self.settings.seccomp.enabled:
                self._seccomp = self._applied(SECCOMP, self._apply_seccomp)
            self.selftest()
            measured = self.status()
            self._refuse_if_required(measured.less_than_active(self._required))
        except BaseException:
            self.stop()
            raise
        if self.egress is not None:
            self.egress.follow()
        if self.egress is not None or self.spawn is not None:
            self.supervisor = Supervisor(self.spawn, self.egress)
            self.supervisor.start()
        return measured

    def status(self) -> KernelStatus:
        """Return the measured state of every control, including the results of the last self-test."""
        controls = (status.with_attempts(control, self._tested) for control in self._controls())
        return KernelStatus(tuple(controls), self._tested)

    def selftest(self) -> tuple[selftest.SelfTestAttempt, ...]:
        """Run forbidden operations; those that succeed are shown in the status afterwards."""
        self._tested = selftest.run(
            selftest.Claims(
                state_dir=self.places.state_dir,
                landlock=self._landlock.state in _IN_FORCE,
                seccomp=self._seccomp.state in _IN_FORCE,
                readable=readable(self.baseline),
                writable=writable(self.baseline),
                abi=self.abi,
                unfiltered=self.unfiltered,
                server=self.spawn,
                egress=self.egress,
            )
        )
        for attempt in self._tested:
            self.flow("selftest", act=attempt.act, where=attempt.where, outcome=attempt.outcome, ok=attempt.ok)
        return self._tested

    def stop(self) -> None:
        """Stop the helper, the spawn server and its children. Landlock and seccomp stay. Safe to call twice."""
        self.stage = KernelStage.STOPPED
        if self.supervisor is not None:
            self.supervisor.stop()
        egress, self.egress = self.egress, None
        server, self.spawn = self.spawn, None
        try:
            if egress is not None:
                egress.stop()
        finally:
            if server is not None:
                server.stop()
        self.flow("stopped")

    def _advance(self, expected: KernelStage, to: KernelStage) -> None:
        if self.stage is not expected:
            raise KernelLayerError(
                f"the kernel layer is in stage {self.stage}; this step needs stage {expected}",
                fix="call prepare() once, then confine() once; after stop(), create a new Kernel in a new process",
            )
        self.stage = to

    def _start_server(self) -> None:
        try:
            native_module()
        except KernelUnsupported as error:
            unsupported = ControlStatus(SPAWN_SERVER, ControlState.UNSUPPORTED, error.what, error.fix)
            self._failures[SPAWN_SERVER] = unsupported
            return
        if not self.settings.needs_spawn_server:
            filters = seccomp.support()
            self.unfiltered = _missing(filters)
            if lacking := _unconfinable(self._support, filters):
                self._failures[SPAWN_SERVER] = lacking
                return
        self.spawn = SpawnServer.start(template=self._template)
        self.flow("spawn_server_started", pid=self.spawn.pid)

    def _start_egress(self) -> None:
        control = EgressControl(
            self.endpoints,
            settings=self.settings,
            data_dir=self.places.data_dir,
            state_dir=self.places.state_dir,
            flow=self.flow,
        )
        try:
            control.start(() if self.spawn is None else (self.spawn.pid, self.spawn.standby))
        except KernelLayerError as error:
            self._failures |= {name: status.without_helper(name, error) for name in (EGRESS, HELPER)}
            self.flow("egress_failed", error=str(error))
        else:
            self.egress = control
            self.flow("egress_started", policy_file=control.policy_file, socket=control.socket)

    def _apply_landlock(self) -> ControlStatus:
        places = self.places
        written = [places.data_dir, places.state_dir, *places.write]
        if self.egress is not None:
            # Each update creates a new policy file beside the old one, so the folder must be writable.
            written.append(os.path.dirname(self.egress.policy_file))  # noqa: PTH120 - a text
        paths = landlock.application_paths(places.read, written, self.settings.landlock)
        plan = landlock.application_plan(paths)
        applied = landlock.apply(plan, support=self._support)
        if applied.state in _IN_FORCE:
            self.baseline = paths
            if self.spawn is not None:
                # From now on the spawn server cannot start a child with more rights than the application.
                self.spawn.baseline(landlock.numbers(plan, self.abi))
        return applied

    def _apply_seccomp(self) -> ControlStatus:
        # A vfork child shares the application's memory until it executes, and the filter kills it there.
        # A program that a library tries to start must not share memory with the application when it dies.
        vars(subprocess).update(_USE_VFORK=False, _USE_POSIX_SPAWN=False)  # documented switches for this case
        return seccomp.apply(APPLICATION)

    def _applied(self, name: str, apply: Callable[[], ControlStatus]) -> ControlStatus:
        """Apply a control. A failure sets it to off; ``require`` decides later whether that stops the start."""
        try:
            applied = apply()
        except SpawnFailed:  # children would run without the application's restrictions
            raise
        except KernelLayerError as error:
            applied = ControlStatus(name, ControlState.OFF, error.what, error.fix)
        self.flow(name, state=applied.state.value, reason=applied.reason)
        return applied

    def _refuse_if_required(self, lacking: tuple[ControlStatus, ...]) -> None:
        if not self.settings.require or not lacking:
            return
        self.flow("refused", controls=[control.name for control in lacking])
        raise status.refusal(lacking)

    def _impossible(self) -> tuple[ControlStatus, ...]:
        """Return the controls that are known to be unavailable, before any irreversible step."""
        known = dict(self._failures)
        if self.abi < 1:
            known[LANDLOCK] = landlock.unsupported(self._support)
        if (possible := seccomp.support()).state is ControlState.UNSUPPORTED:
            known[SECCOMP] = possible
        return tuple(known[name] for name in self._required if name in known)

    def _controls(self) -> Iterator[ControlStatus]:
        yield self._landlock_now()
        yield seccomp.now(self._seccomp)
        yield self._server_now()
        if (egress := self.egress) is not None:
            yield from (egress.status(), egress.helper_status())
        else:
            yield from map(self._pending, (EGRESS, HELPER))

    def _landlock_now(self) -> ControlStatus:
        if self.baseline is None:
            return self._landlock
        reaches = selftest.reaches_outside(readable(self.baseline))
        return status.landlock_now(self._landlock, reaches_outside=reaches)

    def _server_now(self) -> ControlStatus:
        if (server := self.spawn) is None:
            return self._pending(SPAWN_SERVER)
        try:
            details = server.stats(_ANSWER_SECONDS)
        except KernelLayerError as error:
            return ControlStatus(SPAWN_SERVER, ControlState.OFF, error.what, error.fix)
        details |= {"abi": self.abi, "baseline": self.baseline is not None}
        unenforced = selftest.unenforced_in_children(self.abi, self.unfiltered)
        return status.server_now(unenforced, self._support.fix, details)

    def _pending(self, name: str) -> ControlStatus:
        """Return the state of a control that is not applied: it failed, is not wanted, or not applied yet."""
        if name in self._failures:
            return self._failures[name]
        if name not in self.wanted:
            return status.not_wanted(name, self.settings.enabled)
        return status.not_applied(name, is_over=self.stage is KernelStage.STOPPED)


KEEPER = "keeper"
TEMPLATE = "template"
_EVERY = 1.0
_CHECK_SECONDS = 1.0
_MISSED = 3
_WORDS = {
    SPAWN_SERVER: "spawn server",
    HELPER: "helper",
    KEEPER: "keeper of the helper",
    TEMPLATE: "template of the workers",
}


@dataclass(slots=True)
class SupervisedProcess:
    """State of one process at the last check."""

    pid: int = 0
    up: bool = True
    """Whether it answers."""
    restarts: int = 0
    """Number of restarts seen so far."""


class Supervisor:
    """Thread that monitors the processes of one kernel layer: spawn server, template of the workers, helper, keeper.

    Another process restarts each of them. The thread logs and counts processes that end, stop or return, continues
    stopped ones where the system permits it, and reports a process that cannot be restarted.
    """

    def __init__(self, spawn: SpawnServer | None, egress: EgressControl | None) -> None:
        self.lost = ""
        """Name of a process that ended and cannot be restarted. The application must be restarted."""
        self._spawn = spawn
        self._egress = egress
        self._parts: dict[str, SupervisedProcess] = {}
        self._missed = 0
        self._listeners: list[Callable[[], object]] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = WorkerThread("kernel-supervision", self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Safe to call twice."""
        self._ending.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def parts(self) -> dict[str, SupervisedProcess]:
        """Return the processes by name, in their last known state."""
        return dict(self._parts)

    def on_lost(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` when a process ended and cannot be restarted, on the monitoring thread."""
        self._listeners.append(listener)

    def _run(self) -> None:
        while not self._ending.wait(_EVERY):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - monitoring must continue
                _supervision.exception("monitoring the kernel layer's processes failed; retrying")

    def look(self) -> None:
        """Check every process once."""
        if self._spawn is not None:
            self._look_at_spawn(self._spawn)
        if self._egress is not None:
            self._look_at_helper(self._egress)

    def _look_at_spawn(self, server: SpawnServer) -> None:
        pids = [server.pid, server.standby]
        up = server.answers(_CHECK_SECONDS)
        server.stalled = not up
        self._found(SPAWN_SERVER, server.pid if up else 0)
        if up:
            if server.template:
                self._found(TEMPLATE, server.template_pid)
            return
        for pid in pids:
            _resume(SPAWN_SERVER, pid)
        if not server.alive:
            self._lose(SPAWN_SERVER)

    def _look_at_helper(self, egress: EgressControl) -> None:
        try:
            pid = egress.ping(_CHECK_SECONDS)
        except KernelLayerError:
            pid = 0
        egress.stalled = pid == 0
        self._found(HELPER, pid)
        kept = egress.is_kept
        self._found(KEEPER, egress.keeper_pid if kept else 0)
        _resume(KEEPER, egress.keeper_pid if kept else 0)
        if pid:
            self._missed = 0
            return
        _resume(HELPER, self._parts[HELPER].pid)
        self._missed = 0 if kept else self._missed + 1
        if self._missed >= _MISSED:  # a slow process is not lost
            self._lose(HELPER)

    def _found(self, name: str, pid: int) -> None:
        part = self._parts.setdefault(name, SupervisedProcess(pid))
        if pid and part.pid and pid != part.pid:
            part.restarts += 1
            _supervision.warning("the %s was restarted: process %d replaces %d", _WORDS[name], pid, part.pid)
        elif pid and not part.up:
            _supervision.info("the %s answers again", _WORDS[name])
        elif not pid and part.up:
            _supervision.error("the %s (process %d) does not answer", _WORDS[name], part.pid)
        part.up, part.pid = bool(pid), pid or part.pid

    def _lose(self, name: str) -> None:
        if self.lost or self._ending.is_set():
            return
        self.lost = name
        _supervision.critical("the %s ended and cannot be restarted: restart the application", _WORDS[name])
        for listener in self._listeners:
            listener()


def _resume(name: str, pid: int) -> None:
    """Continue a stopped process, where this process may signal it."""
    if pid and is_stopped(pid):
        with suppress(OSError):  # owned by another user, or denied to a confined process
            os.kill(pid, signal.SIGCONT)
            _supervision.warning("the %s (process %d) was stopped; sent SIGCONT", _WORDS[name], pid)
