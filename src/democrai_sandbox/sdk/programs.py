"""Programs that an extension under test starts through the SDK: decided and recorded like all other access."""

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
    """Service behind ``sdk.tasks.run_subprocess`` for one extension."""

    def __init__(
        self, book: Book, recording: Recording, data_of: Callable[[Subject], str], launcher: Launcher | None
    ) -> None:
        """Let this book decide about programs; without a launcher, programs are not confined."""
        rights = Rights(_Told(book, recording), shadows=_Uses(book))
        self._children = Children(rights, home_of=data_of, launcher=launcher)
        self._recording = recording

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the services; the callers are in another process."""
        return {**self._children.services(), "children.start": self._start}

    def _start(self, *order: Any) -> Any:
        self._recording.has_programs = True
        return self._children.start_apart(*order)

    async def open(self) -> None:
        """Serve on this loop."""
        self._children.open()

    def close(self) -> None:
        """Stop all programs."""
        self._children.close()


class _Told:
    """Records questions that are asked here, which the guard in the extension's process does not see."""

    def __init__(self, decider: Book, recording: Recording) -> None:
        self._decider = decider
        self._recording = recording

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        self._recording.notice((question.resource_type, question.operation, question.target))
        return self._decider.decide(question)


class _Uses:
    """Records accesses that a declaration allows here, where a host would compare them with a candidate."""

    def __init__(self, book: Book) -> None:
        self._book = book

    def compare(self, view: RawView, what: tuple[str, str, str], allows: Callable[[RawView], bool]) -> bool:
        allowed = allows(view)
        if allowed:
            self._book.used(*what)
        return allowed
