"""Models of the configuration, whose keys are in private files, and those of the database."""

from __future__ import annotations

import asyncio
import os
import shutil
from contextlib import closing

import pytest

from democrai_sandbox.access.keyring import EncryptionKey, KeyRing
from democrai_sandbox.errors import HostRefused, InvalidInputError, StateUnusable
from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.host.config import load
from democrai_sandbox.host.directories import protected_paths
from democrai_sandbox.host.extension_admin import StoredModels, key_of, open_models, reseal_model_keys
from democrai_sandbox.runtime.ai.model import KnownModels, NamedModel
from democrai_sandbox.runtime.store import open_runtime_store
from tests.access.store.samples import NOW, sql
from tests.services.rows import rows

KEY = "sk-a-key-that-nobody-sees"


def settings(**more):
    model = {"endpoint": "https://models.example.com/v1", "model": "small", **more}
    return load({"extensions": {"models": {"default": model}}}, environ={"HOME": "/home/ann"}).settings


@pytest.fixture
def key_file(tmp_path):
    file = tmp_path / "model.key"
    file.write_text(f"{KEY}\nwhatever follows\n")
    file.chmod(0o600)
    return file


def test_a_model_is_made_of_its_settings(key_file):
    """Its key is the first line of the file, and in no representation; no subject can read the file."""
    found = settings(api_key_file=str(key_file))
    assert key_of("default", found.extensions.models["default"]) == KEY
    model = open_models(found)["default"]
    assert model.target == "https://models.example.com/v1/chat/completions"
    assert KEY not in repr(model) + repr(found) + str(vars(model))
    assert str(key_file) in protected_paths(found)


def _nothing(file):
    file.unlink()


def _folder(file):
    file.unlink()
    file.mkdir(mode=0o700)


def _pipe(file):
    file.unlink()
    os.mkfifo(file, 0o600)


@pytest.mark.parametrize(
    "spoil",
    [
        _nothing,
        _folder,
        _pipe,
        lambda file: file.chmod(0o644),
        lambda file: file.write_text("\n"),
        lambda file: file.write_text(f"{KEY} {KEY}\n"),
        lambda file: file.write_bytes(b"\xff\xfe\n"),
    ],
)
def test_a_key_file_that_cannot_be_used_is_refused(key_file, spoil):
    """With the setting, the file and a fix, and without the key."""
    spoil(key_file)
    with pytest.raises(StateUnusable) as error:
        open_models(settings(api_key_file=str(key_file)))
    told = error.value.diagnostics()
    assert "extensions.models.default.api_key_file" in told
    assert str(key_file) in told
    assert error.value.fix
    assert KEY not in told


def test_a_name_stands_for_one_model():
    """Models of the application and of the configuration must have different names."""
    with pytest.raises(HostRefused):
        open_models(settings(), {"default": object()})
    assert set(open_models(settings(), {"own": object()})) == {"default", "own"}


# ---- models of the database ------------------------------------------------------------------------------------------

ENTRY = {"endpoint": "https://models.example.com/v1", "model": "small", "api_key": KEY}
FIRST, SECOND = EncryptionKey("first", b"1" * 32), EncryptionKey("second", b"2" * 32)


class Node:
    """Node with a database: its models, and those that its agents find."""

    def __init__(self, store):
        self.store = store
        self.ring = KeyRing((FIRST,))
        self.known = KnownModels({"fixed": object()})
        self.models = StoredModels(store, lambda: self.ring, self.known)

    def add(self, name="default", **more):
        return self.models.add(name, {**ENTRY, **more}, now=NOW, actor="ann")

    def change(self, **changes):
        return self.models.change("default", changes, now=NOW, actor="ann")

    def key(self, name="default"):
        """Return the key for a request to the model, after reading the database again."""
        self.models.refresh()
        return self.known[name]._key()

    def failure(self, name="default"):
        self.models.refresh()
        with pytest.raises(ModelFailed) as caught:
            asyncio.run(NamedModel(name, self.known).complete((), ()))
        return str(caught.value)


@pytest.fixture
def url(tmp_path, prepared_file):
    shutil.copy(prepared_file, tmp_path / "access.db")
    return f"sqlite:///{tmp_path}/access.db"


@pytest.fixture
def node(url):
    with closing(open_runtime_store(url)) as store:
        yield Node(store)


@pytest.fixture
def other(url):
    with closing(open_runtime_store(url)) as store:
        yield Node(store)


def test_a_stored_model_is_used_on_every_node(node, other, tmp_path):
    """The key is available on each, and in no file and no representation; unchanged models are kept."""
    stored = node.add(timeout_seconds=5)
    assert (node.key(), other.key()) == (KEY, KEY)
    assert set(other.known) == {"fixed", "default"}
    kept = other.known["default"]
    other.models.refresh()
    assert other.known["default"] is kept
    written = b"".join(file.read_bytes() for file in tmp_path.glob("access.db*"))
    assert KEY.encode() not in written
    assert KEY not in repr(stored) + repr(vars(kept))
    node.store.remove_model("default", now=NOW, actor="ann")
    assert "no model 'default'" in other.failure()
    assert set(other.known) == {"fixed"}


def test_a_key_stays_until_another_is_given(node):
    """An empty text removes it."""
    node.add()
    assert node.change(model="large").settings["model"] == "large"
    assert node.key() == KEY
    node.change(api_key="sk-other")
    assert node.key() == "sk-other"
    node.change(api_key="")
    assert node.key() == ""
    node.change(endpoint="https://elsewhere.example.com/v1")
    assert node.key() == ""


def test_a_key_is_not_sent_to_another_endpoint(node, url):
    """It must be entered again, and a tampered row does not open it."""
    node.add()
    with pytest.raises(InvalidInputError) as caught:
        node.change(endpoint="https://evil.example.com/v1")
    assert [problem.pointer for problem in caught.value.problems] == ["/api_key"]
    node.change(endpoint="https://good.example.com/v1", api_key="sk-other")
    assert node.key() == "sk-other"
    sql(url, "UPDATE runtime_models SET settings = replace(settings, 'good.', 'evil.')")
    assert "cannot be decrypted" in node.failure()


@rows(
    "wrong, pointers",
    [
        ({"endpoint": "ftp://x"}, {"/endpoint"}),
        ({"endpoint": "https://ann@models.example.com/v1", "timeout_seconds": 0}, {"/endpoint", "/timeout_seconds"}),
        ({"api_key": f"{KEY} {KEY}"}, {"/api_key"}),
        ({"api_key": 7}, {"/api_key"}),
        ({"api_key_file": "/etc/shadow"}, {"/api_key_file"}),
        ({"options": {"messages": []}}, {"/options"}),
        ({"more": 1}, {"/more"}),
    ],
)
def test_what_is_no_model_is_refused(node, wrong, pointers):
    """With every problem, and without the key; nothing is stored."""
    with pytest.raises(InvalidInputError) as caught:
        node.add(**wrong)
    assert {problem.pointer for problem in caught.value.problems} == pointers
    assert KEY not in str(caught.value)
    with pytest.raises(InvalidInputError):
        node.add(name="no name")
    assert node.models.all() == {}
    node.add()
    with pytest.raises(InvalidInputError):
        node.change(**wrong)
    assert node.key() == KEY
    node.store.remove_model("default", now=NOW, actor="ann")


def test_keys_are_sealed_again_after_a_rotation(node):
    """The old key can then be removed; a model that no key opens is reported and left unchanged."""
    node.add()
    node.add("bare", api_key="sk-bare")
    node.ring = KeyRing((SECOND, FIRST))
    assert reseal_model_keys(node.store, node.ring) == (2, ())
    assert reseal_model_keys(node.store, node.ring) == (0, ())
    node.ring = KeyRing((SECOND,))
    assert (node.key(), node.key("bare")) == (KEY, "sk-bare")
    assert reseal_model_keys(node.store, KeyRing((FIRST,))) == (0, ("bare", "default"))
    assert node.key() == KEY


def test_a_node_without_the_key_of_the_ring_says_so(node, other):
    """The model works after the node has the key, without a restart."""
    node.ring = KeyRing((SECOND,))
    node.add()
    assert "'second'" in other.failure()
    other.ring = KeyRing((FIRST, SECOND))
    assert other.key() == KEY
