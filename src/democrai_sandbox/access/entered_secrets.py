"""Secrets that administrators enter, such as the key of a model, at rest: sealed with the key ring.

A secret is bound to what it is for. That includes the address it is sent to: with another address, it does not open.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .encryption import decrypt, encrypt, encrypted_with

if TYPE_CHECKING:
    from .keyring import KeyRing

_PURPOSE = b"democrai-sandbox/entered-secret/1"


def seal_secret(ring: KeyRing, secret: str, *owner: str) -> bytes:
    """Encrypt a secret with the first key, for the owner that these texts name."""
    return encrypt(ring.first, secret.encode(), purpose=_PURPOSE, identity=_identity(owner))


def unseal_secret(ring: KeyRing, blob: bytes, *owner: str) -> str:
    """Return a secret that was sealed for this owner, or raise ``Unreadable``."""
    return decrypt(ring, blob, purpose=_PURPOSE, identity=_identity(owner)).decode()


def reseal_secret(ring: KeyRing, blob: bytes, *owner: str) -> bytes | None:
    """Return the same secret under the first key, or None when it is under that already; raises ``Unreadable``."""
    if encrypted_with(blob) == ring.first.id:
        return None
    return seal_secret(ring, unseal_secret(ring, blob, *owner), *owner)


def _identity(owner: tuple[str, ...]) -> bytes:
    """Return a form in which no two owners read the same."""
    return json.dumps(owner).encode("ascii")
