"""Spawn server: ``python -I -S -B server.py <link> <bond> <application's pid> [<ruleset> ...]``.

It starts before the application has secrets, threads or restrictions, and knows only the application's process id. It
accepts requests only from that process, as verified by the kernel. It never waits for a child. Standard library only.
"""

from __future__ import annotations

import errno
import gc
import importlib.machinery
import importlib.util
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    from . import children, packets, protocol, standby, starts
else:
    protocol = _load("protocol", _HERE / "protocol.py")
    packets = _load("packets", _HERE / "packets.py")
    children = _load("children", _HERE / "children.py")
    _load("raw_ruleset", _HERE.parent / "landlock" / "raw_ruleset.py")
    starts = _load("starts", _HERE / "starts.py")
    standby = _load("standby", _HERE / "standby.py")

_SWEEP_SOON = 0.05
"""Seconds to the next sweep after a child has ended and left processes that keep forking."""
_SWEEP_LATER = 5.0
"""Seconds between sweeps while children run; orphans of running children are only reaped by a sweep."""
_SPARE_DESCRIPTORS = 300
"""Descriptors for one request with its maximum number of descriptors, and for the server."""
_PER_CHILD = 2
_READABLE = select.EPOLLIN


def native_module() -> Any:
    """Load the compiled module of the kernel layer from the parent folder."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES:
        path = _HERE.parent / f"_native{suffix}"
        if path.exists():
            return _load("democrai_sandbox.kernel._native", path)
    raise ImportError(f"the compiled module of the kernel layer for this interpreter is missing in {_HERE.parent}")


class ServerLoop:
    """Event loop of the spawn server."""

    def __init__(self, native: Any, inheritance: standby.Inheritance, watched: int) -> None:
        """Watch the link and the application, and start the standby."""
        self._native = native
        self._inheritance = inheritance
        self._link = inheritance.link
        self._application = inheritance.application
        self._watched = watched
        self._children = children.StartedPrograms(native)
        self._by_descriptor: dict[int, children.StartedProgram] = {}
        self._awaited: dict[int, tuple[children.StartedProgram, bytes]] = {}
        """Children that wait for the helper before their program starts, by report descriptor, with their answer."""
        self._starts = starts.Starts(native, list(inheritance.rulesets))
        self._started = self._refused = 0
        self._most = max(1, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_DESCRIPTORS) // _PER_CHILD)
        self._sweep_at: float | None = None
        self._events = select.epoll()
        for descriptor in (self._link, self._watched):
            self._events.register(descriptor, select.EPOLLIN)
        self._standby = self._new_standby()

    def serve(self) -> None:
        """Serve until the application ends or closes the link; then kill all children."""
        try:
            while self._turn():
                pass
        finally:
            self._standby.end()
            self._children.end_all()

    def _new_standby(self) -> standby.Standby:
        """Fork a process that takes over when this one ends, with the current baseline."""
        inheritance = self._inheritance._replace(rulesets=tuple(self._starts.baseline))
        made = standby.Standby(standby.command_of(__file__), inheritance, self._watched)
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
        for number in ready:
            if number == self._link:
                try:
                    self._serve_request()
                except EOFError:
                    return False
            elif number == self._standby.descriptor:
                self._replace_standby()
            elif number in self._awaited:
                self._serve_report(number)
            elif number in self._by_descriptor:
                self._serve_child(self._by_descriptor[number], number)
        now = time.monotonic()
        self._children.end_late(now)
        if self._sweep_at is not None and self._sweep_at <= now:
            self._sweep_at = None
            again = self._children.sweep()
            if again or self._children.known:
                self._sweep_within(_SWEEP_SOON if again else _SWEEP_LATER)
        return True

    def _patience(self) -> float | None:
        first = self._children.next_deadline()
        if first is None or (self._sweep_at is not None and self._sweep_at < first):
            first = self._sweep_at
        return None if first is None else max(0.0, first - time.monotonic())

    def _sweep_within(self, seconds: float) -> None:
        moment = time.monotonic() + seconds
        if self._sweep_at is None or moment < self._sweep_at:
            self._sweep_at = moment

    # --- requests -----------------------------------------------------------------------------------------------------

    def _serve_request(self) -> None:
        try:
            request = packets.RequestPacket(self._native, self._link)
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

    def _answer(self, request: packets.RequestPacket, lifeline: int) -> None:
        """Execute a request and send the result; a child keeps the lifeline."""
        child = None
        try:
            body = request.body(self._application)
            if body.startswith(protocol.ORDER):
                child, answer = self._spawn(body, request.files, lifeline)
            elif body.startswith(protocol.JSON):
                answer = protocol.packed_answer(self._plain(protocol.parsed_request(body)))
            else:
                answer = self._refusal(error="bad request: unknown kind of request")
        except protocol.BadRequestError as error:
            answer = self._refusal(error=f"bad request: {error}")
        except starts.FailedStepError as error:
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
        try:
            self._native.tell(child.lifeline, answer, child.pidfd)
        except OSError:
            self._let_go(child)

    def _serve_report(self, report: int) -> None:
        """Answer for a program that had to wait: it has started or failed."""
        child, answer = self._awaited.pop(report)
        self._events.unregister(report)
        try:
            failure = starts.failure_of(os.read(report, 64))
        finally:
            os.close(report)
            child.report = -1
        if child.lifeline < 0:
            return  # the application has closed the lifeline, so the child was killed
        if failure is None:
            self._tell_start(child, answer)
            return
        with suppress(OSError):
            self._native.tell(child.lifeline, self._refusal(step=failure.step, errno=failure.errno), -1)
        self._let_go(child)

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
            "baseline": bool(self._starts.baseline),
        }

    # --- children -----------------------------------------------------------------------------------------------------

    def _spawn(self, body: bytes, files: list[int], lifeline: int) -> tuple[children.StartedProgram, bytes]:
        if len(self._children.known) >= self._most:
            raise protocol.BadRequestError(f"{self._most} children are running; the limit of open files allows no more")
        wall_seconds, plan = protocol.read_front(body)
        mark = self._children.new_mark()
        pid, pidfd, report, missing = self._starts.start(body, files, plan, mark)
        self._started += 1
        deadline = None if wall_seconds is None else time.monotonic() + wall_seconds
        child = children.StartedProgram(pid, pidfd, lifeline, deadline, mark)
        child.report = report
        try:
            self._watch(child)
        except BaseException:
            self._abandon(child)
            raise
        return child, protocol.packed_start(pid, missing)

    def _watch(self, child: children.StartedProgram) -> None:
        self._children.add(child)
        self._sweep_within(_SWEEP_LATER)
        for descriptor in (child.pidfd, child.lifeline):
            self._by_descriptor[descriptor] = child
            self._events.register(descriptor, _READABLE)
        if child.report >= 0:
            self._events.register(child.report, _READABLE)

    def _abandon(self, child: children.StartedProgram) -> None:
        """Kill a child that cannot be watched; the next sweep reaps it as an orphan."""
        child.signal(signal.SIGKILL)
        self._children.drop(child)
        for descriptor in (child.pidfd, child.lifeline):
            self._by_descriptor.pop(descriptor, None)
            with suppress(OSError):
                self._events.unregister(descriptor)
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
            if child.let_go:
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
        if child.let_go:
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
        child.let_go = True
        if child.ended:
            self._children.forget(child)  # its orphans are already killed, or will be by the next sweep
        else:
            child.signal(signal.SIGKILL)


def _ignore_signals() -> None:
    """Ignore signals for the application, which needs this process to stop its children at shutdown."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)


def main() -> None:
    """Take the link, become the subreaper, protect this process from others, and serve."""
    link, bond, application, *rulesets = map(int, sys.argv[1:])
    for number in (link, bond, *rulesets):
        os.set_inheritable(number, False)  # noqa: FBT003 - positional-only
    _ignore_signals()
    native = native_module()
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
    server = ServerLoop(native, standby.Inheritance(link, bond, application, tuple(rulesets)), watched)
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
