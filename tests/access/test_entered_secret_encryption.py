"""Entered secrets: each decrypts only for its owner and with a key of the ring."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.encryption import (
    DecryptionError,
    encrypted_with,
    reseal_secret,
    seal_secret,
    unseal_secret,
)
from democrai_sandbox.access.keyring import EncryptionKey, KeyRing
from democrai_sandbox.errors import ResumeContextUnreadable
from tests.access.test_resume_context_encryption import REQUEST, seal, unseal
from tests.services.rows import rows

FIRST, SECOND = EncryptionKey("first", b"1" * 32), EncryptionKey("second", b"2" * 32)
RING = KeyRing((FIRST, SECOND))
OWNER = ("model", "default", "https://models.example.com/v1")
SECRET = "sk-a-secret"


def test_a_secret_comes_back():
    """The secret is not stored in plain form."""
    blob = seal_secret(RING, SECRET, *OWNER)
    assert unseal_secret(RING, blob, *OWNER) == SECRET
    assert (encrypted_with(blob), SECRET.encode() in blob) == ("first", False)
    assert seal_secret(RING, SECRET, *OWNER) != blob


@rows(
    "owner",
    [
        ("model", "other", "https://models.example.com/v1"),
        ("model", "default", "https://evil.example.com/v1"),
        ("modeldefault", "https://models.example.com/v1"),
        (),
    ],
)
def test_a_secret_opens_for_its_owner_only(owner):
    """The same characters split differently are another owner."""
    with pytest.raises(DecryptionError):
        unseal_secret(RING, seal_secret(RING, SECRET, *OWNER), *owner)


def test_any_change_is_noticed():
    """A changed bit or length is detected."""
    blob = seal_secret(RING, SECRET, *OWNER)
    changed = [blob[:at] + bytes((blob[at] ^ 1,)) + blob[at + 1 :] for at in range(len(blob))]
    for wrong in (*changed, blob[:-1], blob + b"x", b""):
        with pytest.raises(DecryptionError) as caught:
            unseal_secret(RING, wrong, *OWNER)
        assert SECRET not in str(caught.value)


def test_a_secret_is_sealed_again_with_the_first_key():
    """It is resealed once; without its key it is lost."""
    blob = seal_secret(KeyRing((SECOND,)), SECRET, *OWNER)
    again = reseal_secret(RING, blob, *OWNER)
    assert (encrypted_with(again), unseal_secret(KeyRing((FIRST,)), again, *OWNER)) == ("first", SECRET)
    assert reseal_secret(RING, again, *OWNER) is None
    with pytest.raises(DecryptionError):
        reseal_secret(KeyRing((FIRST,)), blob, *OWNER)


def test_secrets_and_contexts_are_not_taken_for_each_other():
    """Each purpose has separate keys."""
    with pytest.raises(ResumeContextUnreadable):
        unseal(RING, seal_secret(RING, SECRET, *OWNER), REQUEST)
    with pytest.raises(DecryptionError):
        unseal_secret(RING, seal(RING, SECRET, REQUEST), *OWNER)
