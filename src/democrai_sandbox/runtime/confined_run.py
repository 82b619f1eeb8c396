"""Confinement of a single run: one child under Landlock and seccomp, derived from its rules.

No egress helper runs: of the network, the kernel restricts only TCP ports.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelUnsupported
from democrai_sandbox.kernel import FlowLog
from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.seccomp import process_filter as seccomp
from democrai_sandbox.kernel.spawn import SpawnServer
from democrai_sandbox.kernel.status import ControlState
from democrai_sandbox.policy import Operation, ResourceType, is_at_or_below
from democrai_sandbox.runtime.confinement.confiner import ConfinedChild, ConfinedStarter, Confiner, ProgramStart

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.kernel.spawn import SpawnedChild
    from democrai_sandbox.runtime.children.launch_request import LaunchRequest
    from democrai_sandbox.runtime.confinement.confiner import PreparedConfinement
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights

    from .single_run import Command

_MAKING = (Operation.CREATE, Operation.MODIFY)


def check_support() -> int:
    """Return the Landlock ABI in use; raise ``KernelUnsupported`` if a child cannot be confined here."""
    landlock = landlock_support()
    if landlock.abi < 1:
        raise KernelUnsupported(f"Landlock: {landlock.reason}", fix=landlock.fix)
    possible = seccomp.support()
    if possible.state is ControlState.UNSUPPORTED:
        raise KernelUnsupported(f"seccomp: {possible.reason}", fix=possible.fix)
    return landlock.abi


@contextmanager
def confined_run(rights: ProcessRights) -> Iterator[ConfinedRun]:
    """Start a spawn server for one child. Stopping it ends all processes that the child left behind."""
    abi = check_support()
    server = SpawnServer.start()
    try:
        yield ConfinedRun(Confiner(server, abi, FlowLog()), rights, abi)
    finally:
        server.stop()


class ConfinedRun:
    """Starts processes confined to the rules of one subject."""

    def __init__(self, confiner: Confiner, rights: ProcessRights, abi: int) -> None:
        """Derive the confinement."""
        self._confiner = confiner
        self._rights = rights
        self._prepared = confiner.prepare(rights)
        self.abi = abi
        self.starter = ConfinedStarter(confiner, lambda: rights)
        """For a worker, which has pipes as its streams."""
        self.launcher = _SingleRunLauncher(confiner, rights)
        """For programs that the subject starts."""

    @property
    def is_program(self) -> bool:
        """Whether it is not Python code, and so has no guard inside."""
        return bool(self._rights.execute)

    @property
    def unenforced(self) -> tuple[str, ...]:
        """Rules that the kernel does not enforce, in words."""
        return self._prepared.enforcement.unenforced

    @property
    def closed(self) -> tuple[str, ...]:
        """Writable folders that contain code of the host, so that the kernel allows no new files directly in them."""
        return self._prepared.closed

    @property
    def missing(self) -> tuple[str, ...]:
        """Paths that its rules let it create, but the kernel does not: Landlock rules need an existing path."""
        rules = (rule for rule in self._rights.rules if rule.resource_type is ResourceType.FILESYSTEM)
        wanted = {rule.normalized_target for rule in rules if rule.operation in _MAKING}
        there = {place for place in wanted if os.path.exists(place)}  # noqa: PTH110 - a text
        around = (*there, *self._rights.write, tempfile.gettempdir())
        return tuple(sorted(one for one in wanted if not any(is_at_or_below(one, place) for place in around)))

    def start(self, command: Command) -> _SingleRunChild:
        """Start a program with the given streams."""
        path = command.program or command.argv[0]
        what = ProgramStart(path, command.argv, command.environment, command.folder, command.pass_fds)
        child = self._confiner.start(self._prepared, what, command.streams)
        return _SingleRunChild(child, self._confiner, self._prepared)


class _SingleRunLauncher:
    def __init__(self, confiner: Confiner, rights: ProcessRights) -> None:
        self._confiner = confiner
        self._rights = rights

    def start(self, order: LaunchRequest) -> ConfinedChild:
        """Start a program with the same confinement."""
        rights = self._rights._replace(readable=order.readable, execute=(order.program,))
        return ConfinedChild(self._confiner, self._confiner.prepare(rights), order)


class _SingleRunChild:
    def __init__(self, child: SpawnedChild, confiner: Confiner, prepared: PreparedConfinement) -> None:
        self._child = child
        self._confiner = confiner
        self._prepared = prepared
        self.ended = child.ended

    def signal(self, number: int) -> None:
        """Send a signal to it and to everything it started."""
        self._child.signal_group(number)

    def collect(self) -> int:
        """Return its exit status."""
        try:
            return self._child.collect()
        finally:
            self._child.close()
            self._confiner.release(self._prepared)
