"""Questions to the store that do not wait for long: status and metrics have to answer during an outage."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from democrai_sandbox.errors import StoreUnavailable

from .threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from .node import AccessNode

T = TypeVar("T")

_SECONDS = 2.0
"""For one question. The store itself gives up later: it serves those who would rather wait than fail."""
_MOST = 16
"""Questions at a time, with those whose caller has gone; each ends when the store gives up."""
_places = threading.BoundedSemaphore(_MOST)


def ask_in_time(node: AccessNode, question: Callable[[], T], seconds: float = _SECONDS) -> T:
    """Return what a question to the store gives, or raise what it raises; ``StoreUnavailable`` when it takes too long.

    While the node finds the store away, nothing is asked: the node itself notices when it is back.
    """
    if not node.status.store_reachable or not _places.acquire(timeout=seconds):
        raise StoreUnavailable
    asked = _Asked(question)
    try:
        Worker("store-probe", asked.run).start()
    except BaseException:
        _places.release()
        raise
    return asked.answer(seconds)


class _Asked(Generic[T]):
    """A question on its way, and its answer."""

    def __init__(self, question: Callable[[], T]) -> None:
        self._question = question
        self._done = threading.Event()
        self._answer: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._answer.append(self._question())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked
            self._error = error
        finally:
            _places.release()
            self._done.set()

    def answer(self, seconds: float) -> T:
        if not self._done.wait(seconds):
            raise StoreUnavailable from TimeoutError(f"the database did not answer within {seconds:g} seconds")
        if self._error is not None:
            raise self._error
        return self._answer[0]
