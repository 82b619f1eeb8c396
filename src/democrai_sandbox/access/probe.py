"""Queries with a short timeout: status and metrics must answer during a database outage."""

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
"""Timeout of one query. The store's own timeout is longer, because other callers prefer waiting to failing."""
_MOST = 16
"""Maximum number of running queries, including abandoned ones, which end when the store times out."""
_places = threading.BoundedSemaphore(_MOST)


def ask_in_time(node: AccessNode, question: Callable[[], T], seconds: float = _SECONDS) -> T:
    """Return the result of a query or raise its error; raises ``StoreUnavailable`` after ``seconds``.

    While the node considers the store unreachable, nothing is asked; the node notices when the store is back.
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
    """Running query and its result."""

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
