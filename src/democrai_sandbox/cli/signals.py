"""Signals that ask a command to end: it undoes what is half done, as after Ctrl-C, and then ends by the signal."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The second comes when a terminal is closed."""


def heed_signals() -> None:
    """Have these signals raise ``KeyboardInterrupt`` with their number. One that is ignored, as by nohup, stays so."""
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def end_by(interrupt: KeyboardInterrupt) -> None:
    """End this process by the signal that has raised this, so that whoever waits for it can tell; not for Ctrl-C."""
    for number in interrupt.args:
        if number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _interrupt(number: int, _: FrameType | None) -> None:
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)  # what is undone from now on is undone to its end
    raise KeyboardInterrupt(number)
