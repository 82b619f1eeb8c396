"""What starting a program takes, and what can be done with it then: the place where another launcher is plugged in."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.guard.views import RawView


class Order(NamedTuple):
    """A program to start, after everything about it was checked."""

    program: str
    """A real file, all links followed: what was checked is what runs."""
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """All of it; nothing is inherited."""
    folder: str
    view: RawView | None
    """The guard of whoever asked, for a launcher that confines the child by it; None for the host itself."""
    mark: str
    """Is in the environment of the child and of all that it starts, unless they clear it."""
    with_input: bool = False
    readable: tuple[str, ...] = ()
    """What was checked for it to read: the folder in which it begins, if the caller named one."""


class Child(Protocol):
    """A program that was started, as the leader of a session of its own."""

    pid: int
    stdin: int | None
    """Descriptors of this process, which belong to whoever has the child."""
    stdout: int
    stderr: int
    ended: int
    """A descriptor that is readable once the program has ended."""
    unenforced: tuple[str, ...]
    """What a launcher that confines could not keep of what the caller's rules say, in words."""
    timed_out: bool
    """Whether the launcher ended it because its time was up; known after ``collect``."""
    failure: str
    """Why nothing can be said about how it ended, if that is so; known after ``collect``."""

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group. Not after ``collect``: its number may be another's then."""
        ...

    def collect(self) -> int:
        """Return the exit status of a program that has ended, negative for a signal, and let everything go."""
        ...


class Launcher(Protocol):
    """Starts programs. Called on a thread of its own, outside any guard."""

    def start(self, order: Order) -> Child:
        """Start it, or raise ``OSError``; ``KernelLayerError`` when what was to confine it does not work."""
        ...
