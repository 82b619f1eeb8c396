"""Template process: an interpreter with the runtime imported, which the spawn server has forked for each worker.

It holds no secret, thread, database handle or socket except the one to the spawn server, and runs no code of a subject.
A fork is confined before it continues, and has no other descriptors than its own.
"""

from __future__ import annotations

import errno
import gc
import importlib
import locale
import os
import select
import sys
import tempfile
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.seccomp import no_exec_program
from democrai_sandbox.kernel.spawn import protocol
from democrai_sandbox.kernel.spawn.children import MARKING
from democrai_sandbox.runtime.extensions import importer

from . import main, script  # noqa: F401 - imported here, so that no worker has to

if TYPE_CHECKING:
    from collections.abc import Sequence


def serve(link: int, packages: Sequence[str]) -> list[str]:
    """Fork workers on request. Return only in a worker, with the arguments of its command."""
    _native.set_name(b"dsb-template")
    _native.set_parent_death_signal(9)
    for name in packages:
        _preload(name)
    importer.preload_modules()
    no_exec_program()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    poll = select.poll()
    poll.register(link, select.POLLIN)
    gc.collect()
    gc.freeze()  # collections in workers then leave the shared memory alone
    while True:
        poll.poll()
        packet, _, descriptors, _, _ = _native.receive(link)
        if not packet:
            os._exit(0)
        worker = _forked(packet, descriptors, null)
        if worker is not None:
            arguments, environment = worker
            _adopt(environment)
            return arguments


def _forked(packet: bytes, descriptors: list[int], null: int) -> tuple[list[str], list[str]] | None:
    """Fork a worker; return None here, and its arguments and environment in the worker."""
    template, worker = os.getpid(), None
    try:
        request = protocol.parsed_fork(packet, descriptors)
        worker = _native.fork_worker(
            request.body,
            request.files,
            request.rulesets,
            null,
            (MARKING, request.mark),
            request.report,
            request.supervisor,
        )
    except (OSError, ValueError) as error:
        if os.getpid() != template:
            raise
        number = getattr(error, "errno", None) or errno.EINVAL
        with suppress(OSError):
            os.write(descriptors[0], protocol.REPORT.pack(number, b"template", 0))
    if worker is None:
        for descriptor in descriptors:
            os.close(descriptor)
    return worker


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
