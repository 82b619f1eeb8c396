"""Garbage collection while many rows are loaded."""

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
    """Disable the cyclic garbage collector of the process for a short time.

    While a hundred thousand rows are loaded, the collector would scan the whole process repeatedly and find no garbage,
    which takes as long as loading the rows.
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
