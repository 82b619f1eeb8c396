"""Contexts that are sealed during a key rotation: none is stored with a removed key."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace
from functools import partial

import pytest

from democrai_sandbox.access.encryption import Sealer, key_of
from democrai_sandbox.access.keyring import KeyFile, KeyRing, retire, rotate
from democrai_sandbox.access.store import open_store
from tests.access.store.samples import NOW, request


@pytest.fixture
def keys(tmp_path):
    KeyRing.open(tmp_path / "keys")
    return tmp_path / "keys"


def sealed(keys, key="r-1"):
    """Return a request with a context, sealed with the current key."""
    bare, seal = request(action="go", key=key), Sealer(KeyFile(keys).ring).seal
    blob = seal({"a": 1}, bare)
    return replace(bare, resume_context=blob, seal_again=partial(seal, {"a": 1}, bare, blob))


@pytest.mark.parametrize("way", ["register", "attach"])
def test_what_was_sealed_with_a_key_that_is_gone_is_sealed_anew(store, keys, way):
    """The key was replaced and removed between sealing and storing: the context is stored with the new key."""
    new = sealed(keys)
    old = key_of(new.resume_context)
    rotate(keys)
    retire(keys, old)
    if way == "register":
        assert store.register(new, now=NOW).created
    else:
        store.register(request(key="r-1"), now=NOW)
        assert store.attach_resume(replace(new, resume_action="go"), now=NOW)
    assert Sealer(lambda: KeyRing.read(keys)).unseal(store.resume_context("r-1"), new) == {"a": 1}


def test_what_was_sealed_in_time_is_stored_as_it_is(store, keys):
    """While the same key encrypts, nothing is sealed twice."""
    new = sealed(keys)
    store.register(new, now=NOW)
    assert store.resume_context("r-1") == new.resume_context


def test_whoever_removes_a_key_waits_for_what_is_being_stored_with_it(store, url, keys):
    """A context was sealed a moment before another key came: it is stored before contexts are counted."""
    new, has_sealed, go_on = sealed(keys), threading.Event(), threading.Event()
    found, has_counted = [], threading.Event()

    def seal():
        has_sealed.set()
        assert go_on.wait(30)
        return new.resume_context

    def count():
        with closing(open_store(url)) as other:
            other.settle()
            other.replace_contexts(lambda _, blob: found.append(key_of(blob)))
        has_counted.set()

    writer = threading.Thread(target=store.register, args=(replace(new, seal_again=seal),), kwargs={"now": NOW})
    counter = threading.Thread(target=count)
    writer.start()
    try:
        assert has_sealed.wait(30)
        counter.start()
        assert not has_counted.wait(0.5)  # enough time to count, if it did not wait
    finally:
        go_on.set()
        writer.join(30)
    assert has_counted.wait(30)
    counter.join(30)
    assert found == [key_of(new.resume_context)]
