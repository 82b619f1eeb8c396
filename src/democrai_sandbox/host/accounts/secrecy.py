"""Secrets that are carried about: made at random, 256 bits, and known here by their hash alone."""

from __future__ import annotations

import hashlib
import secrets

TOKEN_PREFIX = "dsb_"  # noqa: S105 - what every token begins with, so that one in the wrong place can be found
_BITS = 256
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_DIGITS = 43  # 62 ** 43 > 2 ** 256


def new_session_secret() -> str:
    """Return a text for a cookie."""
    return secrets.token_urlsafe(_BITS // 8)


def new_token_secret() -> str:
    """Return a text for a header, without characters that end a word."""
    number = secrets.randbits(_BITS)
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, len(_LETTERS))
        digits.append(_LETTERS[digit])
    return TOKEN_PREFIX + "".join(digits)


def hashed(secret: str) -> str:
    """Return what is kept. No salt and no cost: nobody guesses 256 bits."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
