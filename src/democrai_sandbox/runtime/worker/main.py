"""Worker process from its first frame on: configure the guard, import the subject inside it, and serve calls.

The thread that reads the *lane* runs calls directly; all other messages come over the *control* socket, whose thread
runs no code of the subject. Guarded code can inspect the frames below its own, so the functions that run it reference
only the guard, objects of the subject, and ``Door`` objects, which expose nothing.
"""

from __future__ import annotations

import asyncio
import faulthandler
import inspect
import io
import os
import site
import socket
import sys
import threading
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import Decider, Door, Guard, access_changed, configure_guard, own_process
from democrai_sandbox.policy import InvalidInputError, Subject, SubjectKind, rules_from_json
from democrai_sandbox.runtime import sdk_services
from democrai_sandbox.runtime.calls.access_recorder import recorded
from democrai_sandbox.runtime.calls.invocation import GuardFactory
from democrai_sandbox.runtime.calls.outcome import VALUE, capture, capture_async, describe, watch_reports
from democrai_sandbox.runtime.extensions import importer
from democrai_sandbox.runtime.extensions.importer import Surface, capture_import

from . import host_client
from .calls import CallRunner, Job, SubjectSection, WorkerCall, WorkerCalls
from .codec import SharedMemory
from .process import NOBODY, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


# ---- frames below the subject's code ---------------------------------------------------------------------------------


def serve_plainly(take: Door, give: Door) -> None:
    """Run plain functions one after the other, on this thread, until the process ends."""
    while True:
        number, guard, function, args, params = take()
        give(number, guard.run(capture, function, *args, **params))


def serve_on_a_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Run coroutines as concurrent tasks, on this thread."""
    loop.run_forever()


async def _run_task(number: int, take: Door, give: Door) -> None:
    _, guard, function, args, params = take(number)
    try:
        outcome = await guard.run(capture_async, function, *args, **params).isolated()
    except asyncio.CancelledError:
        outcome = None
    give(number, outcome)


# ---- functions behind the doors --------------------------------------------------------------------------------------


def _ours(function: Callable[..., Any]) -> Door:
    """Wrap a function of the worker so that the subject can neither inspect nor call it."""
    return sdk_services.hidden(function, owner="worker")


def plain_work(lane: host_client.WorkerSocket, runner: CallRunner) -> tuple[Door, Door]:
    """Return the functions with which ``serve_plainly`` serves the lane."""

    def take() -> Job:
        message = lane.receive()
        if message is None:
            os._exit(0)
        return runner.begin(WorkerCall(message))

    def give(number: int, outcome: Any) -> None:
        lane.reply(number, runner.end(number, outcome))

    return _ours(take), _ours(give)


_Task = asyncio.Task


def serve_lane(lane: host_client.WorkerSocket, runner: CallRunner, loop: host_client.WorkerLoop) -> None:
    """Make the loop begin the calls that arrive on the lane."""
    waiting: dict[int, WorkerCall] = {}
    tasks: dict[int, asyncio.Task[None]] = {}

    def take(number: int) -> Job:
        call = waiting.pop(number)
        call.task = tasks[number]
        return runner.begin(call)

    def give(number: int, outcome: Any) -> None:
        lane.reply(number, runner.end(number, outcome))
        del tasks[number]

    def read() -> None:
        messages = lane.receive_now()
        if messages is None:
            os._exit(0)
        for message in messages:
            call = WorkerCall(message)
            waiting[call.number] = call
            # Not with create_task, which calls a factory of the subject.
            run = _run_task(call.number, take_door, give_door)
            tasks[call.number] = _Task(run, loop=loop, name=f"call-{call.number}")

    take_door, give_door = _ours(take), _ours(give)
    loop.read_in_advance(lane.fileno(), _ours(read))


class Hands:
    """Threads that run plain functions while the lane is busy, started on demand."""

    def __init__(self, runner: CallRunner, line: host_client.WorkerSocket, most: int) -> None:
        self._runner = runner
        self._line = line
        self._most = most
        self._work: SimpleQueue[WorkerCall] = SimpleQueue()
        self._started = 0
        self._busy = 0
        self._counting = threading.Lock()
        self._doors = _ours(self._next), _ours(self._done)

    def take(self, call: WorkerCall) -> None:
        """Run a call as soon as a thread is free."""
        with self._counting:
            failed = self._start() if self._busy >= self._started and self._started < self._most else None
            if failed is None or self._started:  # otherwise it waits for a running thread
                self._busy += 1
                self._work.put(call)
                return
        self._line.reply(call.number, describe(failed))

    def _start(self) -> RuntimeError | None:
        """Start a thread; return the error at the limit of processes."""
        thread = threading.Thread(
            name=f"worker-{self._started + 1}", target=serve_plainly, args=self._doors, daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            return error
        self._started += 1
        return None

    def _next(self) -> Job:
        return self._runner.begin(self._work.get())

    def _done(self, number: int, outcome: Any) -> None:
        self._line.reply(number, self._runner.end(number, outcome))
        with self._counting:
            self._busy -= 1


class Control:
    """Reads the control socket until the host is gone, which ends the process."""

    def __init__(self, line: host_client.WorkerSocket, host: host_client.HostClient, calls: WorkerCalls) -> None:
        self._line = line
        self._calls = calls
        self.take: Callable[[WorkerCall], None] | None = None
        """Handler of calls; none arrive before the worker has reported that it is ready."""
        self.handlers: dict[str, Callable[..., None]] = {
            "answer": host.answered,
            "opened": host.opened,
            "settle": host.settled,
            "cancel": self._cancel,
            "forget": calls.forget,
            "credit": self._credit,
            "changed": access_changed,
            "stop": lambda: os._exit(0),
        }
        """Handlers of all messages except calls, by kind."""

    def start(self) -> None:
        """Start reading on a thread, wrapped so that a listing of the threads exposes nothing."""
        threading.Thread(name="worker-control", target=_ours(self._serve), daemon=True).start()

    def _serve(self) -> None:
        try:
            while (message := self._line.receive()) is not None:
                self._handle(message)
        finally:
            os._exit(0)

    def _handle(self, message: list[Any]) -> None:
        kind, *facts = message
        if kind == "call" and self.take is not None:
            self.take(WorkerCall(message))
        elif kind in self.handlers:
            self.handlers[kind](*facts)

    def _cancel(self, number: int) -> None:
        """Cancel a task; a plain function can only check a flag."""
        call = self._calls.cancel(number)
        if call is None:
            return
        if call.task is not None:
            call.task.get_loop().call_soon_threadsafe(call.task.cancel)
        elif call.wanted is not None:
            call.wanted()

    def _credit(self, number: int, more: int) -> None:
        call = self._calls.running.get(number)
        if call is not None and call.wanted is not None:
            for _ in range(more):
                call.wanted()


_ASSETS = frozenset({"tool", "agent", "pipeline"})
_FIRST_FRAME = 64 * 1024 * 1024


def factory_of(spec: WorkerSpec) -> GuardFactory:
    """Return the guards of the subject of this process."""
    return GuardFactory(
        Subject(SubjectKind(spec.kind), spec.name),
        SubjectSection(rules_from_json(spec.access), spec.allowed_imports),  # type: ignore[arg-type] # it fits
        own_read=spec.own_read,
        own_write=spec.own_write,
    )


def first_message(line: host_client.WorkerSocket) -> tuple[WorkerSpec, list[str]]:
    """Return the specification of this process and the words that follow it, from the first frame."""
    message = line.receive()
    if message is None:
        os._exit(0)
    _, fields, words = message
    told: dict[str, Any] = {name: tuple(value) if type(value) is list else value for name, value in fields.items()}
    spec = WorkerSpec(**told)
    if spec.no_exec:  # before the subject's code, on the only thread
        from democrai_sandbox.kernel.seccomp import give_up_programs  # noqa: PLC0415 - only with a kernel layer

        if reason := give_up_programs():
            sys.stderr.write(f"the worker could not give up starting programs: {reason}\n")
            os._exit(70)
    return spec, list(words)


def settle(lane: int, control: int, memory: int, environment: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Set the worker up for the host at the other end of two sockets; return the serving function and its arguments.

    The caller's frame must contain nothing else, because guarded code can inspect the frames below its own.
    """
    faulthandler.enable()  # a crash of native code then shows in the last output
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # as on a terminal: lines are read while the call runs
    first = host_client.WorkerSocket(control, _FIRST_FRAME)
    first.accept_descriptors()
    spec, names = first_message(first)
    shared = SharedMemory(memory, host=False)
    shared.close_descriptor()
    line = host_client.WorkerSocket(lane, spec.largest_frame, shared)
    return _WorkerMain(spec, line, first).settle(names, environment)


def is_confined(spec: WorkerSpec) -> bool:
    """Return whether the kernel confines this process to the subject's files and addresses, as measured here."""
    return spec.confined and root_is_shut() and (spec.tells_endpoints or network_is_shut())


def root_is_shut() -> bool:
    """Return whether the kernel refuses to list the root folder, as in every confined process."""
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_DIRECTORY))
    except PermissionError:
        return True
    return False


def network_is_shut() -> bool:
    """Return whether the kernel refuses all internet sockets, as it does without a network rule."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.socket(family, socket.SOCK_DGRAM).close()
        except OSError:
            continue
        return False
    return True


class _WorkerMain:
    def __init__(self, spec: WorkerSpec, lane: host_client.WorkerSocket, control: host_client.WorkerSocket) -> None:
        self._spec = spec
        self._lane = lane
        self._line = control
        self._calls = WorkerCalls()
        self._host = host_client.HostClient(control)
        self._watcher = host_client.UseTeller(self._host) if spec.tells_uses else host_client.RemoteWatcher(control)
        self._control = Control(control, self._host, self._calls)

    def settle(self, names: list[str], environment: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        factory, declarations = self._settle(names)
        self._control.handlers["candidate"] = partial(_compare, factory)
        _compare(factory, self._spec.candidate_access, self._spec.candidate_imports)
        try:
            self._control.start()
            outcome, surfaces = self._load(factory, declarations, environment)
        except RuntimeError as error:  # no thread can be started: the limit of processes
            outcome, surfaces = describe(error), ()
        if outcome[0] == VALUE:
            outcome, surfaces = self._opened(surfaces)
        if outcome[0] != VALUE:
            self._line.send(["broken", outcome])
            os._exit(1)
        table = {(surface.kind, surface.name): surface for surface in surfaces}
        runner = CallRunner(factory, table, self._calls, self._line, self._watcher.flush)
        self._control.take = Hands(runner, self._line, self._spec.threads).take
        waits = any(_awaits(surface) for surface in surfaces)
        self._line.send(["ready", [_info(surface) for surface in surfaces], waits])
        if not waits:
            return serve_plainly, plain_work(self._lane, runner)
        loop = self._host.loop
        asyncio.set_event_loop(loop)
        watch_reports(loop)
        serve_lane(self._lane, runner, loop)
        return serve_on_a_loop, (loop,)

    def _opened(self, surfaces: tuple[Surface, ...]) -> tuple[Any, tuple[Surface, ...]]:
        """Make tools, agents and pipelines usable here; their code is loaded only if the subject has some."""
        if sdk_services.is_served("ai.run"):
            sdk_services.install({"ai.entrance": _forwarded})
        if not any(surface.kind in _ASSETS for surface in surfaces):
            return (VALUE, None), surfaces
        from democrai_sandbox.runtime.ai import in_worker  # noqa: PLC0415 - only for subjects with such functions

        spec = self._spec
        if spec.kind == SubjectKind.TOOL:
            return (VALUE, None), in_worker.open_tool(spec.name, surfaces)
        try:
            found = in_worker.open_in_worker(spec, surfaces)
        except InvalidInputError as error:
            return describe(error), ()
        if spec.tells_uses:
            in_worker.hold_against_nothing(found.assets)
        if spec.tells_accesses:
            for facts in found.required():
                self._line.send(["noticed", facts])
        return (VALUE, None), found.surfaces

    def _settle(self, names: list[str]) -> tuple[GuardFactory, importer.Declarations]:
        """Do everything that must happen before the first guard."""
        spec = self._spec
        declarations = importer.Declarations()
        importer.preload()
        decider: Decider = host_client.RemoteDecider(self._host)
        if spec.tells_accesses:
            decider = recorded(decider, self._line.send, spec.sensitive_imports)
        services = host_client.RemoteServices(self._host, self._calls, (spec.data_dir, spec.folder)).table(names)
        own_process(confined=is_confined(spec))
        configure_guard(
            decider=decider,
            recorder=host_client.RemoteRecorder(self._line),
            observer=host_client.RemoteObserver(self._host) if spec.tells_endpoints or spec.is_observed else None,
            watcher=self._watcher,
            opener=host_client.RemoteOpener(self._host) if spec.confined else None,
            protected_paths=spec.protected,
            sensitive_imports=spec.sensitive_imports,
            native_packages=spec.native_packages,
            code_paths=spec.code_paths,
            read_only_paths=spec.read_only,
        )
        if isinstance(self._watcher, host_client.UseTeller):
            services[sdk_services.USED_PROGRAM] = self._watcher.program
        sdk_services.install({**services, "declare": declarations.declare})
        return factory_of(spec), declarations

    def _load(
        self, factory: GuardFactory, declarations: importer.Declarations, environment: str
    ) -> tuple[Any, tuple[Surface, ...]]:
        spec = self._spec
        package = importer.prepare(spec.kind, spec.name, spec.folder)
        guard = factory.guard(NOBODY)
        declarations.begin(spec.label)
        outcome = _imported(guard, package, spec.entry, environment)
        return outcome, declarations.end(spec.label)


def _forwarded(_: object, kind: str, name: str) -> Any:
    """Return the call of a tool, an agent or a pipeline that does not run here."""
    from democrai_sandbox.runtime.ai.asset_calls import forwarded  # noqa: PLC0415 - as in _opened

    return forwarded(kind, name)


def _compare(factory: GuardFactory, access: str, imports: Iterable[str]) -> None:
    """Compare the subject with a candidate; the empty text ends it."""
    section = SubjectSection(rules_from_json(access), tuple(imports)) if access else None
    factory.held_against(section)  # type: ignore[arg-type] # it fits


def _imported(guard: Guard, package: str, entry: str, environment: str) -> Any:
    """Import on a separate thread: this thread's frames reference the worker, and guarded code can inspect them."""
    outcomes: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_import, args=(guard, package, entry, environment, outcomes.put), daemon=True).start()
    return outcomes.get()


def _import(guard: Guard, package: str, entry: str, environment: str, give: Callable[[Any], None]) -> None:
    give(guard.run(capture_import, _start, package, entry, environment))


def _start(package: str, entry: str, environment: str) -> None:
    """Run the environment's start-up files and import the subject, all inside the guard."""
    start_environment(environment)
    importer.import_entry(package, entry)


def start_environment(environment: str) -> None:
    """Run the start-up files of a virtual environment."""
    if environment:
        for folder in [place for place in sys.path if place.startswith(f"{environment}/")]:
            site.addsitedir(folder)


def _awaits(surface: Surface) -> bool:
    return bool(surface.function.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))


def _info(surface: Surface) -> list[Any]:
    described = importer.described(surface)
    return [surface.kind, surface.name, surface.options, _awaits(surface), surface.is_stream, *described]
