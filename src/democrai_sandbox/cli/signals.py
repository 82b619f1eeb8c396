"""Termination signals: clean up as after Ctrl-C, then end by the signal."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The second is sent when a terminal closes."""


def heed_signals() -> None:
    """Let these signals raise ``KeyboardInterrupt`` with their number. Ignored ones, as with nohup, stay ignored."""
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def end_by(interrupt: KeyboardInterrupt) -> None:
    """End this process by the signal that raised this, so that its parent can see it; not for Ctrl-C."""
    for number in interrupt.args:
        if number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _interrupt(number: int, _: FrameType | None) -> None:
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)  # the cleanup must not be interrupted
    raise KeyboardInterrupt(number)
