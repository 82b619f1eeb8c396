"""Canaries: tests of the patches at import. On an unsupported interpreter the import fails.

Each canary is a call that would be harmless if it succeeded: the path does not exist, the signal number is 0.
References to builtins are taken before the guard, as a subject could have taken them.
"""

from __future__ import annotations

import _io
import contextvars
import os
import posix
import sys
from collections.abc import Callable, Iterator
from functools import partial

from . import _core
from .configuration import bare_policy

_NOWHERE = "/democrai-sandbox-canary/nothing/here"

Canary = tuple[str, Callable[[], object]]


def check() -> None:
    """Run every canary under a guard that allows nothing; raise ``ImportError`` if one succeeds."""
    policy = bare_policy("canary", ())
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
