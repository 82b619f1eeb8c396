"""The models of the configuration: their keys come from files that nobody else reads."""

from __future__ import annotations

import os

import pytest

from democrai_sandbox.errors import HostRefused, StateUnusable
from democrai_sandbox.host.config import load
from democrai_sandbox.host.models import key_of, open_models
from democrai_sandbox.host.places import protected_paths

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
    """Its key is the first line of the file, and in no representation; no subject reaches the file."""
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
    """With the setting, the file and a fix, and nothing of the key."""
    spoil(key_file)
    with pytest.raises(StateUnusable) as error:
        open_models(settings(api_key_file=str(key_file)))
    told = error.value.diagnostics()
    assert "extensions.models.default.api_key_file" in told
    assert str(key_file) in told
    assert error.value.fix
    assert KEY not in told


def test_a_name_stands_for_one_model():
    """One of the application and one of the configuration are not mixed up."""
    with pytest.raises(HostRefused):
        open_models(settings(), {"default": object()})
    assert set(open_models(settings(), {"own": object()})) == {"default", "own"}
