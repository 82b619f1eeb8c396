"""Launcher with confinement: programs that extensions start are confined to the rights of the caller."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.guard import _core
from democrai_sandbox.policy import Operation, ResourceType, is_at_or_below

from .confining import Program
from .interface import Whose
from .paths import decoded

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.kernel.spawn import SpawnedChild
    from democrai_sandbox.manifests import Limits
    from democrai_sandbox.policy import AccessRule, Subject
    from democrai_sandbox.runtime.children.interface import Order

    from .approvals import Approvals
    from .confining import Confiner, Prepared

_READING = (Operation.READ,)
_WRITING = (Operation.CREATE, Operation.MODIFY, Operation.DELETE)


class ConfinedLauncher:
    """Starts programs through the spawn server, confined to the guard of the caller."""

    def __init__(
        self,
        confiner: Confiner,
        approvals: Approvals,
        *,
        owned: Callable[[Subject], tuple[str, ...]],
        limits_of: Callable[[RawView], Limits],
    ) -> None:
        """Take ``owned``, which returns the folders that the runtime gave to a subject below protected paths."""
        self._confiner = confiner
        self._approvals = approvals
        self._owned = owned
        self._limits_of = limits_of

    def start(self, order: Order) -> ConfinedChild:
        """Start it; ``OSError`` is an error of the program, ``KernelLayerError`` of the start or the confinement."""
        whose = None if order.view is None else self._whose(order, order.view)
        return ConfinedChild(self._confiner, self._confiner.prepare(whose), order)

    def _whose(self, order: Order, view: RawView) -> Whose:
        chain = view.allow_chain  # the property creates it anew each time
        rules = tuple(dict.fromkeys(rule for link in chain for rule in link.rules))
        places = [place for link in chain for place in self._owned(link.subject)]
        kind, name = view.actor
        approved = self._approvals.of_caller(view)
        return Whose(
            label=f"{kind}:{name}",
            rules=(*rules, *approved),
            read=tuple(place for place in places if _is_covered(place, rules, _READING)),
            readable=order.readable,
            write=tuple(place for place in places if _is_covered(place, rules, _WRITING)),
            execute=(order.program,),
            written=tuple(dict.fromkeys(place for link in chain for place in self._approvals.written_by(link.subject))),
            protected=tuple(decoded(path) for path, _ in _core.protected_entries()),
            limits=self._limits_of(view),
        )


class ConfinedChild:
    """A program that the spawn server has started."""

    def __init__(self, confiner: Confiner, prepared: Prepared, order: Order) -> None:
        """Start it with new pipes."""
        self._confiner = confiner
        self._prepared = prepared
        self._returncode: int | None = None
        self.unenforced = prepared.enforcement.unenforced
        self.failure = ""
        self.timed_out = False
        what = Program(order.program, order.argv, order.environment, order.folder)
        self._child: SpawnedChild
        self._child, pipes = confiner.start_with_pipes(prepared, what, with_input=order.with_input)
        stdin, self.stdout, self.stderr = pipes
        self.stdin = stdin if stdin >= 0 else None
        self.pid = self._child.pid
        self.ended = self._child.ended

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group."""
        self._child.signal_group(number)

    def collect(self) -> int:
        """Return the exit status, and stop all remaining processes in its cgroup, if it has one."""
        if self._returncode is None:
            try:
                self._returncode = self._child.collect()
                self.timed_out = self._child.timed_out
            except SpawnFailed as error:
                # The server is gone, and the kernel has killed the processes it had started.
                self._returncode, self.failure = -signal.SIGKILL, str(error)
            finally:
                self._child.close()
                self._confiner.release(self._prepared)
        return self._returncode


def _is_covered(place: str, rules: tuple[AccessRule, ...], operations: tuple[Operation, ...]) -> bool:
    return any(
        rule.resource_type is ResourceType.FILESYSTEM
        and any(rule.operation is operation for operation in operations)
        and is_at_or_below(place, rule.normalized_target)
        for rule in rules
    )
