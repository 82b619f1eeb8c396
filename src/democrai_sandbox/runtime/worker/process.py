"""Starting the process of a worker: its command, its environment, and the starter that confines nothing."""

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
"""Variables of the host that a worker gets; all others may hold what is no subject's business."""


def command_of(spec: WorkerSpec, lane: int, control: int) -> list[str]:
    """Return the command: isolated, without ``site``, and writing no bytecode.

    An environment's start-up files are a subject's work; and where bytecode belongs it may not write.
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
    """Return the whole environment of a worker: ``DEMOCRAI_*`` as for children, and little else."""
    for name, _ in spec.env:
        if name.startswith("DEMOCRAI_"):
            raise InvalidInputError.of(f"{name} belongs to the runtime", pointer="/env")
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
    """A child of this process, known by a descriptor: its number alone could be another's by the time it is used."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        """Watch a child that was started with both outputs as pipes."""
        self._child = child
        self._handle = child_handle(child.pid)
        self.pid = child.pid
        self.stdout = child.stdout.fileno() if child.stdout else -1
        self.stderr = child.stderr.fileno() if child.stderr else -1

    def kill(self) -> None:
        """End the process group, as long as its number is certainly still its own."""
        if self._child.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def wait(self) -> int:
        """Return the exit code; what the process left in its group is ended first, before the number is free."""
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
        """Let the descriptors go."""
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
    """Starts children directly. Nothing but the guard inside confines them."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> PlainProcess:
        """Start a program in a session of its own."""
        child = subprocess.Popen(  # noqa: ASYNC220, S603 - it returns at once, and the command is ours
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
