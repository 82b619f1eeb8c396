"""What every subject can read and write without declaring it: the interpreter, libraries, system files, temp.

Computed once, before the first guard. Entries are (path, mask) for the core; a path is given in its resolved form.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import tempfile
from typing import TYPE_CHECKING

from democrai_sandbox.policy import FileAccess, is_at_or_below, normalise_path

from . import _core

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CODE = 32
"""A read-only code root: native modules load only from these, and code in them counts as a library."""
IMPORT_ONLY = 64
"""A folder on sys.path that only the import machinery may look into."""
IMPORTABLE = 8192
"""A folder of the application's on sys.path: what the import system loads is readable, and nothing else."""
OWNED = 128
"""Counts below a protected path too: the runtime gave it to this subject."""
PROTECTED = 256
READ_ONLY = 16384
"""Code of the host: a grant of a folder around it does not make it writable, one of a folder below it does."""
PINNED = 32768
"""A link on the way to code of the host: it can be neither removed nor replaced."""
STREAM = 2048
"""May be opened for writing, and nothing else be done to it."""

_PROGRAM_FOLDERS = (
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"),
    *(f"{prefix}/bin" for prefix in dict.fromkeys((sys.prefix, sys.base_prefix))),
)
_READ = int(FileAccess.READ)
_SCRATCH = int(FileAccess.READ | FileAccess.CREATE | FileAccess.MODIFY | FileAccess.DELETE)

# What Python and common libraries look at. Never /etc, /proc, /run or /sys as a whole: secrets live there.
_SYSTEM_FILES = (
    *("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin"),
    # Certificates and settings, never the folders around them: private keys lie beside.
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
"""As many as the kernel follows."""

Entry = tuple[bytes, int]


def entry(path: str, mask: int) -> Entry:
    """Return an entry for the core, which resolves it as far as it exists."""
    return os.fsencode(normalise_path(path)), mask


def code_entries() -> Iterator[Entry]:
    """Yield the read-only code roots, and what the import machinery needs so that its caches stay true for the host."""
    yield entry("/dev/null", _READ | STREAM)
    for path in _code_roots():
        yield entry(path, _READ | CODE)
    wide = _too_wide_to_read()
    for path in filter(os.path.isabs, sys.path):
        real = os.path.realpath(path)
        yield entry(real, IMPORT_ONLY) if real in wide else entry(path, _READ | IMPORTABLE)


def covers(root: str, mask: int, path: str) -> bool:
    """Return whether an entry of the runtime is about a path; both are given in their resolved form."""
    if mask & IMPORTABLE:
        return _core.is_importable(os.fsencode(root), os.fsencode(path))
    return is_at_or_below(path, root)


def runtime_entries() -> Iterator[Entry]:
    """Yield the code roots and everything else that comes with ``include_runtime_paths``."""
    yield from code_entries()
    yield from data_entries()


def data_entries() -> Iterator[Entry]:
    """Yield what ``include_runtime_paths`` adds to the code roots: the interpreter, system files, temp."""
    for path in (*_prefixes(), os.path.realpath(sys.executable)):
        yield entry(path, _READ)
    for path in _SYSTEM_FILES:
        yield entry(path, _READ)
    yield entry(tempfile.gettempdir(), _SCRATCH)


def read_only_entries(further: Iterable[str] = ()) -> tuple[Entry, ...]:
    """Return the entries that keep the host's code unchanged, for every policy; ``further`` are more places of it.

    The whole environment counts, not only its packages: another ``pyvenv.cfg`` or interpreter would be code as well.
    """
    named = [path for path in (*_prefixes(), sys.executable, *_code_roots(), *further) if path]
    places = dict.fromkeys((*named, *map(os.path.realpath, named)))
    fixed = [entry(path, READ_ONLY) for path in places if normalise_path(path) != "/"]
    links = dict.fromkeys(link for path in named for link in _links_to(path))
    return (*fixed, *(entry(link, PINNED) for link in links))


def read_only_paths() -> tuple[str, ...]:
    """Return where the code lies that no subject of this process may change."""
    entries = _core.read_only_entries()
    return tuple(path.decode(_ENCODING, "surrogateescape") for path, mask in entries if mask & READ_ONLY)


def is_host_code(path: str, operation: str) -> bool:
    """Return whether no subject may do this to a path, because it is code of the host or a folder around it."""
    for encoded, mask in _core.read_only_entries() if operation in _CHANGING else ():
        root = encoded.decode(_ENCODING, "surrogateescape")
        if mask & READ_ONLY and is_at_or_below(path, root):
            return True
        if operation != "modify" and is_at_or_below(root, path):  # it would be moved with the folder
            return True
    return False


def is_inside_host_code(path: str) -> bool:
    """Return whether a rule for a path counts: it names a place below code of the host, not a folder around it."""
    roots = read_only_paths()
    around = [root for root in roots if is_at_or_below(root, path)]
    return not around and any(is_at_or_below(path, root) for root in roots)


def _links_to(path: str) -> Iterator[str]:
    """Yield the links on the way to a path, each by where it really lies."""
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
        except OSError:  # not a link, or not there
            here = place
            continue
        seen += 1
        yield place
        here = "/" if target.startswith("/") else here
        rest += target.split("/")[::-1]


def _prefixes() -> tuple[str, ...]:
    return sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix


def library_entries(paths: Iterable[str]) -> tuple[Entry, ...]:
    """Return entries for further read-only code, which may lie below what is protected: an engine's environment."""
    return tuple(entry(path, _READ | CODE | OWNED) for path in paths)


def protected_entries(paths: Iterable[str]) -> tuple[Entry, ...]:
    """Return the entries that shut out what the host names, whatever root it lies under."""
    return tuple(entry(path, PROTECTED) for path in paths)


def _code_roots() -> set[str]:
    known = sysconfig.get_paths()  # each call computes all of them
    roots = {known[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        roots.add(site.getusersitepackages())
    roots.add(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return {root for root in roots if root}


def _too_wide_to_read() -> set[str]:
    """Folders that on sys.path would give away far more than modules: the root, a home."""
    return {"/", "/home", os.path.realpath(os.path.expanduser("~"))}


def program_places(target: str) -> tuple[str, ...]:
    """Return where the program of a system dependency can be: at its path, or in the folders for programs."""
    if "/" in target:
        return (target,) if target.startswith("/") else ()
    return tuple(f"{folder}/{target}" for folder in _PROGRAM_FOLDERS)
