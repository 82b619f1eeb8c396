"""Template process: an interpreter with the runtime imported, which the spawn server has forked for each worker.

It holds no secret, thread, database handle or socket except the one to the spawn server, and runs no code of a subject.
One fork always waits for the next request. It is confined before it continues, and has no other descriptors than its
own.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import importlib
import locale
import os
import select
import sys
import tempfile
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from democrai_sandbox.guard.configuration import install_runtime_paths
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.seccomp import no_exec_program
from democrai_sandbox.kernel.spawn import protocol
from democrai_sandbox.kernel.spawn.children import MARKING
from democrai_sandbox.runtime.extensions import importer

from . import main, script  # noqa: F401 - imported here, so that no worker has to
from .process import NOBODY, WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_QUIET = 0.03
"""Seconds without a request before the next worker is prepared, which would slow the start of the previous one down."""
_PAUSE = 0.1
"""Seconds before the next attempt after a failed fork, or one that has ended."""


def serve(link: int, packages: Sequence[str]) -> list[str]:
    """Fork workers on request. Return only in a worker, with the arguments of its command."""
    _native.set_name(b"dsb-template")
    _native.set_parent_death_signal(9)
    for name in packages:
        _preload(name)
    importer.preload_modules()
    no_exec_program()
    importer.package_name("module", "rehearsal")  # its pattern is compiled once
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    gc.collect()
    gc.freeze()  # collections in workers then leave the shared memory alone
    while True:
        taken, waiting = os.pipe2(os.O_CLOEXEC)
        server = _forked()
        if server:
            os.close(taken)
            _rehearse(link)
            return _next_request(server, link, waiting, null)
        os.close(waiting)
        _wait(taken, link)
        if not os.read(taken, 1):  # it has ended without a request
            time.sleep(_PAUSE)
        os.close(taken)


def _forked() -> int:
    """Fork a worker; return 0 here, and the process id of the spawn server there. Retry while it is impossible."""
    while True:
        try:
            return _native.fork_worker()
        except OSError:  # the limit of processes, or no memory
            time.sleep(_PAUSE)


def _wait(descriptor: int, other: int) -> None:
    """Wait until a descriptor is readable. If the other end of either one is gone, end the process."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(other, 0)
    if any(number == other for number, _ in poll.poll()):
        os._exit(0)


def _next_request(server: int, link: int, waiting: int, null: int) -> list[str]:
    """Wait for a request, let the template fork the next worker, and become the requested one."""
    _wait(link, waiting)
    packet, _, descriptors, _, _ = _native.receive(link)
    os.write(waiting, b"1")
    os.close(waiting)
    if not packet:
        os._exit(0)
    try:
        request = protocol.parsed_fork(packet, descriptors)
        arguments, environment = _native.confine_worker(
            server,
            request.body,
            request.files,
            request.rulesets,
            null,
            (MARKING, request.mark),
            request.report,
            request.supervisor,
            request.pids,
        )
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EINVAL
        with suppress(OSError):
            os.write(descriptors[0], protocol.REPORT.pack(number, b"template", 0))
        os._exit(1)
    _adopt(environment)
    return arguments


def _rehearse(link: int) -> None:
    """Do in advance, without an effect, things that every worker does: its memory is then its own, and its caches warm.

    Stop as soon as a request arrives, or when a step fails, which the worker then reports.
    """
    spec = WorkerSpec("module", "rehearsal", "/", sys.executable)
    steps: tuple[Callable[[], object], ...] = (
        lambda: _adopt([f"{name}={value}" for name, value in os.environ.items()]),
        install_runtime_paths,
        lambda: asyncio.new_event_loop().close(),
        lambda: main.factory_of(spec).guard(NOBODY),
        _run_thread,
    )
    poll = select.poll()
    poll.register(link, select.POLLIN)
    patience = _QUIET * 1000
    with suppress(Exception):
        for step in steps:
            if poll.poll(patience):
                return
            step()
            patience = 0


def _run_thread() -> None:
    """Run a thread to its end; the next one gets its stack."""
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _adopt(environment: list[str]) -> None:
    """Replace the environment, as a program that is executed with it would have it."""
    os.environ.clear()
    for entry in environment:
        name, _, value = entry.partition("=")
        os.environ[name] = value
    time.tzset()
    tempfile.tempdir = None  # found again, in the new environment
    with suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "")


def _preload(name: str) -> None:
    """Import a package for all workers. One that fails is imported by the workers that use it, which then report it."""
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - code of a package
        sys.stderr.write(f"sandbox.worker.preload: {name} cannot be imported: {type(error).__name__}: {error}\n")
