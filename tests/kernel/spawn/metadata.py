"""Calls that change metadata, made directly. Its text starts the programs of test_metadata, in a confined child.

``change(how, way)`` makes one call; ``told`` returns the name of its error, or ``done``. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

ARM = os.uname().machine == "aarch64"
AT_FDCWD, NOFOLLOW, EMPTY = -100, 0x100, 0x1000
MODE, TIME = 0o604, 1000
NEITHER = 3
_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def call(number, *args):
    """Make a system call by its number; the arguments are numbers, bytes or buffers."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in args]
    result = _libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


NUMBERS = {
    **{"fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "fchown": (93, 55), "fchownat": (260, 54)},
    **{"utimensat": (280, 88), "chmod": (90, None), "chown": (92, None), "lchown": (94, None), "utime": (132, None)},
    **{"utimes": (235, None), "futimesat": (261, None)},
}
NUMBER = {name: pair[ARM] for name, pair in NUMBERS.items() if pair[ARM] is not None}
PRECISE = struct.pack("=4q", TIME, 0, TIME, 0)
"""Two times with a fraction, in any unit."""
COARSE = struct.pack("=2q", TIME, TIME)


def by_path(name, path):
    """Change a path, which may be relative."""
    calls = {
        "chmod": (path, MODE),
        "chown": (path, os.getuid(), os.getgid()),
        "lchown": (path, os.getuid(), os.getgid()),
        "utime": (path, COARSE),
        "utimes": (path, PRECISE),
    }
    return call(NUMBER[name], *calls[name])


def by_folder(name, folder, path, flags=0):
    """Change a path below an open folder, or with an empty path the folder itself."""
    calls = {
        "fchmodat": (folder, path, MODE),
        "fchmodat2": (folder, path, MODE, flags),
        "fchownat": (folder, path, os.getuid(), os.getgid(), flags),
        "utimensat": (folder, path, PRECISE, flags),
        "futimesat": (folder, path, PRECISE),
    }
    return call(NUMBER[name], *calls[name])


def by_number(name, number):
    """Change an open file."""
    calls = {
        "fchmod": (number, MODE),
        "fchown": (number, os.getuid(), os.getgid()),
        "utimensat": (number, None, PRECISE, 0),
        "futimesat": (number, None, PRECISE),
    }
    return call(NUMBER[name], *calls[name])


PATHS = tuple(name for name in ("chmod", "chown", "lchown", "utime", "utimes") if name in NUMBER)
FOLDERS = tuple(name for name in ("fchmodat", "fchmodat2", "fchownat", "utimensat", "futimesat") if name in NUMBER)
FLAGGED = ("fchmodat2", "fchownat", "utimensat")
NUMBERED = tuple(name for name in ("fchmod", "fchown", "utimensat", "futimesat") if name in NUMBER)


def told(act, *args):
    """Run it; return the name of its error, or ``done``."""
    try:
        act(*args)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error.errno))
    return "done"


def every_way(path):
    """Change a file by every call and every kind of argument; yield a description and the outcome."""
    folder, name = os.path.split(path)
    place, text = os.open(folder, os.O_PATH), os.fsencode(path)
    os.chdir(folder)
    for form in (text, os.fsencode(name), b"./" + os.fsencode(name)):
        for one in PATHS:
            yield f"{one} {form}", told(by_path, one, form)
        for one in FOLDERS:
            yield f"{one} {form}", told(by_folder, one, AT_FDCWD, form)
    for one in FOLDERS:
        yield f"{one} in folder", told(by_folder, one, place, os.fsencode(name))
    for mode in (os.O_PATH, NEITHER, os.O_RDONLY, os.O_WRONLY):
        try:
            number = os.open(path, mode)
        except OSError:
            continue
        if mode != os.O_PATH:
            for one in NUMBERED:
                yield f"{one} {mode}", told(by_number, one, number)
        for one in FLAGGED:
            yield f"{one} {mode} empty", told(by_folder, one, number, b"", EMPTY)
        yield f"chmod {mode} by name", told(os.chmod, f"/proc/self/fd/{number}", MODE)
        os.close(number)


def show(outcomes):
    """Print the outcomes that differ from the one expected in the first argument."""
    print({what: found for what, found in outcomes if found != sys.argv[1]})
