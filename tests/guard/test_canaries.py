"""An unsupported interpreter is refused at import, with a message, and the guard is not active."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.services.golden import sentence

RESTORE = """
import ctypes, importlib.util, os, posix, sys, sysconfig
import democrai_sandbox

class Definition(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("method", ctypes.c_void_p), ("flags", ctypes.c_int)]

class Function(ctypes.Structure):
    _fields_ = [("refs", ctypes.c_ssize_t), ("type", ctypes.c_void_p), ("definition", ctypes.POINTER(Definition))]

definition = Function.from_address(id(posix.{name})).definition.contents
assert definition.name == b"{name}"
before = definition.method
# The core by itself, without the package around it that would go on to arm and try it.
name = "_core" + sysconfig.get_config_var("EXT_SUFFIX")
path = os.path.join(os.path.dirname(democrai_sandbox.__file__), "guard", name)
spec = importlib.util.spec_from_file_location("democrai_sandbox.guard._core", path)
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
assert definition.method != before, "not patched at all"
definition.method = before
import democrai_sandbox.guard
"""

REPLACED = """
import posix
posix.{name} = lambda path: None
import democrai_sandbox.guard
"""


def refusal(source):
    """Return how the import ends in a separate process."""
    ended = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    return ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["mkdir", "stat", "execv"])
def test_a_patch_that_does_not_hold_is_noticed(name):
    """If a builtin still runs its old code after patching, the import fails and names it."""
    message = refusal(RESTORE.format(name=name))
    sentence(f"{name} is not patched", message)
    assert f"posix.{name}" in message


def test_a_function_that_is_no_builtin_is_refused():
    """A function that replaced a builtin cannot be patched and is not skipped."""
    message = refusal(REPLACED.format(name="mkfifo"))
    assert message.startswith("ImportError: ") and "posix.mkfifo" in message
    sentence("mkfifo is replaced", message)
