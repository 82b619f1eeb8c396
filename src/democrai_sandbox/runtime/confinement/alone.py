"""The kernel's part in a one-off run: one child under Landlock and seccomp, worked out from its rules.

There is no application around it to be held, and no egress helper: of the network, the kernel keeps TCP ports.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelUnsupported
from democrai_sandbox.kernel import FlowLog
from democrai_sandbox.kernel.landlock.support import landlock_support
from democrai_sandbox.kernel.seccomp import applying as seccomp
from democrai_sandbox.kernel.spawn import SpawnServer
from democrai_sandbox.kernel.states import ControlState
from democrai_sandbox.policy import Operation, ResourceType, is_at_or_below

from .confining import Confiner, Program
from .launching import ConfinedChild
from .starting import ConfinedStarter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.kernel.spawn import SpawnedChild
    from democrai_sandbox.runtime.children.interface import Order
    from democrai_sandbox.runtime.scripts.running import Command

    from .confining import Prepared
    from .interface import Egress, Spawner, Whose

__all__ = ["Alone", "alone", "check_support"]

_MAKING = (Operation.CREATE, Operation.MODIFY)


class _Layer(NamedTuple):
    """What a confiner needs of a kernel layer."""

    spawn: Spawner
    abi: int
    flow: FlowLog
    egress: Egress | None = None


def check_support() -> int:
    """Return the Landlock ABI in use; ``KernelUnsupported`` says why a child cannot be held on this machine."""
    landlock = landlock_support()
    if landlock.abi < 1:
        raise KernelUnsupported(f"Landlock: {landlock.reason}", fix=landlock.fix)
    possible = seccomp.support()
    if possible.state is ControlState.UNSUPPORTED:
        raise KernelUnsupported(f"seccomp: {possible.reason}", fix=possible.fix)
    return landlock.abi


@contextmanager
def alone(whose: Whose) -> Iterator[Alone]:
    """Start a spawn server for one child; with it, whatever the child has left behind ends."""
    abi = check_support()
    server = SpawnServer.start()
    try:
        yield Alone(Confiner(_Layer(server, abi, FlowLog()), server), whose, abi)
    finally:
        server.stop()


class Alone:
    """Starts processes that are held to what one subject may do."""

    def __init__(self, confiner: Confiner, whose: Whose, abi: int) -> None:
        """Work out what it is held to."""
        self._confiner = confiner
        self._whose = whose
        self._prepared = confiner.prepare(whose)
        self.abi = abi
        self.starter = ConfinedStarter(confiner, lambda: whose)
        """For a worker, which has pipes for its streams."""

    @property
    def launcher(self) -> _Launcher:
        """For the programs that the subject starts."""
        return _Launcher(self._confiner, self._whose)

    @property
    def is_program(self) -> bool:
        """Whether it is no Python code, and so has no guard inside."""
        return bool(self._whose.execute)

    @property
    def unenforced(self) -> tuple[str, ...]:
        """What the kernel does not keep of the rules, in words."""
        return self._prepared.enforcement.unenforced

    @property
    def closed(self) -> tuple[str, ...]:
        """Writable folders in which the kernel lets it make nothing new, because code of the host lies in them."""
        return self._prepared.closed

    @property
    def missing(self) -> tuple[str, ...]:
        """What its rules let it make, and the kernel does not: a rule of Landlock is for what is there."""
        rules = (rule for rule in self._whose.rules if rule.resource_type is ResourceType.FILESYSTEM)
        wanted = {rule.normalized_target for rule in rules if rule.operation in _MAKING}
        there = {place for place in wanted if os.path.exists(place)}  # noqa: PTH110 - a text
        around = (*there, *self._whose.write, tempfile.gettempdir())
        return tuple(sorted(one for one in wanted if not any(is_at_or_below(one, place) for place in around)))

    def start(self, command: Command) -> _Child:
        """Start a program with the streams of this process."""
        path = command.program or command.argv[0]
        what = Program(path, command.argv, command.environment, command.folder, command.pass_fds)
        child = self._confiner.start(self._prepared, what, command.streams)
        return _Child(child, self._confiner, self._prepared)


class _Launcher:
    def __init__(self, confiner: Confiner, whose: Whose) -> None:
        self._confiner = confiner
        self._whose = whose

    def start(self, order: Order) -> ConfinedChild:
        """Start a program, held to the same."""
        whose = self._whose._replace(readable=order.readable, execute=(order.program,))
        return ConfinedChild(self._confiner, self._confiner.prepare(whose), order)


class _Child:
    def __init__(self, child: SpawnedChild, confiner: Confiner, prepared: Prepared) -> None:
        self._child = child
        self._confiner = confiner
        self._prepared = prepared
        self.ended = child.ended

    def signal(self, number: int) -> None:
        """Send a signal to it and what it has started."""
        self._child.signal_group(number)

    def collect(self) -> int:
        """Return its exit status."""
        try:
            return self._child.collect()
        finally:
            self._child.close()
            self._confiner.release(self._prepared)
