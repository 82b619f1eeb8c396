"""Random secrets of 256 bits, stored only as hashes.

The functions are taken from native modules of the interpreter, once: a module in this process can replace functions of
``secrets`` and ``hashlib``.
"""

from __future__ import annotations

from binascii import b2a_base64
from hashlib import sha256
from os import urandom

TOKEN_PREFIX = "dsb_"  # noqa: S105 - start of every token, so that leaked tokens can be found
_BYTES = 32
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_FOR_ADDRESSES = bytes.maketrans(b"+/", b"-_")
_DIGITS = 43  # 62 ** 43 > 2 ** 256


def new_session_secret() -> str:
    """Return a secret for a cookie."""
    return b2a_base64(urandom(_BYTES), newline=False).translate(_FOR_ADDRESSES, b"=").decode()


def new_token_secret() -> str:
    """Return a secret for a header, without characters that end a word."""
    number = int.from_bytes(urandom(_BYTES), "big")
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, len(_LETTERS))
        digits.append(_LETTERS[digit])
    return TOKEN_PREFIX + "".join(digits)


def hashed(secret: str) -> str:
    """Return the stored hash. It needs no salt or cost, because 256 random bits cannot be guessed."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
