"""Class 2, numbers are reused while a call waits in the kernel: a signal makes it begin anew, by the number."""

from __future__ import annotations

import os
import signal
import threading
import time

from tests.guard.attacks.class_02_recycled_numbers import hold_reopen
from tests.guard.attacks.kit import FILES_OR_FD, SANDBOX, Ground, attacks_of


def waiting(ground: Ground, number: int, call, close) -> None:
    """Let a thread wait in `call`, free its number, let the host open the secret under it, and interrupt the thread."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    thread = threading.Thread(target=lambda: ground.attempt(call), daemon=True)
    thread.start()
    time.sleep(0.05)
    close()
    if ground.held.reopen(number) != number:
        raise RuntimeError("the host got another number")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # so that another thread gets it, sooner or later this one
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.00002)
    thread.join(1)
    signal.setitimer(signal.ITIMER_REAL, 0)


def by_number(ground: Ground) -> None:
    number, ground.held.end = os.pipe()
    waiting(ground, number, lambda: os.read(number, 99), lambda: os.close(number))


def by_vector(ground: Ground) -> None:
    number, ground.held.end = os.pipe()
    buffer = bytearray(99)
    waiting(ground, number, lambda: os.readv(number, [buffer]) and bytes(buffer), lambda: os.close(number))


def by_file(ground: Ground) -> None:
    number, ground.held.end = os.pipe()
    file = open(number, "rb", 0)
    waiting(ground, number, lambda: file.read(99), file.close)


def by_buffered_file(ground: Ground) -> None:
    """The lock of a buffered file is held by the one who waits; its number is closed below it."""
    number, ground.held.end = os.pipe()
    file = open(number, "rb")
    waiting(ground, number, lambda: file.read1(99), file.raw.close)


attacks_of(
    {"read": by_number, "readv": by_vector, "file": by_file, "buffered_file": by_buffered_file},
    "a read that waits is made to begin anew when its number has become the host's: {}",
    expect=(FILES_OR_FD | SANDBOX).or_raises("RuntimeError").quietly,
    group="interrupted_",
    prepare=hold_reopen,
)
