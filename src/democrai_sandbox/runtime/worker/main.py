"""Worker process from its first frame on: configure the guard, import the subject inside it, and serve."""

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
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard import configure_guard, own_process
from democrai_sandbox.policy import AccessRule, InvalidInputError, Subject, SubjectKind, rules_from_json
from democrai_sandbox.runtime import doors, loading
from democrai_sandbox.runtime.activation import Activation
from democrai_sandbox.runtime.confinement.observing import RemoteObserver
from democrai_sandbox.runtime.import_failures import capture_import
from democrai_sandbox.runtime.noticing import recorded
from democrai_sandbox.runtime.outcomes import VALUE, describe

from .calls import Calls
from .interface import Identity, WorkerSpec
from .lines import Line
from .remote import Desk, RemoteDecider, RemoteRecorder, RemoteServices, RemoteWatcher, UseTeller
from .running import Runner
from .serving import Control, Hands, loop_work, plain_work, serve_on_a_loop, serve_plainly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from democrai_sandbox.guard import Decider, Guard
    from democrai_sandbox.runtime.loading import Surface

_ASSETS = frozenset({"tool", "agent", "pipeline"})
_FIRST_FRAME = 64 * 1024 * 1024


class _Section(NamedTuple):
    access: tuple[AccessRule, ...]
    allowed_imports: tuple[str, ...]


def settle(lane: int, control: int, environment: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """Set the worker up for the host at the other end of two descriptors; return the serving function and arguments.

    The caller's frame must contain nothing else, because guarded code can inspect the frames below its own.
    """
    faulthandler.enable()  # a crash of native code then shows in the last output
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # as on a terminal: lines are read while the call runs
    first = Line(control, _FIRST_FRAME)
    message = first.receive()
    if message is None:
        os._exit(0)
    _, fields, names = message
    told: dict[str, Any] = {name: tuple(value) if type(value) is list else value for name, value in fields.items()}
    spec = WorkerSpec(**told)
    if spec.no_exec:
        give_up_programs()
    return _Worker(spec, Line(lane, spec.largest_frame), first).settle(list(names), environment)


def give_up_programs() -> None:
    """Make the kernel kill this process if it ever starts a program.

    Called on the only thread, before the subject's code.
    """
    from democrai_sandbox.kernel.seccomp import NO_EXEC, apply  # noqa: PLC0415 - only with a kernel layer
    from democrai_sandbox.kernel.states import ControlState  # noqa: PLC0415 - likewise

    status = apply(NO_EXEC)
    if status.state is ControlState.PARTIAL:  # where filters are unsupported, the host knows already
        sys.stderr.write(f"the worker could not give up starting programs: {status.reason}\n")
        os._exit(70)


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


class _Worker:
    def __init__(self, spec: WorkerSpec, lane: Line, control: Line) -> None:
        self._spec = spec
        self._lane = lane
        self._line = control
        self._calls = Calls()
        self._desk = Desk(control)
        self._watcher = UseTeller(self._desk) if spec.tells_uses else RemoteWatcher(control)
        self._control = Control(control, self._desk, self._calls)

    def settle(self, names: list[str], environment: str) -> tuple[Callable[..., None], tuple[Any, ...]]:
        activation, declarations = self._settle(names)
        self._control.compare = partial(_compare, activation)
        _compare(activation, self._spec.candidate_access, self._spec.candidate_imports)
        self._control.start()
        outcome, surfaces = self._load(activation, declarations, environment)
        if outcome[0] == VALUE:
            outcome, surfaces = self._opened(surfaces)
        if outcome[0] != VALUE:
            self._line.send(["broken", outcome])
            os._exit(1)
        table = {(surface.kind, surface.name): surface for surface in surfaces}
        runner = Runner(activation, table, self._calls, self._line, self._watcher.flush)
        self._control.take = Hands(runner, self._line, self._spec.threads).take
        waits = any(_awaits(surface) for surface in surfaces)
        self._line.send(["ready", [_info(surface) for surface in surfaces], waits])
        if not waits:
            return serve_plainly, plain_work(self._lane, runner)
        loop = self._desk.loop
        asyncio.set_event_loop(loop)
        return serve_on_a_loop, (loop, self._lane.fileno(), loop_work(self._lane, runner, loop))

    def _opened(self, surfaces: tuple[Surface, ...]) -> tuple[Any, tuple[Surface, ...]]:
        """Make tools, agents and pipelines usable here; their code is loaded only if the subject has some."""
        if not any(surface.kind in _ASSETS for surface in surfaces):
            return (VALUE, None), surfaces
        from democrai_sandbox.runtime.ai.apart import (  # noqa: PLC0415 - see above
            Whose,
            hold_against_nothing,
            open_apart,
            open_tool,
        )

        spec = self._spec
        if spec.kind == SubjectKind.TOOL:
            return (VALUE, None), open_tool(spec.name, surfaces)
        own = (spec.allowed_imports, spec.own_read, spec.own_write)
        whose = Whose(spec.name, spec.folder, spec.access, *own, recorded=spec.tells_accesses)
        try:
            found = open_apart(whose, surfaces)
        except InvalidInputError as error:
            return describe(error), ()
        if spec.tells_uses:
            hold_against_nothing(found.assets)
        if spec.tells_accesses:
            for facts in found.required():
                self._line.send(["noticed", facts])
        return (VALUE, None), found.surfaces

    def _settle(self, names: list[str]) -> tuple[Activation, loading.Declarations]:
        """Do everything that must happen before the first guard."""
        spec = self._spec
        declarations = loading.Declarations()
        loading.preload()
        decider: Decider = RemoteDecider(self._desk)
        if spec.tells_accesses:
            decider = recorded(decider, self._line.send, spec.sensitive_imports)
        services = RemoteServices(self._desk, self._calls, (spec.data_dir, spec.folder)).table(names)
        own_process(confined=is_confined(spec))
        configure_guard(
            decider=decider,
            recorder=RemoteRecorder(self._line),
            observer=RemoteObserver(self._desk) if spec.tells_endpoints else None,
            watcher=self._watcher,
            protected_paths=spec.protected,
            sensitive_imports=spec.sensitive_imports,
            native_packages=spec.native_packages,
            code_paths=spec.code_paths,
            read_only_paths=spec.read_only,
        )
        told = {doors.USED_PROGRAM: self._watcher.program} if isinstance(self._watcher, UseTeller) else {}
        doors.install({**services, **told, "declare": declarations.declare})
        activation = Activation(
            Subject(SubjectKind(spec.kind), spec.name),
            _Section(rules_from_json(spec.access), spec.allowed_imports),  # type: ignore[arg-type] # it fits
            own_read=spec.own_read,
            own_write=spec.own_write,
            allow_subprocess=spec.allow_subprocess,
        )
        return activation, declarations

    def _load(
        self, activation: Activation, declarations: loading.Declarations, environment: str
    ) -> tuple[Any, tuple[Surface, ...]]:
        spec = self._spec
        package = loading.prepare(spec.kind, spec.name, spec.folder)
        guard = activation.guard(Identity())  # type: ignore[arg-type] # it fits
        declarations.begin(spec.label)
        outcome = _imported(guard, package, spec.entry, environment)
        return outcome, declarations.end(spec.label)


def _compare(activation: Activation, access: str, imports: Iterable[str]) -> None:
    """Compare the subject with a candidate; the empty text ends it."""
    section = _Section(rules_from_json(access), tuple(imports)) if access else None
    activation.held_against(section)  # type: ignore[arg-type] # it fits


def _imported(guard: Guard, package: str, entry: str, environment: str) -> Any:
    """Import on a separate thread: this thread's frames reference the worker, and guarded code can inspect them."""
    outcomes: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_import, args=(guard, package, entry, environment, outcomes.put), daemon=True).start()
    return outcomes.get()


def _import(guard: Guard, package: str, entry: str, environment: str, give: Callable[[Any], None]) -> None:
    give(guard.run(capture_import, _start, package, entry, environment))


def _start(package: str, entry: str, environment: str) -> None:
    """Run the environment's start-up files and import the subject, all inside the guard."""
    if environment:
        for folder in [place for place in sys.path if place.startswith(f"{environment}/")]:
            site.addsitedir(folder)
    loading.import_entry(package, entry)


def _awaits(surface: Surface) -> bool:
    return bool(surface.function.__code__.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR))


def _info(surface: Surface) -> list[Any]:
    return [surface.kind, surface.name, surface.options, _awaits(surface), surface.is_stream]
