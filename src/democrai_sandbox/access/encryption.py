"""Encryption at rest of resume contexts and entered secrets: AES-256-GCM, bound to a purpose and an owner."""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from democrai_sandbox.errors import ResumeContextUnreadable
from democrai_sandbox.policy.text import shown

from .keyring import KEY_BYTES
from .resumptions import decode_context, encode_context
from .values import Resumption

if TYPE_CHECKING:
    from collections.abc import Callable

    from .keyring import EncryptionKey, KeyRing
    from .store import SqlStore
    from .values import NewRequest, StoredRequest

_VERSION = 1
_NONCE_BYTES = 12


class DecryptionError(ValueError):
    """Encrypted value that cannot be decrypted. The message gives the reason and reveals nothing of the value."""


def encrypt(key: EncryptionKey, plain: bytes, *, purpose: bytes, identity: bytes) -> bytes:
    """Encrypt a value for a purpose, bound to the identity of its owner.

    The result is ``version (1 byte), length of the key id (1), key id, nonce (12), ciphertext and tag``. Version, key
    id and the owner's identity are authenticated: a value that was moved or changed does not decrypt. Each purpose
    derives a separate key from the ring. The owner of a secret includes the address it is sent to. The owner of a
    context is its request, with subject, organization and user.
    """
    key_id = key.id.encode("ascii")
    header = bytes((_VERSION, len(key_id))) + key_id
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return header + nonce + _cipher(key.secret, purpose).encrypt(nonce, plain, header + identity)


def decrypt(ring: KeyRing, blob: bytes, *, purpose: bytes, identity: bytes) -> bytes:
    """Decrypt a value for this purpose and identity, or raise ``DecryptionError``."""
    key_id, header, nonce, body = _split(blob)
    key = ring.find(key_id)
    if key is None:
        raise DecryptionError(f"it was sealed with the key {shown(key_id)}, which is not in the key ring")
    try:
        return _cipher(key.secret, purpose).decrypt(nonce, body, header + identity)
    except InvalidTag:
        raise DecryptionError("it was changed, or belongs to another owner") from None


def encrypted_with(blob: bytes) -> str:
    """Return the id of the encryption key that a value names. The id is not authenticated."""
    return _split(blob)[0]


def _split(blob: bytes) -> tuple[str, bytes, bytes, bytes]:
    """Return the key id, the authenticated header, the nonce and the ciphertext."""
    if not blob or blob[0] != _VERSION:
        raise DecryptionError("it does not start with a known format version")
    header = bytes(blob[: 2 + blob[1]] if len(blob) > 1 else blob)
    nonce, body = blob[len(header) : len(header) + _NONCE_BYTES], blob[len(header) + _NONCE_BYTES :]
    if not body:
        raise DecryptionError("it is too short")
    return header[2:].decode("ascii", "backslashreplace"), header, nonce, body


@lru_cache(maxsize=32)
def _cipher(secret: bytes, purpose: bytes) -> AESGCM:
    """Return the cipher of a key for one purpose. Each purpose gets a separate derived key."""
    return AESGCM(HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(secret))


_SECRET_PURPOSE = b"democrai-sandbox/entered-secret/1"


def seal_secret(ring: KeyRing, secret: str, *owner: str) -> bytes:
    """Encrypt a secret with the first key, bound to the owner that the texts name."""
    return encrypt(ring.first, secret.encode(), purpose=_SECRET_PURPOSE, identity=_secret_owner(owner))


def unseal_secret(ring: KeyRing, blob: bytes, *owner: str) -> str:
    """Decrypt a secret that was sealed for this owner, or raise ``DecryptionError``."""
    return decrypt(ring, blob, purpose=_SECRET_PURPOSE, identity=_secret_owner(owner)).decode()


def reseal_secret(ring: KeyRing, blob: bytes, *owner: str) -> bytes | None:
    """Return the secret encrypted with the first key, or None if it already is; raises ``DecryptionError``."""
    if encrypted_with(blob) == ring.first.id:
        return None
    return seal_secret(ring, unseal_secret(ring, blob, *owner), *owner)


def _secret_owner(owner: tuple[str, ...]) -> bytes:
    """Return an unambiguous encoding of the owner."""
    return json.dumps(owner).encode("ascii")


_CONTEXT_PURPOSE = b"democrai-sandbox/resume-context/1"


def key_of(blob: bytes) -> str:
    """Return the id of the encryption key that a context names. The id is not authenticated."""
    try:
        return encrypted_with(blob)
    except DecryptionError as error:
        raise ResumeContextUnreadable(str(error)) from None


class Sealer:
    """Seal and unseal with the keys that are current at each call, so that a rotation needs no restart."""

    def __init__(self, ring: Callable[[], KeyRing]) -> None:
        self._ring = ring

    def seal(self, context: Any, request: NewRequest | StoredRequest, sealed: bytes = b"") -> bytes:
        """Encrypt a context for a request; raises ``InvalidInputError`` if it is not JSON.

        ``sealed`` is an earlier result, returned unchanged while the same key encrypts.
        """
        ring = self._ring()
        if sealed and key_of(sealed) == ring.first.id:
            return sealed
        return _encrypt(ring.first, encode_context(context), request)

    def unseal(self, blob: bytes, request: NewRequest | StoredRequest | Resumption) -> Any:
        """Decrypt a context that was sealed for this request, or raise ``ResumeContextUnreadable``."""
        return decode_context(_decrypt(self._ring(), blob, request))

    def reseal(self, request: NewRequest | StoredRequest | Resumption, blob: bytes) -> bytes | None:
        """Return the context encrypted with the first key, or None if it already is; raises like ``unseal``."""
        ring = self._ring()
        return None if key_of(blob) == ring.first.id else _encrypt(ring.first, _decrypt(ring, blob, request), request)


class Resealed(NamedTuple):
    """Result of resealing all contexts. Older keys can then be retired, except for the unreadable contexts."""

    replaced: int
    """Number of contexts that were re-encrypted with the first key."""
    unreadable: tuple[str, ...]
    """Requests whose contexts no key of the ring decrypts. They are unchanged."""


def reseal_all(store: SqlStore, sealer: Sealer) -> Resealed:
    """Re-encrypt every stored context with the first key, also those being stored; can be interrupted and repeated."""
    unreadable = []

    def attempt(request: StoredRequest, blob: bytes) -> bytes | None:
        try:
            return sealer.reseal(request, blob)
        except ResumeContextUnreadable:
            unreadable.append(request.id)
            return None

    store.settle()
    return Resealed(store.replace_contexts(attempt), tuple(unreadable))


# ---- encryption


def _encrypt(key: EncryptionKey, plain: bytes, request: NewRequest | StoredRequest | Resumption) -> bytes:
    return encrypt(key, plain, purpose=_CONTEXT_PURPOSE, identity=_context_identity(request))


def _decrypt(ring: KeyRing, blob: bytes, request: NewRequest | StoredRequest | Resumption) -> bytes:
    try:
        return decrypt(ring, blob, purpose=_CONTEXT_PURPOSE, identity=_context_identity(request))
    except DecryptionError as error:
        raise ResumeContextUnreadable(str(error)) from None


def _context_identity(request: NewRequest | StoredRequest | Resumption) -> bytes:
    """Return an unambiguous encoding of the request that a context is bound to."""
    if isinstance(request, Resumption):
        request_id, subject = request.request_id, request.subject
    else:
        request_id, subject = request.id, request.access.subject
    origin = request.origin
    return json.dumps([request_id, str(subject), origin.organization_id, origin.user_id]).encode("ascii")
