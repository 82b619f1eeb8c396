"""New code for functions of the standard library, and tests of all patches at import (canaries).

Replaced are ``os.path`` functions that suppress errors, and ``Handle.__init__``. Only the code of a function is
replaced, so that references taken earlier (by pathlib, shutil) behave the same. This module does not import asyncio:
the core installs the code of ``Handle.__init__`` when the application imports it.
"""

from __future__ import annotations

import _io
import contextvars
import os
import posix
import stat
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from genericpath import exists as _exists
from os.path import join, realpath
from types import FunctionType
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from types import CodeType

# The module that receives the code provides these names. The check is in the ``except`` branch and does not slow down
# the usual case.


def exists(path: Any) -> bool:
    """Test whether a path exists. Returns False for broken symbolic links."""
    try:
        os.stat(path)
    except (OSError, ValueError) as error:
        if getattr(error, "layer", None) is not None:
            raise
        return False
    return True


def lexists(path: Any) -> bool:
    """Test whether a path exists. Returns True for broken symbolic links."""
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:
        if getattr(error, "layer", None) is not None:
            raise
        return False
    return True


def isfile(path: Any) -> bool:
    """Test whether a path is a regular file."""
    try:
        st = os.stat(path)
    except (OSError, ValueError) as error:
        if getattr(error, "layer", None) is not None:
            raise
        return False
    return stat.S_ISREG(st.st_mode)


def isdir(s: Any) -> bool:
    """Return true if the pathname refers to an existing directory."""
    try:
        st = os.stat(s)
    except (OSError, ValueError) as error:
        if getattr(error, "layer", None) is not None:
            raise
        return False
    return stat.S_ISDIR(st.st_mode)


def islink(path: Any) -> bool:
    """Test whether a path is a symbolic link."""
    try:
        st = os.lstat(path)
    except (OSError, ValueError, AttributeError) as error:
        if getattr(error, "layer", None) is not None:
            raise
        return False
    return stat.S_ISLNK(st.st_mode)


def ismount(path: Any) -> bool:
    """Test whether a path is a mount point."""
    try:
        here = os.lstat(path)
    except (OSError, ValueError) as error:
        if getattr(error, "layer", None) is not None:
            raise
        return False
    if stat.S_ISLNK(here.st_mode):
        return False
    path = os.fspath(path)
    try:
        above = os.lstat(realpath(join(path, b".." if isinstance(path, bytes) else "..")))
    except OSError:
        return False
    return here.st_dev != above.st_dev or here.st_ino == above.st_ino


def install() -> None:
    """Replace the code of the ``os.path`` functions; called once, before the first guard."""
    assert isinstance(_exists, FunctionType)  # noqa: S101 - a C implementation would make this module pointless
    for ours in (exists, lexists, isfile, isdir, islink, ismount):
        theirs = getattr(os.path, ours.__name__)
        if not isinstance(theirs, FunctionType) or theirs.__code__.co_argcount != ours.__code__.co_argcount:
            raise ImportError(f"os.path.{ours.__name__} has an unknown form; this interpreter is not supported")
        old = theirs.__code__
        theirs.__code__ = ours.__code__.replace(
            co_filename=old.co_filename, co_firstlineno=old.co_firstlineno, co_qualname=old.co_qualname
        )


def renew_capabilities() -> None:
    """Rebuild the ``os.supports_...`` sets; called once, after the core has been loaded.

    A builtin function is hashed by its function pointer, which the core has replaced. Otherwise ``os.stat`` would be
    missing in ``os.supports_follow_symlinks``, and ``shutil.copy2`` of a link would fail for all code.
    """
    for found in (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks):
        members = list(found)
        found.clear()
        found.update(members)


def facade_files() -> frozenset[str]:
    """Return the files that act on behalf of their caller, so that the frame behind them counts as the caller."""
    import glob
    import importlib
    import pathlib  # noqa: F401 - its files are found below
    import shutil

    names = {function.__code__.co_filename for function in (os.walk, os.path.join, os.path.exists)}
    names |= {f"<frozen {name}>" for name in ("os", "posixpath", "genericpath", "importlib._bootstrap")}
    names.add("<frozen importlib._bootstrap_external>")
    names |= {module.__file__ for module in (glob, importlib, shutil) if module.__file__}
    names.add(os.path.join(os.path.dirname(shutil.__file__), "signal.py"))
    # A package since 3.13.
    parts = (module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "pathlib")
    names |= {module.__file__ for module in parts if module.__file__}
    return frozenset(names)


_PLACE = "the core's bind_foreign"

# A loop runs a callback in the context of its handle. Guarded code could pass a context of the host, which has no
# guard, so the core binds the callback to the guard it came from. The called function is a constant of the code, not a
# name that guarded code could replace.
#
# Compiled from text, so that the names are resolved in asyncio.events, where the code will run.
_SOURCE = """
def __init__(self, callback, args, loop, context=None):
    if context is None:
        context = contextvars.copy_context()
    else:
        callback = BIND(callback, context)
    self._context = context
    self._loop = loop
    self._callback = callback
    self._args = args
    self._cancelled = False
    self._repr = None
    self._source_traceback = format_helpers.extract_stack(sys._getframe(1)) if loop.get_debug() else None
"""


def handle_code() -> CodeType:
    """Return the replacement for the code of ``Handle.__init__``."""
    scope: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # a text is not callable; it is replaced by a function below
        compiled = compile(_SOURCE.replace("BIND", repr(_PLACE)), "<asyncio.events>", "exec")
    exec(compiled, scope)  # noqa: S102 - our own text, above
    code: CodeType = scope["__init__"].__code__
    return code.replace(co_consts=tuple(_core.bind_foreign if const == _PLACE else const for const in code.co_consts))


# ---- canaries: on an unsupported interpreter the import fails
#
# Each canary is a call that would be harmless if it succeeded: the path does not exist, the signal number is 0.
# References to builtins are taken before the guard, as a subject could have taken them.

_NOWHERE = "/democrai-sandbox-canary/nothing/here"

Canary = tuple[str, Callable[[], object]]


def check(policy: _core.Policy) -> None:
    """Run every canary under a policy that allows nothing; raise ``ImportError`` if one succeeds."""
    passed = [name for name, call in _canaries() if not _core.try_guard(policy, call)]
    if passed:
        raise ImportError(
            f"the guard does not work on this interpreter: {', '.join(passed)} succeeded. "
            "Install a build of democrai-sandbox for this interpreter; the guard is not active."
        )


def _canaries() -> Iterator[Canary]:
    yield from _path_calls()
    yield from _process_calls()
    yield "open", partial(open, _NOWHERE)
    yield "_io.FileIO", partial(_io.FileIO, _NOWHERE)
    yield "_io.open_code", partial(_io.open_code, _NOWHERE)
    yield "Context().run", lambda: contextvars.Context().run(posix.stat, _NOWHERE)
    yield "os.path.exists", partial(os.path.exists, _NOWHERE)
    if (ctypes := sys.modules.get("ctypes")) is not None:
        yield "ctypes", ctypes.c_int


def _path_calls() -> Iterator[Canary]:
    for name in ("stat", "lstat", "readlink", "listdir", "scandir", "chdir", "statvfs", "mkdir", "mkfifo", "mknod"):
        yield f"posix.{name}", partial(getattr(posix, name), _NOWHERE)
    for name in ("unlink", "remove", "rmdir", "utime", "listxattr"):
        yield f"posix.{name}", partial(getattr(posix, name), _NOWHERE)
    for name in ("rename", "replace", "link", "symlink"):
        yield f"posix.{name}", partial(getattr(posix, name), _NOWHERE, _NOWHERE + "2")
    yield "posix.open", partial(posix.open, _NOWHERE, os.O_RDONLY)
    yield "posix.access", partial(posix.access, _NOWHERE, os.F_OK)
    yield "posix.chmod", partial(posix.chmod, _NOWHERE, 0)
    yield "posix.chown", partial(posix.chown, _NOWHERE, 0, 0)
    yield "posix.truncate", partial(posix.truncate, _NOWHERE, 0)


def _process_calls() -> Iterator[Canary]:
    yield "posix.system", partial(posix.system, "")
    yield "posix.execv", partial(posix.execv, _NOWHERE, ["x"])
    yield "posix.execve", partial(posix.execve, _NOWHERE, ["x"], {})
    yield "posix.posix_spawn", partial(posix.posix_spawn, _NOWHERE, ["x"], {})
    yield "posix.kill", partial(posix.kill, os.getpid(), 0)
