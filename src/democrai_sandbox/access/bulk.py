"""Loading very many rows at once."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_lock = threading.Lock()
_holders = 0
_was_enabled = False


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the cyclic garbage collector still, for a moment and for all threads.

    It would look through the whole process again and again while a hundred thousand rows come in, none of which is
    garbage: that takes as long as the rows themselves.
    """
    global _holders, _was_enabled  # noqa: PLW0603 - the collector is one for the process
    with _lock:
        if not _holders:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders and _was_enabled:
                gc.enable()
