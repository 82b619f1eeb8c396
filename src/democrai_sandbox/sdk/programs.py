"""Programs that an extension under test starts, by the one way there is: decided and written down like all else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.runtime.children import Children, Rights

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.policy import AccessDecision, Subject
    from democrai_sandbox.runtime.children.interface import Launcher

    from .recording import Recording
    from .standin import Book

__all__ = ["Programs"]


class Programs:
    """The service behind ``sdk.tasks.run_subprocess`` for one extension."""

    def __init__(
        self, book: Book, recording: Recording, data_of: Callable[[Subject], str], launcher: Launcher | None
    ) -> None:
        """Have programs decided by this book; without a launcher, nothing of the kernel's holds them."""
        rights = Rights(_Told(book, recording), shadows=_Uses(book))
        self._children = Children(rights, home_of=data_of, launcher=launcher)
        self._recording = recording

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the services; whoever starts a program does so in another process."""
        return {**self._children.services(), "children.start": self._start}

    def _start(self, *order: Any) -> Any:
        self._recording.has_programs = True
        return self._children.start_apart(*order)

    async def open(self) -> None:
        """Serve on this loop."""
        self._children.open()

    def close(self) -> None:
        """End all programs."""
        self._children.close()


class _Told:
    """Writes down what is asked here: the guard in the process of the extension knows nothing of it."""

    def __init__(self, decider: Book, recording: Recording) -> None:
        self._decider = decider
        self._recording = recording

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        self._recording.notice((question.resource_type, question.operation, question.target))
        return self._decider.decide(question)


class _Uses:
    """Writes down what a declaration allows here, in the place where a host compares it with a candidate."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def compare(self, view: RawView, what: tuple[str, str, str], allows: Callable[[RawView], bool]) -> bool:
        allowed = allows(view)
        if allowed:
            self._book.used(*what)
        return allowed
