"""Code of the host inside a folder that a subject may write: it cannot be changed, and native modules load from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from markupsafe import _speedups

from tests.services.environments import Environment

PROGRAM = """
import json, os, sys, tempfile
from democrai_sandbox import configure_guard, process_guard_context
from democrai_sandbox.guard.runtime_paths import read_only_paths

granted, packages, link = sys.argv[1:]

class Yes:
    def decide(self, question):
        return True

if link == "approve":
    configure_guard(decider=Yes())

def told(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return [type(error).__name__, getattr(error, "is_host_code", None)]
    return "done"

def put(path):
    with open(path, "a"):
        pass

def attempts():
    found = {
        "new module": told(put, packages + "/new.py"),
        "other module": told(put, packages + "/plain.py"),
        "start file": told(put, packages + "/new.pth"),
        "settings": told(put, sys.prefix + "/pyvenv.cfg"),
        "program": told(put, sys.prefix + "/bin/new"),
        "interpreter": told(os.unlink, sys.prefix + "/bin/python"),
        "move away": told(os.rename, sys.prefix, sys.prefix + "-moved"),
        "move the folder around it": told(os.rename, os.path.dirname(sys.prefix), granted + "/moved"),
        "remove": told(os.unlink, packages + "/plain.py"),
        "second name": told(os.link, packages + "/plain.py", granted + "/second.py"),
        "mode": told(os.chmod, packages + "/plain.py", 0o777),
        "beside": told(put, granted + "/beside"),
        "in the folder around it": told(put, os.path.dirname(sys.prefix) + "/beside"),
        "native module": told(__import__, "native_part._speedups"),
        "source module": told(__import__, "plain"),
    }
    if link not in ("", "approve"):
        found["link"] = told(os.unlink, link)
    return found

grants = {"allowed_paths": [granted]} if link != "approve" else {"access": [], "include_runtime_paths": True}
print(json.dumps(process_guard_context(subject="demo", **grants).run(attempts)))
"""
REFUSED = ["FilesystemDenied", True]
CHANGES = (
    *("new module", "other module", "start file", "settings", "program", "interpreter", "move away"),
    *("move the folder around it", "remove", "mode"),
)


def environment(folder):
    made = Environment(folder)
    (made.packages / "plain.py").write_text("")
    native = made.package("native_part")
    shutil.copy(_speedups.__file__, native / Path(_speedups.__file__).name)
    return made


@pytest.fixture(scope="module")
def granted(tmp_path_factory):
    """Environment two folders below a declared one, with spaces in its path."""
    folder = tmp_path_factory.mktemp("granted") / "my work"
    made = environment(folder / "inner" / "the env")
    return made.answers(PROGRAM, folder, made.packages, "", TMPDIR=str(_temp(tmp_path_factory)))


@pytest.fixture(scope="module")
def below_temp(tmp_path_factory):
    """Environment in the temp folder, which every subject may write."""
    folder = tmp_path_factory.mktemp("temp") / "inner"
    made = environment(folder / "env")
    return made.answers(PROGRAM, folder.parent, made.packages, "", TMPDIR=str(folder.parent))


def _temp(factory):
    return factory.mktemp("elsewhere")


@pytest.mark.parametrize("change", CHANGES)
def test_it_cannot_be_changed_in_a_granted_folder(granted, change):
    """No file of the environment can be created, changed, moved or deleted, and its ancestors cannot be moved."""
    assert granted[change] == REFUSED


@pytest.mark.parametrize("change", CHANGES)
def test_it_cannot_be_changed_in_the_temp_folder(below_temp, change):
    """The same applies to the folder that every subject may write."""
    assert below_temp[change] == REFUSED


def test_a_second_name_gives_no_way_to_write_it(granted):
    """A hard link in a writable folder would be the same file."""
    assert granted["second name"][0] == "FilesystemDenied"


@pytest.mark.parametrize("act", ["beside", "in the folder around it", "native module", "source module"])
def test_all_else_works(granted, below_temp, act):
    """Files next to the environment can be written, and its modules can be imported, including native ones."""
    assert (granted[act], below_temp[act]) == ("done", "done")


def test_nobody_can_approve_a_change(tmp_path):
    """A decider that approves everything opens the files next to the environment, but not the environment."""
    made = environment(tmp_path / "inner" / "env")
    found = made.answers(PROGRAM, tmp_path, made.packages, "approve", TMPDIR=str(tmp_path / "inner"))
    assert {change: found[change] for change in CHANGES} == dict.fromkeys(CHANGES, REFUSED)
    assert found["beside"] == "done"


def test_a_link_on_the_way_to_it_stays(tmp_path):
    """The host finds its code through a link: another link in its place would be other code."""
    made = environment(tmp_path / "real" / "env")
    granted = tmp_path / "granted"
    granted.mkdir()
    (granted / "link").symlink_to(tmp_path / "real")
    seen = Environment.__new__(Environment)
    seen.folder, seen.packages = granted / "link" / "env", made.packages
    found = seen.answers(PROGRAM, granted, made.packages, granted / "link")
    assert found["link"] == REFUSED


NARROW = """
import json, sys
from democrai_sandbox import process_guard_context

folder = sys.argv[1]
guard = process_guard_context(subject="demo", allowed_paths=[folder])
print(json.dumps(guard.run(lambda: open(folder + "/kept", "w").write("x"))))
"""


def test_a_rule_for_a_place_inside_it_counts(tmp_path):
    """A package folder that is declared by its own path can be written."""
    made = Environment(tmp_path / "env")
    assert made.answers(NARROW, made.package("caching")) == 1
