"""Encryption of stored resume contexts, bound to their requests.

The request's id, subject, organization and user are authenticated with a context: a context that was moved to another
request or changed does not decrypt.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ResumeContextUnreadable

from .contexts import decode_context, encode_context
from .encryption import Unreadable, decrypt, encrypt, encrypted_with
from .values import Resume

if TYPE_CHECKING:
    from collections.abc import Callable

    from .interface import Store
    from .keyring import Key, KeyRing
    from .values import NewRequest, Request

_PURPOSE = b"democrai-sandbox/resume-context/1"


def seal(ring: KeyRing, context: Any, request: NewRequest | Request) -> bytes:
    """Encrypt a context for a request with the first key; raises ``InvalidInputError`` if it is not JSON."""
    return _encrypt(ring.first, encode_context(context), request)


def unseal(ring: KeyRing, blob: bytes, request: NewRequest | Request | Resume) -> Any:
    """Decrypt a context that was sealed for this request, or raise ``ResumeContextUnreadable``."""
    return decode_context(_decrypt(ring, blob, request))


def reseal(ring: KeyRing, blob: bytes, request: NewRequest | Request | Resume) -> bytes | None:
    """Return the context encrypted with the first key, or None if it already is.

    Raises ``ResumeContextUnreadable`` like ``unseal``.
    """
    if key_of(blob) == ring.first.id:
        return None
    return _encrypt(ring.first, _decrypt(ring, blob, request), request)


def key_of(blob: bytes) -> str:
    """Return the id of the encryption key that a context names. The id is not authenticated."""
    try:
        return encrypted_with(blob)
    except Unreadable as error:
        raise ResumeContextUnreadable(str(error)) from None


class Sealer:
    """Seal and unseal with the keys that are current at each call, so that a rotation needs no restart."""

    def __init__(self, ring: Callable[[], KeyRing]) -> None:
        self._ring = ring

    def seal(self, context: Any, request: NewRequest | Request, sealed: bytes = b"") -> bytes:
        """Encrypt a context for a request; raises ``InvalidInputError`` if it is not JSON.

        ``sealed`` is an earlier result, returned unchanged while the same key encrypts.
        """
        ring = self._ring()
        return sealed if sealed and key_of(sealed) == ring.first.id else seal(ring, context, request)

    def unseal(self, blob: bytes, request: NewRequest | Request | Resume) -> Any:
        """Decrypt a context that was sealed for this request, or raise ``ResumeContextUnreadable``."""
        return unseal(self._ring(), blob, request)

    def reseal(self, request: NewRequest | Request | Resume, blob: bytes) -> bytes | None:
        """Return the context encrypted with the first key, or None if it already is; for ``Store.replace_contexts``."""
        return reseal(self._ring(), blob, request)


class Resealed(NamedTuple):
    """Result of resealing all contexts. Older keys can then be retired, except for the unreadable contexts."""

    replaced: int
    """Number of contexts that were re-encrypted with the first key."""
    unreadable: tuple[str, ...]
    """Requests whose contexts no key of the ring decrypts. They are unchanged."""


def reseal_all(store: Store, sealer: Sealer) -> Resealed:
    """Re-encrypt every stored context with the first key, including those that are being stored.

    Can be interrupted and repeated.
    """
    unreadable = []

    def attempt(request: Request, blob: bytes) -> bytes | None:
        try:
            return sealer.reseal(request, blob)
        except ResumeContextUnreadable:
            unreadable.append(request.id)
            return None

    store.settle()
    return Resealed(store.replace_contexts(attempt), tuple(unreadable))


# ---- encryption


def _encrypt(key: Key, plain: bytes, request: NewRequest | Request | Resume) -> bytes:
    return encrypt(key, plain, purpose=_PURPOSE, identity=_identity(request))


def _decrypt(ring: KeyRing, blob: bytes, request: NewRequest | Request | Resume) -> bytes:
    try:
        return decrypt(ring, blob, purpose=_PURPOSE, identity=_identity(request))
    except Unreadable as error:
        raise ResumeContextUnreadable(str(error)) from None


def _identity(request: NewRequest | Request | Resume) -> bytes:
    """Return an unambiguous encoding of the request that a context is bound to."""
    if isinstance(request, Resume):
        request_id, subject = request.request_id, request.subject
    else:
        request_id, subject = request.id, request.access.subject
    origin = request.origin
    return json.dumps([request_id, str(subject), origin.organization_id, origin.user_id]).encode("ascii")
