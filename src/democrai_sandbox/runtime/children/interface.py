"""Interfaces between the service and a launcher: a program to start, and a started child."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.guard.views import RawView


class Order(NamedTuple):
    """A program to start, after all checks."""

    program: str
    """A real file with all links resolved: the checked file is the one that runs."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Complete; nothing is inherited."""
    folder: str
    view: RawView | None
    """Guard of the caller, for a launcher that confines the child; None for the host itself."""
    mark: str
    """Set in the environment of the child and everything it starts, unless they clear it."""
    with_input: bool = False
    readable: tuple[str, ...] = ()
    """Paths that were checked for reading: the working directory, if the caller named one."""


class Child(Protocol):
    """A started program, the leader of a new session."""

    pid: int
    stdin: int | None
    """Descriptors of this process; the owner of the child closes them."""
    stdout: int
    stderr: int
    ended: int
    """Descriptor that becomes readable when the program has ended."""
    unenforced: tuple[str, ...]
    """Rules of the subject that the kernel does not enforce for the program, in words."""
    timed_out: bool
    """Whether the launcher stopped it because of its timeout; known after ``collect``."""
    failure: str
    """Reason why its exit status is unknown; empty otherwise. Known after ``collect``."""

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group. Not after ``collect``, because the pid may be reused then."""
        ...

    def collect(self) -> int:
        """Return the exit status of an ended program, negative for a signal, and release everything."""
        ...


class Launcher(Protocol):
    """Starts programs. Called on a separate thread, outside any guard."""

    def start(self, order: Order) -> Child:
        """Start it, or raise ``OSError``; ``KernelLayerError`` if the confinement fails."""
        ...
