"""Passwords: rules, hashes, and the throttled check of a sign-in; random secrets of sessions and tokens.

The functions are taken from native modules of the interpreter, once: a module in this process can replace functions of
``secrets`` and ``hashlib``.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import b2a_base64
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from os import urandom
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING
from unicodedata import normalize

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from democrai_sandbox.access.store.audit_log import SYSTEM, AuditEntry, Ledger
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import SignInRefused, SignInThrottled
from democrai_sandbox.policy import InvalidInputError

from . import store
from .store import LONGEST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from democrai_sandbox.access.store.database import Database

    from .store import SignInAttempt

TOKEN_PREFIX = "dsb_"  # noqa: S105 - start of every token, so that leaked tokens can be found
_SECRET_BYTES = 32
_ALPHANUMERIC = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_URL_LETTERS = bytes.maketrans(b"+/", b"-_")
_DIGITS = 43  # 62 ** 43 > 2 ** 256


def new_session_secret() -> str:
    """Return a secret for a cookie."""
    return b2a_base64(urandom(_SECRET_BYTES), newline=False).translate(_URL_LETTERS, b"=").decode()


def new_token_secret() -> str:
    """Return a secret for a header, without characters that end a word."""
    number = int.from_bytes(urandom(_SECRET_BYTES), "big")
    digits = []
    for _ in range(_DIGITS):
        number, digit = divmod(number, len(_ALPHANUMERIC))
        digits.append(_ALPHANUMERIC[digit])
    return TOKEN_PREFIX + "".join(digits)


def hashed(secret: str) -> str:
    """Return the stored hash. It needs no salt or cost, because 256 random bits cannot be guessed."""
    return sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


SHORTEST = 12
LONGEST_BYTES = 1024
_SALT = 16
_DERIVED = 32
_AT_ONCE = 2
_WAITING = 6
_LONGEST_WAIT = 10.0
_RANDOM_WORDS = 4
_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without i, l, o, 0 and 1, which are easily confused
# Bound once: a module in this process can replace the method of the class.
_derive = Argon2id.derive_phc_encoded
_verify = Argon2id.verify_phc_encoded


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of comparing a password. The default takes about 0.2 seconds and 64 MiB."""

    memory_kib: int = 64 * 1024
    passes: int = 3
    lanes: int = 1

    def made(self, kept: str) -> bool:
        """Return whether a hash has this cost."""
        return kept.startswith(self._mark)

    def of_nobody(self) -> str:
        """Return a hash that takes as long to compare as a real one, and matches no password."""
        salt, derived = (b64encode(urandom(size)).decode().rstrip("=") for size in (_SALT, _DERIVED))
        return f"{self._mark}{salt}${derived}"

    @property
    def _mark(self) -> str:
        return f"$argon2id$v=19$m={self.memory_kib},t={self.passes},p={self.lanes}$"


class Passwords:
    """Password hashing and comparison with Argon2id."""

    def __init__(self, cost: Cost) -> None:
        """Prepare the hash for unknown names, so that they take as long as known ones."""
        self.cost = cost
        self._slots = BoundedSemaphore(_AT_ONCE)
        self._waiting = 0
        self._lock = Lock()
        self._nobody = cost.of_nobody()

    def keep(self, password: str) -> str:
        """Return the hash of a password, which contains its parameters."""
        cost = self.cost
        with self._slot():
            kdf = Argon2id(
                salt=urandom(_SALT),
                length=_DERIVED,
                iterations=cost.passes,
                lanes=cost.lanes,
                memory_cost=cost.memory_kib,
            )
            return _derive(kdf, _normal(password))

    def matches(self, password: str, kept: str | None) -> bool:
        """Return whether a password matches a hash. None, for an unknown user, takes as long and never matches."""
        try:
            given = _normal(password)
        except UnicodeEncodeError:
            given = b""
        with self._slot():
            try:
                _verify(given[: LONGEST_BYTES + 1], kept or self._nobody)
            except InvalidKey:
                return False
        return kept is not None

    @contextmanager
    def _slot(self) -> Iterator[None]:
        """Wait for a free slot; raise if too many callers wait, because they would use the threads of all pages."""
        with self._lock:
            if self._waiting >= _WAITING:
                raise SignInThrottled(2)
            self._waiting += 1
        try:
            if not self._slots.acquire(timeout=_LONGEST_WAIT):
                raise SignInThrottled(2)
        finally:
            with self._lock:
                self._waiting -= 1
        try:
            yield
        finally:
            self._slots.release()


def check_password(password: object, name: str) -> str:
    """Return a password that meets the rules; raise with the problem otherwise."""
    if type(password) is not str or not password:
        raise InvalidInputError.of("expected a password", pointer="/password")
    try:
        encoded = _normal(password)
    except UnicodeEncodeError:
        raise InvalidInputError.of("it contains an invalid character", pointer="/password") from None
    if len(encoded) > LONGEST_BYTES:
        raise InvalidInputError.of(f"it is longer than {LONGEST_BYTES} bytes", pointer="/password")
    if len(password) < SHORTEST:
        raise InvalidInputError.of(f"it is shorter than {SHORTEST} characters", pointer="/password")
    if len(set(password)) == 1:
        raise InvalidInputError.of("it consists of one repeated character", pointer="/password")
    if password.strip().lower() == name.lower():
        raise InvalidInputError.of("it is the same as the name", pointer="/password")
    return password


def random_password() -> str:
    """Return a random password of about 100 bits that is easy to read and type."""
    # The bias of the remainder of 64 bits is negligible.
    numbers = (int.from_bytes(urandom(8), "big") % len(_LETTERS) for _ in range(5 * _RANDOM_WORDS))
    letters = "".join(_LETTERS[number] for number in numbers)
    return "-".join(letters[begin : begin + 5] for begin in range(0, len(letters), 5))


def _normal(password: str) -> bytes:
    """Return a password as bytes, normalized, because keyboards encode the same characters differently."""
    return normalize("NFKC", password).encode()


class SignInCheck:
    """Password check that does not reveal which users exist or are disabled."""

    def __init__(self, database: Database, passwords: Passwords, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._passwords = passwords
        self._clock = clock

    def compare(self, name: str, password: str, address: str) -> tuple[SignInAttempt, str]:
        """Return the attempt, to be settled, and the password hash.

        Raise ``SignInThrottled`` before any comparison, or ``SignInRefused``.
        """
        who = name[: LONGEST_NAME * 4].strip().lower()  # an overlong name matches no user
        tried = self._database.act(partial(store.begin_sign_in, name=who, address=address, now=self._clock()))
        kept = self._database.ask(partial(store.password_hash, person_id=who))
        try:
            right = self._passwords.matches(password, kept)
            found = self._strengthened(who, password, kept) if right and kept is not None else None
        except SignInThrottled:
            self._database.act(partial(store.withdraw_sign_in, attempt=tried))
            raise
        if found is None:
            self._tell(tried, known=kept is not None)
            raise SignInRefused
        return tried, found

    def settle(self, tried: SignInAttempt) -> None:
        """Remove the count of an attempt that was not a sign-in."""
        self._database.act(partial(store.settle_sign_in, attempt=tried, now=self._clock()))

    def _strengthened(self, who: str, password: str, kept: str) -> str | None:
        """Hash a password again with the current cost; None if it was changed meanwhile."""
        if self._passwords.cost.made(kept):
            return kept
        better = self._passwords.keep(password)
        if self._database.act(partial(store.replace_hash, person_id=who, before=kept, kept=better)):
            return better
        # Changed meanwhile, or another sign-in has stored a new hash at the same time.
        present = self._database.ask(partial(store.password_hash, person_id=who))
        return present if self._passwords.matches(password, present) else None

    def _tell(self, tried: SignInAttempt, *, known: bool) -> None:
        """Audit the first, second, fourth... failure with the count, so that an attacker cannot fill the audit log.

        Unknown names are omitted: they may be a password in the wrong field, and the audit log is permanent.
        """
        if tried.failures & (tried.failures - 1):
            return
        after = {"person": tried.name if known else "", "address": tried.address, "failures": tried.failures}
        entry = AuditEntry(AuditAction.ACCOUNT_SIGN_IN_FAILED, SYSTEM, after=after)
        now = self._clock()
        self._database.act(lambda connection: Ledger(connection).close([entry], now=now))
