"""Sealed resume contexts: readable only for their request and with a key of the ring."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from itertools import permutations

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import assume, given
from hypothesis import strategies as st

from democrai_sandbox.access.encryption import Sealer, key_of
from democrai_sandbox.access.keyring import EncryptionKey, KeyFile, KeyRing, retire, rotate
from democrai_sandbox.access.resumptions import LONGEST_CONTEXT
from democrai_sandbox.access.values import (
    AccessTuple,
    NewRequest,
    Requester,
    RequestState,
    Resumption,
    ResumptionState,
    StoredRequest,
)
from democrai_sandbox.errors import InvalidInputError, ResumeContextUnreadable
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.services.golden import sentence
from tests.services.rows import rows

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RING = KeyRing((EncryptionKey("first", b"1" * 32), EncryptionKey("second", b"2" * 32)))


def seal(ring, context, request):
    return Sealer(lambda: ring).seal(context, request)


def unseal(ring, blob, request):
    return Sealer(lambda: ring).unseal(blob, request)


def reseal(ring, blob, request):
    return Sealer(lambda: ring).reseal(request, blob)


def request_of(request_id="R1", subject="module:demo", organization="acme", user="ann"):
    access = AccessTuple(Subject.parse(subject), ResourceType.NETWORK, Operation.RECEIVE, "https://example.com")
    origin = Requester(user, organization, "session", "task")
    return NewRequest(access, access.target, (subject,), origin, "go_on", request_id)


REQUEST = request_of()

parts = st.tuples(
    st.text(max_size=4),
    st.from_regex(r"(module|tool):[a-z:]{1,4}", fullmatch=True),
    st.text(max_size=4),
    st.text(max_size=4),
)


@given(st.recursive(st.none() | st.integers(-(2**80), 2**80) | st.text(), st.lists, max_leaves=5))
def test_what_was_sealed_comes_back(context):
    """A context decrypts for its request, unchanged."""
    assert unseal(RING, seal(RING, context, REQUEST), REQUEST) == context


@rows("context", [{1: 2}, "x" * LONGEST_CONTEXT])
def test_what_is_no_context_is_not_sealed(context):
    """A context that is not JSON or too large is rejected as input."""
    with pytest.raises(InvalidInputError) as caught:
        seal(RING, context, REQUEST)
    assert caught.value.problems[0].pointer == "/resume_context"


def test_the_largest_context_is_sealed():
    """Sealing adds no further limit."""
    context = "x" * (LONGEST_CONTEXT - 2)
    assert unseal(RING, seal(RING, context, REQUEST), REQUEST) == context


def test_the_three_forms_of_a_request_read_the_same_context():
    """A context sealed for a new request decrypts for the stored request and for its resumption."""
    blob = seal(RING, [1], REQUEST)
    stored = StoredRequest(
        REQUEST.id, REQUEST.access, "raw", (), REQUEST.origin, "go_on", True, RequestState.APPROVED, NOW, NOW, 1
    )
    resume = Resumption(
        "other", REQUEST.id, "go_on", REQUEST.origin, REQUEST.access.subject, ResumptionState.RUNNING, 1, NOW, NOW
    )
    assert unseal(RING, blob, stored) == unseal(RING, blob, resume) == [1]
    with pytest.raises(ResumeContextUnreadable):
        unseal(RING, blob, replace(resume, request_id="other"))


def test_the_context_cannot_be_seen_and_no_two_are_alike():
    """The sealed form reveals nothing of the context, and sealing again gives a different result."""
    blobs = {seal(RING, {"token": "swordfish"}, REQUEST) for _ in range(50)}
    assert len(blobs) == 50
    assert not any(b"sword" in blob or b"token" in blob for blob in blobs)


@given(parts, parts)
def test_a_context_does_not_open_for_another_request(one, other):
    """Another request id, subject, organization or user, in any combination, does not decrypt it."""
    assume(one != other)
    blob = seal(RING, {"a": 1}, request_of(*one))
    assert unseal(RING, blob, request_of(*one)) == {"a": 1}
    with pytest.raises(ResumeContextUnreadable) as caught:
        unseal(RING, blob, request_of(*other))
    sentence("changed or of another request", str(caught.value))


def test_parts_do_not_run_together():
    """The same characters split differently are another request."""
    for one, other in permutations((("a", "b,c"), ("a,b", "c"), ('a","b', "c"), ("", "a,b,c"), ("a,b,c", "")), 2):
        blob = seal(RING, 1, request_of(organization=one[0], user=one[1]))
        with pytest.raises(ResumeContextUnreadable):
            unseal(RING, blob, request_of(organization=other[0], user=other[1]))


def test_any_flipped_bit_makes_it_unreadable():
    """Every bit of a sealed context matters: version, key id, nonce, ciphertext, tag."""
    blob = seal(RING, {"amount": 1}, REQUEST)
    for position in range(len(blob) * 8):
        changed = bytearray(blob)
        changed[position // 8] ^= 1 << position % 8
        with pytest.raises(ResumeContextUnreadable):
            unseal(RING, bytes(changed), REQUEST)


def test_the_key_id_is_authenticated():
    """A context whose header names another key does not decrypt, even if that key has the same bytes."""
    ring = KeyRing((EncryptionKey("one", b"1" * 32), EncryptionKey("two", b"1" * 32)))
    blob = seal(ring, 1, REQUEST)
    with pytest.raises(ResumeContextUnreadable):
        unseal(ring, blob.replace(b"one", b"two", 1), REQUEST)


def test_any_part_of_it_is_unreadable():
    """Truncated at either end, or with added bytes, it does not decrypt."""
    blob = seal(RING, {"amount": 1}, REQUEST)
    cut = [blob[:length] for length in range(len(blob))] + [blob[start:] for start in range(1, len(blob))]
    for changed in (*cut, blob + b"\0", blob + blob):
        with pytest.raises(ResumeContextUnreadable):
            unseal(RING, changed, REQUEST)


@given(st.binary(max_size=100), st.booleans())
def test_garbage_is_unreadable(garbage, versioned):
    """Any bytes in the database cause the same typed error."""
    blob = b"\1" + garbage if versioned else garbage
    for act in (unseal, reseal):
        with pytest.raises(ResumeContextUnreadable):
            act(RING, blob, REQUEST)


def test_other_keys_do_not_open_it():
    """Without its key the error names the missing key; another key with the same id does not help."""
    blob = seal(RING, 1, REQUEST)
    with pytest.raises(ResumeContextUnreadable, match="'first'") as caught:
        unseal(KeyRing(RING.keys[1:]), blob, REQUEST)
    sentence("without its key", str(caught.value))
    with pytest.raises(ResumeContextUnreadable) as caught:
        unseal(KeyRing((EncryptionKey("first", b"3" * 32),)), blob, REQUEST)
    sentence("changed or of another request", str(caught.value))


def test_the_form_is_the_documented_one():
    """Stored contexts stay readable: header, nonce, and a key derived from the ring's for this purpose only."""
    derived = HKDF(SHA256(), 32, None, b"democrai-sandbox/resume-context/1").derive(RING.first.secret)
    header, nonce, identity = b"\1\5first", b"n" * 12, b'["R1", "module:demo", "acme", "ann"]'
    assert unseal(RING, header + nonce + AESGCM(derived).encrypt(nonce, b"[1]", header + identity), REQUEST) == [1]
    later = b"\2" + header[1:]
    with pytest.raises(ResumeContextUnreadable) as caught:
        unseal(RING, later + nonce + AESGCM(derived).encrypt(nonce, b"[1]", later + identity), REQUEST)
    sentence("a later version", str(caught.value))
    blob = seal(RING, [1], REQUEST)
    assert blob[:7] == header
    assert AESGCM(derived).decrypt(blob[7:19], blob[19:], header + identity) == b"[1]"
    with pytest.raises(InvalidTag):
        AESGCM(RING.first.secret).decrypt(blob[7:19], blob[19:], header + identity)


@given(st.lists(st.sampled_from(["seal", "rotate", "reseal"]), max_size=15))
def test_rotation_keeps_everything_readable(acts):
    """After any number of rotations and resealings, every context decrypts."""
    ring, sealed = KeyRing((EncryptionKey.random(),)), []
    for act in ["seal", *acts, "seal"]:
        if act == "rotate":
            ring = KeyRing((EncryptionKey.random(), *ring.keys))
        elif act == "seal":
            request = request_of(f"R{len(sealed)}")
            sealed.append((request, seal(ring, len(sealed), request)))
        else:
            sealed = [(request, reseal(ring, blob, request) or blob) for request, blob in sealed]
            ring = KeyRing(ring.keys[:1])  # a resealed context needs only the first key
    assert [unseal(ring, blob, request) for request, blob in sealed] == list(range(len(sealed)))


def test_sealing_again_is_for_old_keys_only_and_for_the_same_request():
    """A context under the first key stays unchanged; one under an old key is verified before it is resealed."""
    old = seal(KeyRing(RING.keys[1:]), "x", REQUEST)
    new = reseal(RING, old, REQUEST)
    assert (key_of(old), key_of(new)) == ("second", "first")
    assert unseal(RING, new, REQUEST) == "x"
    assert reseal(RING, new, REQUEST) is None
    with pytest.raises(ResumeContextUnreadable):
        reseal(RING, old, request_of("R2"))


def test_a_sealer_follows_the_key_file(tmp_path):
    """A sealer in use seals with a new first key immediately, and cannot decrypt contexts of a retired key."""
    sealer = Sealer(KeyFile(tmp_path / "keys").ring)
    blob = sealer.seal([1], REQUEST)
    rotated = rotate(tmp_path / "keys")
    assert key_of(sealer.seal([1], REQUEST)) == rotated.first.id != key_of(blob)
    assert sealer.unseal(blob, REQUEST) == [1]
    again = sealer.reseal(REQUEST, blob)
    retire(tmp_path / "keys", key_of(blob))
    assert sealer.unseal(again, REQUEST) == [1]
    with pytest.raises(ResumeContextUnreadable, match=key_of(blob)):
        sealer.unseal(blob, REQUEST)
