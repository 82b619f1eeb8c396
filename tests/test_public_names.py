"""Public names stay importable: those of the packages, and those that pages and examples use."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import pytest

from democrai_sandbox import _moved

pytestmark = pytest.mark.once

NAMES = tuple(tuple(line.split()) for line in Path(__file__).with_name("public_names.txt").read_text().splitlines())
OLD_NAMES = (("access", "Limits", "PendingLimits"), ("access.values", "Page", "PageRequest"))


def missing(module, name):
    try:
        found = import_module(module)
    except ModuleNotFoundError:
        return True
    if hasattr(found, name):
        return False
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return True
    return False


def test_recorded_names_are_importable():
    """Every recorded name, at the recorded path, also where the path is deprecated."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        assert [f"{module} {name}" for module, name in NAMES if missing(module, name)] == []


@pytest.mark.parametrize(("old", "new"), _moved.MODULES.items())
def test_a_moved_module_names_its_new_path(old, new):
    """One line on standard error, with the new path and the version that removes the old one."""
    result = subprocess.run([sys.executable, "-c", f"import {old}"], capture_output=True, text=True, check=True)
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert new in result.stderr
    assert _moved.REMOVAL in result.stderr


def test_a_moved_module_is_the_same(monkeypatch):
    """Classes of both paths are identical."""
    monkeypatch.delitem(sys.modules, "democrai_sandbox.runtime.surroundings", raising=False)
    with pytest.warns(FutureWarning, match="access_environment"):
        old = import_module("democrai_sandbox.runtime.surroundings")
    assert old.GuardSurroundings is import_module("democrai_sandbox.runtime.access_environment").GuardSurroundings


@pytest.mark.parametrize(("module", "old", "new"), OLD_NAMES)
def test_a_renamed_class_names_its_successor(module, old, new):
    """The old name is the new class, with a warning."""
    found = import_module(f"democrai_sandbox.{module}")
    with pytest.warns(FutureWarning, match=new):
        assert getattr(found, old) is getattr(found, new)


def test_unknown_modules_and_names_are_still_errors():
    """The usual errors of the import system."""
    with pytest.raises(ModuleNotFoundError):
        import_module("democrai_sandbox.access.nothing")
    with pytest.raises(AttributeError):
        _ = import_module("democrai_sandbox.access.values").Nothing
