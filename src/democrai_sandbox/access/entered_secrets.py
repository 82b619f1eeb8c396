"""Encryption of secrets that administrators enter, such as the API key of a model.

A secret is bound to its owner, including the address it is sent to. For another address it does not decrypt.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .encryption import decrypt, encrypt, encrypted_with

if TYPE_CHECKING:
    from .keyring import KeyRing

_PURPOSE = b"democrai-sandbox/entered-secret/1"


def seal_secret(ring: KeyRing, secret: str, *owner: str) -> bytes:
    """Encrypt a secret with the first key, bound to the owner that the texts name."""
    return encrypt(ring.first, secret.encode(), purpose=_PURPOSE, identity=_identity(owner))


def unseal_secret(ring: KeyRing, blob: bytes, *owner: str) -> str:
    """Decrypt a secret that was sealed for this owner, or raise ``Unreadable``."""
    return decrypt(ring, blob, purpose=_PURPOSE, identity=_identity(owner)).decode()


def reseal_secret(ring: KeyRing, blob: bytes, *owner: str) -> bytes | None:
    """Return the secret encrypted with the first key, or None if it already is; raises ``Unreadable``."""
    if encrypted_with(blob) == ring.first.id:
        return None
    return seal_secret(ring, unseal_secret(ring, blob, *owner), *owner)


def _identity(owner: tuple[str, ...]) -> bytes:
    """Return an unambiguous encoding of the owner."""
    return json.dumps(owner).encode("ascii")
