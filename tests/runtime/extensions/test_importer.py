"""Failed imports of packages: the error names the package, the denied access, and the fix, here and in a worker."""

from __future__ import annotations

import importlib.machinery
import json
from pathlib import Path

import pytest
from markupsafe import _speedups

from democrai_sandbox.errors import ExtensionFailed, FilesystemDenied, ModuleDenied
from democrai_sandbox.sdk import testing
from tests.services.environments import Environment
from tests.services.golden import sentence

SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]
NATIVE = Path(_speedups.__file__)
IMPORTS_NATIVE = "from . import _native\n"
FAILING = ("raises", "needs_raises", "truncated", "other_abi", "no_entry", "wraps_denial")


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Make an environment with one package for each kind of failure."""
    made = Environment(tmp_path_factory.mktemp("broken") / "env")
    made.package("raises", "raise RuntimeError('installed by half')\n")
    made.package("needs_raises", "import raises\n")
    made.package("opens", "open('/etc/passwd')\n")
    made.package("calls_ctypes", "import ctypes\nctypes.CDLL(None)\n")
    made.package(
        "wraps_denial", "try:\n    open('/etc/passwd')\nexcept OSError:\n    raise ImportError('no settings')\n"
    )
    whole = NATIVE.read_bytes()
    (made.package("truncated", IMPORTS_NATIVE) / f"_native{SUFFIX}").write_bytes(whole[:1000])
    (made.package("other_abi", IMPORTS_NATIVE) / "_native.cpython-39-x86_64-linux-gnu.so").write_bytes(whole)
    (made.package("no_entry", IMPORTS_NATIVE) / f"_native{SUFFIX}").write_bytes(whole)
    made.package("sound", "VALUE = 1\n")
    return made


def loaded_in_a_worker(environment, folder, package):
    """Load a module that imports a package, in a worker; return the outcome."""
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"name": "demo"}))
    (folder / "module.py").write_text(f"import {package}\n")
    with testing.module(str(folder), environment=str(environment.folder)) as module:
        return module.surfaces


IN_PROCESS = """
import json, os, sys
from democrai_sandbox import process_guard_context
from democrai_sandbox.runtime.extensions import importer
from democrai_sandbox.runtime.extensions.importer import capture_import
from democrai_sandbox.runtime.calls.outcome import release

folder = sys.argv[1]
importer.preload()
guard = process_guard_context(subject="demo", allowed_paths=[folder])
found = {}
for package in (*sys.argv[2:], "sound"):
    with open(folder + "/module.py", "w") as file:
        file.write("import " + package)
    name = importer.prepare("module", package, folder)
    try:
        release(guard.run(capture_import, importer.import_entry, name, "module.py", folder))
        found[package] = "imported"
    except Exception as error:
        found[package] = [type(error).__name__, getattr(error, "package", ""), getattr(error, "advice", "")]
found["sound for the host"] = __import__("sound").VALUE
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def in_process(environment, tmp_path_factory):
    """Return the outcome of importing each of them, one after the other in one process."""
    folder = tmp_path_factory.mktemp("module")
    return environment.answers(IN_PROCESS, folder, *FAILING, "missing", "opens", "calls_ctypes")


PLACE = '"access" in manifest.json of module demo'
"""Location of a module's declarations; the guard in this process is a bare one."""


@pytest.mark.parametrize("package", [*FAILING, "missing"])
def test_a_failure_names_the_package(in_process, environment, package, tmp_path):
    """The advice is the same in this process and in a worker."""
    with pytest.raises(ExtensionFailed) as caught:
        loaded_in_a_worker(environment, tmp_path / "module", package)
    kind, _, advice = in_process[package]
    advice = advice.replace("access=[...] of process_guard_context(subject='demo', ...)", PLACE)
    assert kind == "ExtensionFailed"
    assert caught.value.advice == advice
    assert f"'{'raises' if package == 'needs_raises' else package}'" in advice
    sentence(package, advice.replace(SUFFIX, ".so"), folder=environment.folder, also=[(r"python3\.\d+", "python3")])


def test_a_denial_names_the_package_and_the_entry(in_process, environment, tmp_path):
    """A package opens an undeclared file during its import."""
    with pytest.raises(FilesystemDenied) as caught:
        loaded_in_a_worker(environment, tmp_path / "module", "opens")
    assert in_process["opens"][:2] == ["FilesystemDenied", "opens"]
    assert (caught.value.package, caught.value.target, caught.value.operation) == ("opens", "/etc/passwd", "read")
    sentence("a denial", caught.value.diagnostics())


def test_a_sensitive_import_names_the_package(in_process, environment, tmp_path):
    """A package that is not trusted calls native code through ctypes during its import."""
    with pytest.raises(ModuleDenied) as caught:
        loaded_in_a_worker(environment, tmp_path / "module", "calls_ctypes")
    assert in_process["calls_ctypes"][:2] == ["ModuleDenied", "calls_ctypes"]
    assert caught.value.package == "calls_ctypes"


def test_nothing_is_left_behind(in_process):
    """After all these failures, guarded code and the host can import as before."""
    assert (in_process["sound"], in_process["sound for the host"]) == ("imported", 1)


def test_the_traceback_begins_with_the_extension(environment, tmp_path):
    """Frames of the runtime are not shown."""
    with pytest.raises(ExtensionFailed) as caught:
        loaded_in_a_worker(environment, tmp_path / "module", "raises")
    files = [line.split('"')[1] for line in caught.value.traceback.splitlines() if line.startswith("  File ")]
    assert [Path(file).name for file in files] == ["module.py", "__init__.py"]
