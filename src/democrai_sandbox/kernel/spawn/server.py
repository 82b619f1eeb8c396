"""Spawn server: ``python -I -S -B server.py <template> <pids> <link> <bond> <application> <family> [<ruleset> ...]``.

It starts before the application has secrets, threads or restrictions, and knows only the application's process id, and
its folder for pids cgroups. It accepts requests only from that process, as verified by the kernel. It never waits for a
child. Standard library only.
"""

from __future__ import annotations

import errno
import gc
import importlib.machinery
import importlib.util
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

_HERE = Path(__file__).resolve().parent


def _load(name: str, path: Path) -> Any:
    """Load one of our files without its package, or the extension."""
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.kernel.landlock import raw_ruleset

    from . import children, pids_cgroups, protocol, standby, template
else:
    protocol = _load("protocol", _HERE / "protocol.py")
    children = _load("children", _HERE / "children.py")
    pids_cgroups = _load("pids_cgroups", _HERE / "pids_cgroups.py")
    raw_ruleset = _load("raw_ruleset", _HERE.parent / "landlock" / "raw_ruleset.py")
    standby = _load("standby", _HERE / "standby.py")
    template = _load("template", _HERE / "template.py")

_SWEEP_SOON = 0.05
"""Seconds to the next sweep after a child has ended and left processes that keep forking."""
_SWEEP_LATER = 5.0
"""Seconds between sweeps while children run; orphans of running children are only reaped by a sweep."""
_SPARE_DESCRIPTORS = 300
"""Descriptors for one request with its maximum number of descriptors, and for the server; at most half of all."""
_PER_CHILD = 3
_READABLE = select.EPOLLIN


def native_module() -> Any:
    """Load the compiled module of the kernel layer from the parent folder."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = _HERE.parent / f"_native{suffix}"
        if path.exists():
            return _load("democrai_sandbox.kernel._native", path)
    raise ImportError(f"the compiled module of the kernel layer for this interpreter is missing in {_HERE.parent}")


class FailedStepError(Exception):
    """Failed step of a start; the program does not run."""

    def __init__(self, step: str, error: OSError) -> None:
        super().__init__(step)
        self.step = step
        self.errno = error.errno or errno.EIO


class OpenedConfinement(NamedTuple):
    """Descriptors that confine a child, and what else its start needs."""

    rulesets: list[int]
    supervisor: list[int]
    """Socket to its supervisor, or nothing."""
    missing: list[str]
    """Missing paths of the plan."""
    group: str
    """Pids cgroup; empty for none."""
    entry: list[int]
    """Descriptor for joining it, or nothing."""


class Starts:
    """State shared by all starts."""

    def __init__(self, native: Any, baseline: list[int], groups: pids_cgroups.PidsCgroups) -> None:
        self._native = native
        self._groups = groups
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._ignored = _ignored_signals()
        self.baseline = baseline
        """Ruleset of the first layer of every child, after it was sent."""

    def give_baseline(self, plan: protocol.LandlockPlan) -> list[str]:
        """Store the application's lists, once; return the missing paths."""
        if self.baseline:
            raise protocol.BadRequestError("the baseline is already set")
        ruleset, missing = self._ruleset(plan)
        self.baseline = [ruleset]
        return missing

    @contextmanager
    def opened(self, front: protocol.Front) -> Iterator[OpenedConfinement]:
        """Keep open what confines a child, until its start is requested; after a failure, remove its cgroup."""
        group, entry = self._group(front.processes)
        own = [*entry]
        try:
            if front.plan is None:
                yield OpenedConfinement(self.baseline, [], [], group, entry)
                return
            ruleset, missing = self._ruleset(front.plan)
            own.append(ruleset)
            supervisor = self._supervisor(front.plan)
            own += supervisor
            yield OpenedConfinement([*self.baseline, ruleset], supervisor, missing, group, entry)
        except BaseException:
            self._groups.remove(group)
            raise
        finally:
            _close_all(own)

    def _group(self, processes: int | None) -> tuple[str, list[int]]:
        try:
            group, entry = self._groups.make(processes)
        except OSError as error:
            raise FailedStepError("pids", error) from error
        return group, [entry] if group else []

    def _supervisor(self, plan: protocol.LandlockPlan) -> list[int]:
        if not plan.metadata:
            return []
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with ours, theirs:
                self._native.supervise(ours.fileno(), raw_ruleset.identified(plan.metadata))
                return [theirs.detach()]
        except OSError as error:
            raise FailedStepError("supervisor", error) from error

    def start(
        self, body: bytes, files: list[int], front: protocol.Front, mark: int
    ) -> tuple[int, int, int, OpenedConfinement]:
        """Execute a request; return the pid, the pidfd, the report, and the confinement, whose descriptors are closed.

        The report is -1 for a running program. A program that must wait for the helper has a descriptor, which closes
        when the program runs, or contains data for ``_failure_of``.
        """
        with self.opened(front) as found:
            own = [(*each, protocol.NOTHING)[0] for each in (found.supervisor, found.entry)]
            try:
                pid, pidfd, *report = self._native.spawn(
                    body, files, found.rulesets, self._null, (children.MARKING, mark), self._ignored, *own
                )
            except ValueError as error:
                raise protocol.BadRequestError(str(error)) from error
            except OSError as error:
                raise FailedStepError((error.strerror or "").partition(":")[0], error) from error
        return pid, pidfd, report[0] if report else -1, found

    def _ruleset(self, plan: protocol.LandlockPlan) -> tuple[int, list[str]]:
        try:
            return raw_ruleset.build(
                self._native, plan.fs, plan.net, plan.scoped, plan.paths, plan.ports, exact=bool(plan.exact)
            )
        except OSError as error:
            raise FailedStepError("landlock", error) from error


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _failure_of(report: bytes) -> FailedStepError | None:
    """Return the step at which a program failed; None for a running program."""
    if len(report) < protocol.REPORT.size:
        return None
    number, step, _ = protocol.REPORT.unpack_from(report)
    if not number:
        return None
    return FailedStepError(step.rstrip(b"\0").decode("ascii", "replace"), OSError(number, os.strerror(number)))


def _ignored_signals() -> int:
    """Return the ignored signals of this process as a bit mask; all if the kernel does not report them."""
    with suppress(OSError), open("/proc/self/status", encoding="ascii", errors="replace") as status:  # noqa: PTH123
        for line in status:
            if line.startswith("SigIgn:"):
                return int(line.split()[1], 16)
    return (1 << 64) - 1


class ServerLoop:
    """Event loop of the spawn server."""

    def __init__(self, native: Any, inheritance: standby.Inheritance, watched: int) -> None:
        self._native = native
        self._inheritance = inheritance
        self._watched = watched
        self._groups = pids_cgroups.PidsCgroups(inheritance.pids, inheritance.application, inheritance.family)
        self._children = children.StartedPrograms(native, inheritance.family, self._groups)
        self._by_descriptor: dict[int, children.StartedProgram] = {}
        self._awaited: dict[int, tuple[children.StartedProgram, bytes]] = {}
        """Children that wait for the helper before their program starts, by report descriptor, with their answer."""
        self._starts = Starts(native, list(inheritance.rulesets), self._groups)
        self._started = self._refused = 0
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = max(1, (limit - min(_SPARE_DESCRIPTORS, limit // 2)) // _PER_CHILD)
        self._sweep_at: float | None = None
        self._events = select.epoll()
        for descriptor in (inheritance.link, watched):
            self._events.register(descriptor, select.EPOLLIN)
        self._children.end_predecessors()
        self._groups.begin()
        self._standby = self._new_standby()
        mark = (children.MARKING, self._children.template_mark)
        self._template = template.TemplateHandle(inheritance.command, self._events, mark)
        self._children.template = self._template
        self._template.start()

    def serve(self) -> None:
        """Serve until the application ends or closes the link; then kill all children."""
        try:
            while self._turn():
                pass
        finally:
            self._standby.end()
            self._template.end()
            self._children.end_all()

    def _new_standby(self) -> standby.Standby:
        """Fork a process that takes over when this one ends, with the current baseline."""
        inheritance = self._inheritance._replace(rulesets=tuple(self._starts.baseline))
        command = [sys.executable, "-I", "-S", "-B", __file__]
        made = standby.Standby(command, inheritance, self._watched)
        self._children.standby = made.pid
        self._events.register(made.descriptor, _READABLE)
        return made

    def _replace_standby(self) -> None:
        self._events.unregister(self._standby.descriptor)
        self._standby.end()
        self._standby = self._new_standby()

    def _turn(self) -> bool:
        ready = [number for number, _ in self._events.poll(self._patience())]
        if self._watched in ready:
            return False
        try:
            for number in ready:
                self._serve_ready(number)
        except EOFError:
            return False
        self._end_late()
        return True

    def _serve_ready(self, number: int) -> None:
        """Handle a readable descriptor; raise ``EOFError`` when the application has ended."""
        if number == self._inheritance.link:
            self._serve_request()
        elif number == self._standby.descriptor:
            self._replace_standby()
        elif number == self._template.descriptor:
            self._template.ended()
            self._children.sweep()  # ends its waiting fork, which may be stopped
            self._template.start()
        elif number in self._awaited:
            self._serve_report(number)
        elif number in self._template.pending:
            self._serve_fork(number)
        elif number in self._by_descriptor:
            self._serve_child(self._by_descriptor[number], number)

    def _end_late(self) -> None:
        """Handle all deadlines that have passed."""
        now = time.monotonic()
        self._children.end_late(now)
        for fork in self._template.late(now):
            self._refuse_fork(fork, FailedStepError("template", OSError(errno.ETIMEDOUT, "")))
        if self._sweep_at is not None and self._sweep_at <= now:
            self._sweep_at = None
            if again := self._children.sweep():
                self._children.end_strays()
            self._groups.sweep()
            if again or self._children.known:
                self._sweep_within(_SWEEP_SOON if again else _SWEEP_LATER)
        if self._groups.ending:
            self._sweep_within(_SWEEP_SOON)

    def _patience(self) -> float | None:
        moments = (self._children.next_deadline(), self._template.next_deadline(), self._sweep_at)
        first = min((moment for moment in moments if moment is not None), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _sweep_within(self, seconds: float) -> None:
        moment = time.monotonic() + seconds
        if self._sweep_at is None or moment < self._sweep_at:
            self._sweep_at = moment

    # --- requests -----------------------------------------------------------------------------------------------------

    def _serve_request(self) -> None:
        try:
            request = protocol.RequestPacket(self._native, self._inheritance.link)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in {errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN}:
                raise EOFError from error
            return
        try:
            if request.lifeline < 0:
                self._refused += 1
            else:
                self._answer(request, request.lifeline)
        finally:
            request.close()

    def _answer(self, request: protocol.RequestPacket, lifeline: int) -> None:
        """Execute a request and send the result; a child keeps the lifeline."""
        child = None
        try:
            body = request.body(self._inheritance.application)
            if body.startswith(protocol.ORDER):
                front = protocol.read_front(body)
                if front.fork:
                    self._fork(body, front, request.files, lifeline)
                    return
                child, answer = self._spawn(body, front, request.files, lifeline)
            elif body.startswith(protocol.JSON):
                answer = protocol.packed_answer(self._plain(protocol.parsed_request(body)))
            else:
                answer = self._refusal(error="bad request: unknown kind of request")
        except protocol.BadRequestError as error:
            answer = self._refusal(error=f"bad request: {error}")
        except FailedStepError as error:
            answer = self._refusal(step=error.step, errno=error.errno)
        except Exception as error:  # noqa: BLE001 - one bad request must not stop the server
            answer = self._refusal(error=f"{type(error).__name__}: {error}")
        if child is None:
            with suppress(OSError):
                self._native.tell(lifeline, answer, -1)
            os.close(lifeline)
            return
        if child.report >= 0:
            self._awaited[child.report] = (child, answer)
            return
        self._tell_start(child, answer)

    def _tell_start(self, child: children.StartedProgram, answer: bytes) -> None:
        if child.nice:
            self._children.share(child)
        try:
            self._native.tell(child.lifeline, answer, child.pidfd)
        except OSError:
            self._let_go(child)

    def _serve_report(self, report: int) -> None:
        """Answer for a program that had to wait: it has started or failed."""
        child, answer = self._awaited.pop(report)
        self._events.unregister(report)
        try:
            failure = _failure_of(os.read(report, 64))
        finally:
            os.close(report)
            child.report = -1
        if child.lifeline < 0:
            return  # the application has closed the lifeline, so the child was killed
        if failure is None:
            self._tell_start(child, answer)
            return
        self._tell_failure(child.lifeline, failure)
        self._let_go(child)

    def _tell_failure(self, lifeline: int, failure: FailedStepError) -> None:
        with suppress(OSError):
            self._native.tell(lifeline, self._refusal(step=failure.step, errno=failure.errno), -1)

    def _refusal(self, **members: Any) -> bytes:
        self._refused += 1
        return protocol.packed_answer({"ok": False, **members})

    def _plain(self, members: dict[str, Any]) -> dict[str, Any]:
        if members["action"] == "stats":
            return {"ok": True, **self._stats()}
        if members["action"] != "baseline":
            raise protocol.BadRequestError(f"unknown action {members['action'][:40]!r}")
        missing = self._starts.give_baseline(protocol.plan_of(members.get("plan")))
        self._replace_standby()  # before the answer, so that the standby confines children the same way
        return {"ok": True, "missing": missing}

    def _stats(self) -> dict[str, Any]:
        running = self._children.running
        return {
            "pid": os.getpid(),
            "standby": self._standby.pid,
            "running": running,
            "kept": len(self._children.known) - running,
            "started": self._started,
            "refused": self._refused,
            "most": self._most,
            "template": self._template.pid,
            "baseline": bool(self._starts.baseline),
            "pids_cgroups": self._groups.usable,
        }

    # --- children -----------------------------------------------------------------------------------------------------

    def _spawn(
        self, body: bytes, front: protocol.Front, files: list[int], lifeline: int
    ) -> tuple[children.StartedProgram, bytes]:
        self._check_room()
        mark = self._children.new_mark()
        pid, pidfd, report, found = self._starts.start(body, files, front, mark)
        child = children.StartedProgram(pid, pidfd, lifeline, front.wall_seconds, mark)
        child.nice, child.report, child.group = front.nice, report, found.group
        self._take_child(child)
        return child, protocol.packed_start(pid, found.missing)

    def _check_room(self) -> None:
        if len(self._children.known) + len(self._template.pending) >= self._most:
            raise protocol.BadRequestError(f"{self._most} children are running; the limit of open files allows no more")

    def _take_child(self, child: children.StartedProgram) -> None:
        self._started += 1
        try:
            self._children.known[child.pid] = child
            self._sweep_within(_SWEEP_LATER)
            for descriptor in (child.pidfd, child.lifeline):
                self._by_descriptor[descriptor] = child
                self._events.register(descriptor, _READABLE)
            if child.report >= 0:
                self._events.register(child.report, _READABLE)
        except BaseException:
            self._abandon(child)
            raise

    # --- workers ------------------------------------------------------------------------------------------------------

    def _fork(self, body: bytes, front: protocol.Front, files: list[int], lifeline: int) -> None:
        """Send a request to the template; ``_serve_fork`` answers it."""
        self._check_room()
        mark = self._children.new_mark()
        report, theirs = os.pipe2(os.O_CLOEXEC)
        temporary = [theirs]
        try:
            with self._starts.opened(front) as found:
                kinds = {"supervised": bool(found.supervisor), "limited": bool(found.entry)}
                packet, large = protocol.packed_fork(body, len(files), len(found.rulesets), mark, **kinds)
                sealed = [protocol.sealed(large)] if large else []
                temporary += sealed
                until = time.monotonic() + template.ANSWER_SECONDS
                fork = template.PendingFork(
                    report, lifeline, front.wall_seconds, front.nice, found.missing, mark, until, found.group
                )
                passed = [theirs, *files, *found.rulesets, *found.supervisor, *found.entry, *sealed]
                self._template.send(packet, passed, fork)
        except BaseException as error:
            os.close(report)
            if isinstance(error, OSError):
                raise FailedStepError("template", error) from error
            raise
        finally:
            _close_all(temporary)

    def _serve_fork(self, report: int) -> None:
        """Answer for a worker: it runs, or a step failed, or the template has ended."""
        fork = self._template.take(report)
        told = os.read(report, protocol.REPORT.size)
        if len(told) < protocol.REPORT.size:
            self._refuse_fork(fork, FailedStepError("template", OSError(errno.ECHILD, "")))
            return
        self._template.has_forked = True
        failure = _failure_of(told)
        if failure is not None:
            self._refuse_fork(fork, failure)
            return
        os.close(report)
        _, _, pid = protocol.REPORT.unpack(told)
        try:
            child = children.StartedProgram(pid, os.pidfd_open(pid), fork.lifeline, fork.wall_seconds, fork.mark)
            child.nice, child.group = fork.nice, fork.group
            self._take_child(child)
        except OSError:  # no free descriptor: the next sweep kills the worker, whose mark is unknown
            os.close(fork.lifeline)
            self._groups.remove(fork.group)
            self._sweep_within(_SWEEP_SOON)
            return
        self._tell_start(child, protocol.packed_start(pid, fork.missing))

    def _refuse_fork(self, fork: template.PendingFork, failure: FailedStepError) -> None:
        self._tell_failure(fork.lifeline, failure)
        os.close(fork.lifeline)
        os.close(fork.report)
        self._groups.remove(fork.group)

    def _abandon(self, child: children.StartedProgram) -> None:
        """Kill a child that cannot be watched; the next sweep reaps it as an orphan."""
        child.signal(signal.SIGKILL)
        self._children.drop(child)
        self._groups.remove(child.group)
        for descriptor in (child.pidfd, child.lifeline):
            with suppress(OSError):
                self._unwatch(descriptor)
        os.close(child.pidfd)
        if child.report >= 0:
            with suppress(OSError):
                self._events.unregister(child.report)
            os.close(child.report)

    def _unwatch(self, descriptor: int) -> None:
        if self._by_descriptor.pop(descriptor, None) is not None:
            self._events.unregister(descriptor)

    def _serve_child(self, child: children.StartedProgram, descriptor: int) -> None:
        if descriptor != child.pidfd:
            self._serve_lifeline(child)
            return
        code = self._native.exit_code(descriptor)
        if code is None:
            return
        if child.report >= 0:
            self._serve_report(child.report)  # the answer to the request comes first
            if child.lifeline < 0:
                self._unwatch(descriptor)
                self._children.end(child)
                self._children.forget(child)
                return
        # Before the report: a caller that waits for its end expects that no process of it is left.
        left = self._children.end(child)
        with suppress(OSError):
            self._native.tell(child.lifeline, protocol.STATUS.pack(code, child.timed_out), -1)
        self._unwatch(descriptor)
        if left:
            self._sweep_within(_SWEEP_SOON)
        if child.lifeline < 0:
            self._children.forget(child)

    def _serve_lifeline(self, child: children.StartedProgram) -> None:
        """Forward a signal, or notice that the application has closed the lifeline."""
        number = self._native.hear(child.lifeline)
        if number < 0:
            self._let_go(child)
        elif number:
            child.signal(number)

    def _let_go(self, child: children.StartedProgram) -> None:
        """Kill the remaining processes of a child; forget it when it has ended."""
        self._unwatch(child.lifeline)
        os.close(child.lifeline)
        child.lifeline = -1  # the number may be reused soon
        if child.ended:
            self._children.forget(child)  # its orphans are already killed, or will be by the next sweep
        else:
            child.signal(signal.SIGKILL)


def main() -> None:
    """Take the link, become the subreaper, protect this process from others, and serve."""
    command, pids = json.loads(sys.argv[1]), sys.argv[2]
    link, bond, application, family, *rulesets = map(int, sys.argv[3:])
    for number in (link, bond, *rulesets):
        os.set_inheritable(number, False)  # noqa: FBT003 - positional-only
    # These are for the application, which needs this process to stop its children at shutdown.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    native = native_module()
    native.set_name(b"dsb-spawn")
    native.set_subreaper()
    native.set_dumpable(False)
    native.drop_capabilities(protocol.CHILD_CAPABILITIES)  # once here instead of in each child
    try:
        watched = _handle_of(application)
    except ProcessLookupError:
        return
    # Only the application and its forks have the other end of the link. If it is closed, the application has ended, and
    # its process id may have been reused.
    if _is_cut(link):
        return
    inheritance = standby.Inheritance(tuple(command), link, bond, application, family, pids, tuple(rulesets))
    server = ServerLoop(native, inheritance, watched)
    gc.freeze()
    server.serve()


def _handle_of(application: int) -> int:
    """Return a descriptor that is readable after the application has ended.

    If the system refuses that, as some containers do, return one that never becomes readable. The closed link then
    shows the end, unless a fork of the application holds it.
    """
    try:
        return os.pidfd_open(application)
    except ProcessLookupError:
        raise
    except OSError:
        return os.eventfd(0, os.EFD_CLOEXEC)


def _is_cut(link: int) -> bool:
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return any(events & select.POLLHUP for _, events in poll.poll(0))


if __name__ == "__main__":
    main()
