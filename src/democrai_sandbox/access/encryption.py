"""Encryption at rest: AES-256-GCM with a key of the ring, bound to a purpose and an owner.

An encrypted value is ``version (1 byte), length of the key id (1), key id, nonce (12), ciphertext and tag``. Version,
key id and the owner's identity are authenticated: a value that was moved or changed does not decrypt. Each purpose
derives a separate key from the ring.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from democrai_sandbox.policy.text import shown

from .keyring import KEY_BYTES

if TYPE_CHECKING:
    from .keyring import Key, KeyRing

_VERSION = 1
_NONCE_BYTES = 12


class Unreadable(ValueError):  # noqa: N818 - it says what is wrong
    """Encrypted value that cannot be decrypted. The message gives the reason and reveals nothing of the value."""


class _Parts(NamedTuple):
    key_id: str
    header: bytes
    nonce: bytes
    body: bytes


def encrypt(key: Key, plain: bytes, *, purpose: bytes, identity: bytes) -> bytes:
    """Encrypt a value for a purpose, bound to the identity of its owner."""
    key_id = key.id.encode("ascii")
    header = bytes((_VERSION, len(key_id))) + key_id
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return header + nonce + _cipher(key.secret, purpose).encrypt(nonce, plain, header + identity)


def decrypt(ring: KeyRing, blob: bytes, *, purpose: bytes, identity: bytes) -> bytes:
    """Decrypt a value for this purpose and identity, or raise ``Unreadable``."""
    parts = _split(blob)
    key = ring.find(parts.key_id)
    if key is None:
        raise Unreadable(f"it was sealed with the key {shown(parts.key_id)}, which is not in the key ring")
    try:
        return _cipher(key.secret, purpose).decrypt(parts.nonce, parts.body, parts.header + identity)
    except InvalidTag:
        raise Unreadable("it was changed, or belongs to another owner") from None


def encrypted_with(blob: bytes) -> str:
    """Return the id of the encryption key that a value names. The id is not authenticated."""
    return _split(blob).key_id


def _split(blob: bytes) -> _Parts:
    if not blob or blob[0] != _VERSION:
        raise Unreadable("it does not start with a known format version")
    header = bytes(blob[: 2 + blob[1]] if len(blob) > 1 else blob)
    nonce, body = blob[len(header) : len(header) + _NONCE_BYTES], blob[len(header) + _NONCE_BYTES :]
    if not body:
        raise Unreadable("it is too short")
    return _Parts(header[2:].decode("ascii", "backslashreplace"), header, nonce, body)


@lru_cache(maxsize=32)
def _cipher(secret: bytes, purpose: bytes) -> AESGCM:
    """Return the cipher of a key for one purpose. Each purpose gets a separate derived key."""
    return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(secret))
