"""The registry: what lies in the folders, each by itself; a broken extension never stops the others."""

from __future__ import annotations

import json
import os

import pytest

from democrai_sandbox.errors import ExtensionBroken, ExtensionUnknown, InvalidInputError
from democrai_sandbox.manifests import ManifestKind
from democrai_sandbox.runtime.extensions import discover
from democrai_sandbox.runtime.settings import Isolation, RuntimeSettings

pytestmark = pytest.mark.once


@pytest.fixture
def modules(tmp_path):
    folder = tmp_path / "modules"
    folder.mkdir()
    write(folder / "sound", '{"name": "sound"}')
    return folder


def write(folder, manifest, entry="module.py"):
    folder.mkdir()
    (folder / "manifest.json").write_bytes(manifest if isinstance(manifest, bytes) else manifest.encode())
    if entry:
        (folder / entry).write_text("")


def settings(folder, **more):
    return RuntimeSettings(modules_path=str(folder), data_dir=str(folder.parent / "data"), **more)


def found(folder, **more):
    return discover(settings(folder, **more)).modules


BROKEN = {
    "not json": ('{"name": ', "expected"),
    "another type": ("[]", "expected"),
    "unknown key": ('{"name": "odd", "acess": []}', "acess"),
    "not utf-8": (b'{"name": "\xff"}', "UTF-8"),
    "a key twice": ('{"name": "odd", "name": "odd"}', "twice"),
    "ten megabytes": ('{"name": "odd", "description": "' + "x" * 10_000_000 + '"}', "larger than"),
    "very deep": ('{"name": "odd", "access": ' + "[" * 5000 + "]" * 5000 + "}", "deep"),
    "empty": ("", ""),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_manifest_is_listed_with_its_errors_and_the_others_are_found(modules, name):
    text, word = BROKEN[name]
    write(modules / "odd", text)
    registry = found(modules)
    assert registry["odd"].is_broken
    assert word in " ".join(map(str, registry["odd"].problems))
    assert not registry["sound"].is_broken


@pytest.mark.parametrize("name", [b"od\x1b[2Jd", b"od\xffd", "od\u202ed".encode(), b"o d ", b"a" * 255])
def test_a_folder_whose_name_no_subject_can_have_is_listed_all_the_same(modules, name):
    """Whoever lists everybody asks each for its subject, also one that is broken: no name in a folder ends that."""
    write(modules / os.fsdecode(name), "{")
    (odd,) = (each for each in found(modules).values() if each.is_broken)
    assert str(odd.subject).startswith("module:") and str(odd.subject).isprintable()


def test_a_folder_without_a_manifest_is_listed_as_broken(modules):
    (modules / "empty").mkdir()
    assert "no file manifest.json" in str(found(modules)["empty"].problems[0])


def test_a_manifest_that_is_a_pipe_does_not_hold_up_the_registry(modules):
    (modules / "pipe").mkdir()
    os.mkfifo(modules / "pipe" / "manifest.json")
    assert "regular file" in str(found(modules)["pipe"].problems[0])


def test_of_two_extensions_with_one_name_neither_runs(modules):
    write(modules / "first", '{"name": "twin"}')
    write(modules / "second", '{"name": "twin"}')
    twin = found(modules)["twin"]
    assert "first" in str(twin.problems[0])
    assert "second" in str(twin.problems[0])
    with pytest.raises(ExtensionBroken):
        twin.require_sound()


def test_two_folders_with_one_name_across_directories_are_seen(modules, tmp_path):
    extra = tmp_path / "extra"
    extra.mkdir()
    write(extra / "sound", '{"name": "sound"}')
    assert found(modules, extra_module_dirs=(str(extra),))["sound"].is_broken


def test_an_entry_that_is_missing_or_leads_out_is_found_before_anything_runs(modules, tmp_path):
    write(modules / "missing", '{"name": "missing"}', entry=None)
    write(modules / "linked", '{"name": "linked"}', entry=None)
    (tmp_path / "other.py").write_text("")
    (modules / "linked" / "module.py").symlink_to(tmp_path / "other.py")
    registry = found(modules)
    assert "no file module.py" in str(registry["missing"].problems[0])
    assert "leads out" in str(registry["linked"].problems[0])


def test_a_manifest_that_leads_out_is_not_read(modules, tmp_path):
    """It could be a link to what only the host may read, and what is wrong with it would say what is in there."""
    (tmp_path / "token").write_text("dsb_secret")
    (modules / "odd").mkdir()
    (modules / "odd" / "manifest.json").symlink_to(tmp_path / "token")
    odd = found(modules)["odd"]
    assert "leads out of the folder" in str(odd.problems) and "secret" not in str(odd.problems)
    (modules / "linked").symlink_to(modules / "sound")  # the folder itself may be elsewhere
    assert "leads out" not in str(found(modules)["sound"].problems)


def test_a_folder_that_cannot_be_read_is_told_and_does_not_hide_the_others(modules, tmp_path):
    registry = found(modules, extra_module_dirs=(str(tmp_path / "nowhere"),))
    assert "cannot be read" in str(registry["nowhere"].problems[0])
    assert not registry["sound"].is_broken


def test_files_and_hidden_folders_are_left_alone(modules):
    (modules / "README").write_text("")
    (modules / ".git").mkdir()
    assert set(found(modules)) == {"sound"}


def test_an_unknown_name_is_an_error_that_names_the_nearest(modules):
    registry = discover(settings(modules))
    with pytest.raises(ExtensionUnknown, match="did you mean 'sound'"):
        registry.get(ManifestKind.MODULE, "sond")


def test_engines_and_extractors_are_found_in_their_own_folders(tmp_path):
    for kind in ("engine", "extractor"):
        folder = tmp_path / f"{kind}s"
        folder.mkdir()
        write(folder / "one", json.dumps({"name": "one"}), entry=f"{kind}.py")
    registry = discover(
        RuntimeSettings(
            engines_path=str(tmp_path / "engines"),
            extractors_path=str(tmp_path / "extractors"),
            data_dir=str(tmp_path / "data"),
        )
    )
    assert str(registry.engines["one"].subject) == "engine:one"
    assert str(registry.extractors["one"].subject) == "extractor:one"
    assert len(list(registry)) == 2


def test_settings_say_all_that_is_wrong_with_them_at_once():
    with pytest.raises(InvalidInputError) as caught:
        RuntimeSettings(
            data_dir="data",
            modules_path="modules",
            isolation={"module:x": "jail", "nobody": "process"},
            call_timeout=0,
        )
    pointers = {problem.pointer for problem in caught.value.problems}
    assert pointers == {"/data_dir", "/modules_path", "/isolation/module:x", "/isolation/nobody", "/call_timeout"}


def test_modules_run_in_process_unless_the_host_says_otherwise(modules):
    chosen = settings(modules, isolation={"module:sound": "process"})
    sound = found(modules)["sound"].subject
    assert chosen.isolation_of(sound) is Isolation.PROCESS
    assert settings(modules).isolation_of(sound) is Isolation.IN_PROCESS
