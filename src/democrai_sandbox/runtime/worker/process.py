"""Start of a worker's process: its command, its environment, and the starter without confinement."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.guard.environment import ACCESS, SUBJECT, SUBJECT_CHAIN, SUBJECT_KIND
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.child_handle import child_handle
from democrai_sandbox.runtime.inherited import host_environment

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .interface import WorkerSpec

_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_PACKAGES = Path(__file__).parents[3]
_KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables of the host that a worker inherits; all others may contain secrets."""


def command_of(spec: WorkerSpec, lane: int, control: int) -> list[str]:
    """Return the command: isolated, without ``site``, and without writing bytecode.

    An environment's start-up files are code of the subject, and bytecode folders are not writable for it.
    """
    return [
        spec.interpreter,
        *("-I", "-S", "-B", "-X", "utf8"),
        str(_BOOTSTRAP),
        str(_PACKAGES),
        spec.environment,
        str(lane),
        str(control),
    ]


def environment_of(spec: WorkerSpec) -> dict[str, str]:
    """Return the complete environment of a worker: ``DEMOCRAI_*`` as for children, and few other variables."""
    for name, _ in spec.env:
        if name.startswith("DEMOCRAI_"):
            raise InvalidInputError.of(f"{name} is reserved for the runtime", pointer="/env")
    kept = {name: value for name, value in host_environment().items() if name in _KEPT or name.startswith("LC_")}
    return {
        **kept,
        **dict(spec.env),
        SUBJECT: spec.name,
        SUBJECT_KIND: spec.kind,
        ACCESS: spec.access,
        SUBJECT_CHAIN: json.dumps([spec.label]),
    }


class PlainProcess:
    """A child of this process, held by a descriptor, because its pid could be reused."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        """Watch a child that was started with both outputs as pipes."""
        self._child = child
        self._handle = child_handle(child.pid)
        self.pid = child.pid
        self.stdout = child.stdout.fileno() if child.stdout else -1
        self.stderr = child.stderr.fileno() if child.stderr else -1

    def kill(self) -> None:
        """Kill the process group while the pid cannot have been reused."""
        if self._child.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def wait(self) -> int:
        """Return the exit code; first kill the rest of the process group, while the pid cannot have been reused."""
        if self._child.returncode is None:
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._handle, _note, ended)
            try:
                await ended
            finally:
                loop.remove_reader(self._handle)
            self.kill()
        return self._child.wait()

    def close(self) -> None:
        """Close the descriptors."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            for pipe in (self._child.stdout, self._child.stderr):
                if pipe is not None:
                    pipe.close()


def _note(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)


class PlainStarter:
    """Starts children directly. Only the guard inside restricts them."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> PlainProcess:
        """Start a program in a new session."""
        child = subprocess.Popen(  # noqa: ASYNC220, S603 - it returns immediately, and the command is ours
            list(argv),
            env=dict(env),
            pass_fds=tuple(pass_fds),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return PlainProcess(child)
