"""Ids of requests, decisions and resumptions: unique and sortable by creation time."""

from __future__ import annotations

import os
import time

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o and u, which are easily misread
_TIME_DIGITS = 10
_RANDOM_BYTES = 10


def new_id() -> str:
    """Return 26 characters: ten for the time in milliseconds, sixteen random ones."""
    return _digits(time.time_ns() // 1_000_000, _TIME_DIGITS) + _digits(int.from_bytes(os.urandom(_RANDOM_BYTES)), 16)


def _digits(number: int, count: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(count)))
