"""Runtime paths: files that every subject may use without declaring them: interpreter, libraries, system, temp."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import tempfile
from functools import cache
from typing import TYPE_CHECKING

from democrai_sandbox.policy import FileAccess, is_at_or_below, normalise_path

from . import _core

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CODE = 32
"""Read-only code root: native modules load only from these, and their code counts as library code."""
IMPORT_ONLY = 64
"""Folder on sys.path that only the import system may read."""
IMPORTABLE = 8192
"""Folder of the application on sys.path: only files that the import system loads are readable."""
OWNED = 128
"""Applies below a protected path too, because the runtime gave it to this subject."""
PROTECTED = 256
"""Overrides any root above it."""
READ_ONLY = 16384
"""Code of the host: a rule for an ancestor folder does not make it writable, a rule for a folder below it does."""
PINNED = 32768
"""Link on the path to code of the host: it can be neither removed nor replaced."""
STREAM = 2048
"""May only be opened for writing."""

_PROGRAM_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_READ = int(FileAccess.READ)
LIBRARY = _READ | CODE | OWNED
"""Additional read-only code, also below protected paths, such as an engine's environment."""
_SCRATCH = int(FileAccess.READ | FileAccess.CREATE | FileAccess.MODIFY | FileAccess.DELETE)

# Files that Python and common libraries read. Never all of /etc, /proc, /run or /sys, which contain secrets.
_SYSTEM_FILES = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"),
    # Certificates and settings, but not their folders, which also contain private keys.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/ca-bundle.pem", "/etc/ssl/openssl.cnf"),
    *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf"),
    *("/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/crypto-policies"),
    *("/etc/localtime", "/etc/timezone", "/etc/zoneinfo", "/etc/mime.types", "/etc/magic", "/etc/magic.mime"),
    *("/etc/hosts", "/etc/hostname", "/etc/host.conf", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/gai.conf"),
    *("/etc/services", "/etc/protocols", "/etc/networks", "/etc/os-release", "/etc/lsb-release", "/etc/debian_version"),
    *("/etc/locale.conf", "/etc/default/locale", "/etc/locale.alias", "/etc/fonts", "/etc/ld.so.cache"),
    *("/etc/alternatives", "/etc/inputrc", "/etc/terminfo", "/etc/xdg"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/loadavg", "/proc/uptime", "/proc/version"),
    *("/proc/filesystems", "/proc/sys/kernel/osrelease", "/proc/sys/kernel/random/uuid", "/proc/sys/vm"),
    *("/proc/self/stat", "/proc/self/statm", "/proc/self/status", "/proc/self/cgroup", "/proc/self/mountinfo"),
    *("/proc/self/limits", "/proc/self/mounts"),
    *("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup", "/sys/kernel/mm/transparent_hugepage"),
    *("/dev/zero", "/dev/urandom", "/dev/random", "/dev/full"),
)

_CHANGING = ("create", "modify", "delete")
_ENCODING = sys.getfilesystemencoding()
_MOST_LINKS = 40
"""Limit of the kernel."""

Entry = tuple[bytes, int]
"""Path and mask for the core, which resolves the path. Computed once, before the first guard."""


def entry(path: str, mask: int) -> Entry:
    """Return an entry for the core, which resolves the existing part of the path."""
    return os.fsencode(normalise_path(path)), mask


_SYSTEM_ENTRIES = tuple(entry(path, _READ) for path in _SYSTEM_FILES)


def code_entries() -> Iterator[Entry]:
    """Yield the read-only code roots, and the paths that keep the import system's caches correct for the host."""
    yield entry("/dev/null", _READ | STREAM)
    for path in _code_roots():
        yield entry(path, _READ | CODE)
    wide = {"/", "/home", os.path.realpath(os.path.expanduser("~"))}  # contain far more than modules
    for path in filter(os.path.isabs, sys.path):
        real = os.path.realpath(path)
        yield entry(real, IMPORT_ONLY) if real in wide else entry(path, _READ | IMPORTABLE)


def covers(root: str, mask: int, path: str) -> bool:
    """Return whether a runtime entry applies to a path; both are resolved."""
    if mask & IMPORTABLE:
        return _core.is_importable(os.fsencode(root), os.fsencode(path))
    return is_at_or_below(path, root)


def runtime_entries() -> Iterator[Entry]:
    """Yield the code roots and everything else that ``include_runtime_paths`` adds."""
    yield from code_entries()
    yield from data_entries()


def data_entries() -> Iterator[Entry]:
    """Yield the paths that ``include_runtime_paths`` adds to the code roots: interpreter, system files, temp."""
    for path in (*_prefixes(), os.path.realpath(sys.executable)):
        yield entry(path, _READ)
    yield from _SYSTEM_ENTRIES
    yield entry(tempfile.gettempdir(), _SCRATCH)


def read_only_entries(further: Iterable[str] = ()) -> tuple[Entry, ...]:
    """Return the entries that keep the host's code unchanged, for every policy; ``further`` are additional paths.

    The whole environment is included, not only its packages, because another ``pyvenv.cfg`` or interpreter is code as
    well.
    """
    places: dict[str, None] = {}
    links: dict[str, None] = {}
    for path in dict.fromkeys((*_prefixes(), sys.executable, *_code_roots(), *further)):
        if path:
            found = dict.fromkeys(_links_to(path))
            links |= found
            places |= dict.fromkeys((path, os.path.realpath(path)) if found else (path,))
    fixed = [entry(path, READ_ONLY) for path in places if normalise_path(path) != "/"]
    return (*fixed, *(entry(link, PINNED) for link in links))


def read_only_paths() -> tuple[str, ...]:
    """Return the paths of code that no subject of this process may change."""
    entries = _core.read_only_entries()
    return tuple(path.decode(_ENCODING, "surrogateescape") for path, mask in entries if mask & READ_ONLY)


def is_host_code(path: str, operation: str) -> bool:
    """Return whether no subject may do this to a path, because it is code of the host or an ancestor folder of it."""
    for encoded, mask in _core.read_only_entries() if operation in _CHANGING else ():
        root = encoded.decode(_ENCODING, "surrogateescape")
        if mask & READ_ONLY and is_at_or_below(path, root):
            return True
        if operation != "modify" and is_at_or_below(root, path):  # the code would move with the folder
            return True
    return False


def is_inside_host_code(path: str) -> bool:
    """Return whether a rule for a path is effective: it names a path below code of the host, not an ancestor folder."""
    roots = read_only_paths()
    around = [root for root in roots if is_at_or_below(root, path)]
    return not around and any(is_at_or_below(path, root) for root in roots)


def _links_to(path: str) -> Iterator[str]:
    """Yield the links on the way to a path, with their resolved locations."""
    here, rest, seen = "/", path.split("/")[::-1], 0
    while rest and seen <= _MOST_LINKS:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = os.path.dirname(here)
            continue
        place = os.path.join(here, name)
        try:
            target = os.readlink(place)
        except OSError:  # not a link, or missing
            here = place
            continue
        seen += 1
        yield place
        here = "/" if target.startswith("/") else here
        rest += target.split("/")[::-1]


def _prefixes() -> tuple[str, ...]:
    return sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix


@cache
def _installed(*_current: str) -> frozenset[str]:
    """Return the folders of the standard library and of packages; the arguments are the current prefixes."""
    known = sysconfig.get_paths()  # each call computes all of them
    return frozenset(
        (*(known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages())
    )


def _code_roots() -> set[str]:
    roots = set(_installed(*_prefixes()))
    if site.ENABLE_USER_SITE:
        roots.add(site.getusersitepackages())
    roots.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return {root for root in roots if root}


def program_places(target: str) -> tuple[str, ...]:
    """Return the possible paths of a system dependency's program: its path, or the folders for programs."""
    if "/" in target:
        return (target,) if target.startswith("/") else ()
    own = (f"{prefix}/bin" for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)))
    return tuple(f"{folder}/{target}" for folder in (*_PROGRAM_FOLDERS, *own))
