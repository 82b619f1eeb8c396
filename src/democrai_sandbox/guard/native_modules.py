"""Native modules of the interpreter that guarded code may load; others do not load there.

Not listed:

- modules for tests and debugging (``_test*``, ``xx*``, ``_xxtestfuzz``, ``_ctypes_test``): they call parts of the
  interpreter that the guard does not check, such as the variables of other frames and allocation failures;
- interpreters (``_interpreters``, ``_xxsubinterpreters`` and their channels): code in another interpreter has no guard;
- ``nis`` and ``ossaudiodev``: they access the network and devices directly.
"""

from __future__ import annotations

import os
import sys

_EVERYWHERE = frozenset(
    (
        *("_abc", "_ast", "_asyncio", "_bisect", "_blake2", "_bz2", "_codecs", "_codecs_cn", "_codecs_hk"),
        *("_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw", "_collections", "_contextvars", "_csv"),
        *("_ctypes", "_curses", "_curses_panel", "_datetime", "_dbm", "_decimal", "_elementtree", "_functools"),
        *("_gdbm", "_hashlib", "_heapq", "_imp", "_io", "_json", "_locale", "_lsprof", "_lzma", "_md5"),
        *("_multibytecodec", "_multiprocessing", "_opcode", "_operator", "_pickle", "_posixshmem"),
        *("_posixsubprocess", "_queue", "_random", "_sha1", "_sha3", "_signal", "_socket", "_sqlite3", "_sre"),
        *("_ssl", "_stat", "_statistics", "_string", "_struct", "_symtable", "_thread", "_tkinter"),
        *("_tokenize", "_tracemalloc", "_typing", "_uuid", "_warnings", "_weakref", "_zoneinfo", "array"),
        *("atexit", "binascii", "builtins", "cmath", "errno", "faulthandler", "fcntl", "gc", "grp"),
        *("itertools", "marshal", "math", "mmap", "posix", "pwd", "pyexpat", "readline", "resource", "select"),
        *("sys", "syslog", "termios", "time", "unicodedata", "zlib"),
    )
)

ALLOWED = {
    (3, 11): _EVERYWHERE | {"_crypt", "_sha256", "_sha512", "audioop", "spwd"},
    (3, 12): _EVERYWHERE | {"_crypt", "_sha2", "audioop", "spwd"},
    (3, 13): _EVERYWHERE | {"_sha2", "_suggestions", "_sysconfig"},
}


def native_folder() -> str:
    """Return the folder of the native modules that are not built into the interpreter."""
    name = "python{}.{}".format(*sys.version_info)
    return os.path.realpath(os.path.join(sys.base_exec_prefix, sys.platlibdir, name, "lib-dynload"))


def native_names() -> frozenset[str]:
    """Return the names of all native modules of the interpreter."""
    try:
        files = os.listdir(native_folder())
    except FileNotFoundError:  # all are built in
        files = []
    return frozenset(sys.builtin_module_names) | {file.partition(".")[0] for file in files}


def allowed_modules() -> frozenset[str]:
    """Return the names of the native modules that guarded code may load in this version."""
    return ALLOWED[sys.version_info[:2]]
