"""Registry: each folder is read separately; a broken extension never stops the others."""

from __future__ import annotations

import json
import os
import resource

import pytest

from democrai_sandbox.errors import ExtensionBroken, ExtensionUnknown, InvalidInputError
from democrai_sandbox.manifests import ManifestKind
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.extensions.registry import discover
from democrai_sandbox.runtime.extensions.settings import RuntimeSettings, default_worker_limits
from tests.services.golden import sentence
from tests.services.rows import rows


@pytest.fixture
def modules(tmp_path):
    """Make a folder of modules with one sound module."""
    return with_sound(tmp_path / "modules")


def with_sound(folder):
    folder.mkdir(parents=True)
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
    "not json": '{"name": ',
    "another type": "[]",
    "unknown key": '{"name": "odd", "acess": []}',
    "not utf-8": b'{"name": "\xff"}',
    "a key twice": '{"name": "odd", "name": "odd"}',
    "ten megabytes": '{"name": "odd", "description": "' + "x" * 10_000_000 + '"}',
    "very deep": '{"name": "odd", "access": ' + "[" * 5000 + "]" * 5000 + "}",
    "empty": "",
}


@rows("name", BROKEN)
def test_a_broken_manifest_is_listed_with_its_errors_and_the_others_are_found(tmp_path, name):
    """Each has its own problems, and the sound one stays sound."""
    modules = with_sound(tmp_path / name / "modules")
    write(modules / "odd", BROKEN[name])
    registry = found(modules)
    assert registry["odd"].is_broken
    sentence(f"broken manifest: {name}", "\n".join(map(str, registry["odd"].problems)), folder=tmp_path)
    assert not registry["sound"].is_broken


def test_a_folder_whose_name_no_subject_can_have_is_listed_all_the_same(modules):
    """A listing reads the subject of each extension, also of broken ones: no folder name breaks it."""
    names = [b"od\x1b[2Jd", b"od\xffd", "od\u202ed".encode(), b"o d ", b"a" * 255]
    for name in names:
        write(modules / os.fsdecode(name), "{")
    odd = [str(each.subject) for each in found(modules).values() if each.is_broken]
    assert len(odd) == len(names)
    assert all(subject.startswith("module:") and subject.isprintable() for subject in odd)


def test_a_folder_without_a_readable_manifest_is_listed_as_broken(modules):
    """A missing file and a pipe, which does not block the registry, have different problems."""
    (modules / "empty").mkdir()
    (modules / "pipe").mkdir()
    os.mkfifo(modules / "pipe" / "manifest.json")
    registry = found(modules)
    assert "manifest.json" in str(registry["empty"].problems[0])
    sentence("no manifest", str(registry["empty"].problems[0]))
    sentence("manifest that is a pipe", str(registry["pipe"].problems[0]))


def test_of_two_extensions_with_one_name_neither_runs(modules):
    """Both folders are named."""
    write(modules / "first", '{"name": "twin"}')
    write(modules / "second", '{"name": "twin"}')
    twin = found(modules)["twin"]
    assert "first" in str(twin.problems[0])
    assert "second" in str(twin.problems[0])
    with pytest.raises(ExtensionBroken):
        twin.require_sound()


def test_two_folders_with_one_name_across_directories_are_seen(modules, tmp_path):
    """The same name in another directory breaks both."""
    extra = tmp_path / "extra"
    extra.mkdir()
    write(extra / "sound", '{"name": "sound"}')
    assert found(modules, extra_module_dirs=(str(extra),))["sound"].is_broken


def test_an_entry_that_is_missing_or_leads_out_is_found_before_anything_runs(modules, tmp_path):
    """Both are problems of the entry, with different texts."""
    write(modules / "missing", '{"name": "missing"}', entry=None)
    write(modules / "linked", '{"name": "linked"}', entry=None)
    (tmp_path / "other.py").write_text("")
    (modules / "linked" / "module.py").symlink_to(tmp_path / "other.py")
    registry = found(modules)
    for name in ("missing", "linked"):
        (problem,) = registry[name].problems
        assert problem.pointer == "/entry"
        assert "module.py" in problem.message
        sentence(f"{name} entry", problem.message)


def test_a_manifest_that_leads_out_is_not_read(modules, tmp_path):
    """It could be a link to a file that only the host may read, and its problems would reveal the content."""
    (tmp_path / "token").write_text("dsb_secret")
    (modules / "odd").mkdir()
    (modules / "odd" / "manifest.json").symlink_to(tmp_path / "token")
    (problem,) = found(modules)["odd"].problems
    sentence("linked manifest", problem.message)
    assert "secret" not in str(problem)


def test_a_folder_that_is_a_link_is_read(modules, tmp_path):
    """The folder of an extension may be elsewhere."""
    write(tmp_path / "elsewhere", '{"name": "linked"}')
    (modules / "linked").symlink_to(tmp_path / "elsewhere")
    assert not found(modules)["linked"].is_broken


def test_a_folder_that_cannot_be_read_is_told_and_does_not_hide_the_others(modules, tmp_path):
    """It is listed under its own name, with its location in the settings."""
    registry = found(modules, extra_module_dirs=(str(tmp_path / "nowhere"),))
    (problem,) = registry["nowhere"].problems
    assert problem.pointer == "/modules_path"
    assert str(tmp_path / "nowhere") in problem.message
    assert not registry["sound"].is_broken


def test_files_and_hidden_folders_are_left_alone(modules):
    """Only folders with a visible name count."""
    (modules / "README").write_text("")
    (modules / ".git").mkdir()
    assert set(found(modules)) == {"sound"}


def test_an_unknown_name_is_an_error_that_names_the_nearest(modules):
    """The text suggests the most similar name."""
    registry = discover(settings(modules))
    with pytest.raises(ExtensionUnknown, match="'sound'"):
        registry.get(ManifestKind.MODULE, "sond")


def test_engines_and_extractors_are_found_in_their_own_folders(tmp_path):
    """Each kind has its own folder and subject."""
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
    """Every invalid value has its pointer."""
    with pytest.raises(InvalidInputError) as caught:
        RuntimeSettings(
            data_dir="data",
            modules_path="modules",
            isolation={"module:x": "jail", "nobody": "process"},
            call_timeout=0,
        )
    pointers = {problem.pointer for problem in caught.value.problems}
    assert pointers == {"/data_dir", "/modules_path", "/isolation/module:x", "/isolation/nobody", "/call_timeout"}


@pytest.mark.parametrize(
    ("isolation", "expected"),
    [
        ({}, [True, False]),
        ({"default": "auto"}, [True, False]),
        ({"default": "in_process"}, [False, False]),
        ({"module:sound": "in_process"}, [False, False]),
        ({"default": "in_process", "module:sound": "process"}, [True, False]),
        ({"default": "in_process", "tool:sound.one": "process"}, [False, True]),
    ],
)
def test_a_module_has_its_own_process_unless_the_host_trusts_it(modules, isolation, expected):
    """The settings choose by default and by subject; a tool runs with its module unless it has an entry."""
    chosen = settings(modules, isolation=isolation)
    subjects = [found(modules)["sound"].subject, Subject(SubjectKind.TOOL, "sound.one")]
    assert [chosen.is_isolated(subject) for subject in subjects] == expected


@pytest.mark.parametrize("isolation", [{"default": "proces"}, {"default": True}, {"defaults": "auto"}])
def test_an_invalid_default_isolation_is_refused(modules, isolation):
    """It names the key and the possible values."""
    with pytest.raises(InvalidInputError) as caught:
        settings(modules, isolation=isolation)
    assert [problem.pointer for problem in caught.value.problems] == [f"/isolation/{name}" for name in isolation]


@rows(
    ("user", "own", "most"),
    [(0, 100, 4096), (1000, -1, 4096), (1000, 100_000, 4096), (1000, 1000, 500), (1000, 1, 1)],
)
def test_the_default_limit_of_processes_leaves_room_for_the_host(monkeypatch, user, own, most):
    """At most half of the user's own limit; a limit of root counts for each worker alone."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (own, own))
    assert default_worker_limits().processes == most
