"""Guard configuration by the host, before the first guard, and the core's defaults. Later it cannot be changed."""

from __future__ import annotations

import os
import sys
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed, GuardSealedError, GuardUsageError
from democrai_sandbox.policy import DEFAULT_PORTS, AccessDecision, InvalidInputError, NetworkTargetMissingError
from democrai_sandbox.policy.paths import normalise_path
from democrai_sandbox.policy.targets import parse_request_url, parse_socket

from . import _core
from .clients import ADAPTERS, DIVERTED
from .interface import CandidateWatcher, Decider, DenialRecorder, EndpointObserver, make_denial
from .runtime_paths import LIBRARY, PROTECTED, Entry, code_entries, data_entries, entry, read_only_entries
from .stdlib_patches import handle_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ._core import AccessQuestion

SENSITIVE_ROOTS = frozenset({"ctypes", "_ctypes", "cffi", "_cffi_backend"})


def configure_guard(
    *,
    decider: Decider | None = None,
    recorder: DenialRecorder | None = None,
    observer: EndpointObserver | None = None,
    watcher: CandidateWatcher | None = None,
    opener: Callable[[AccessQuestion, int, int], int] | None = None,
    protected_paths: Iterable[str | os.PathLike[str]] = (),
    code_paths: Iterable[str | os.PathLike[str]] = (),
    read_only_paths: Iterable[str | os.PathLike[str]] = (),
    sensitive_imports: Iterable[str] = (),
    native_packages: Iterable[str] = (),
    runtime_code: Iterable[Callable[..., Any] | CodeType] = (),
) -> None:
    """Configure the guard for this process; calls before the first guard add up.

    ``opener`` opens files that the guard allows but the kernel refuses to this process: it gets the question, the flags
    and the mode of the open, and returns a descriptor or a negative error number.
    ``protected_paths`` (configuration, decision database, helper socket, ...) are excluded from every subject's roots.
    ``code_paths`` are additional libraries, which every subject may read and load native modules from.
    ``read_only_paths`` is code that no subject may change, in addition to the environment of this process.
    ``sensitive_imports`` are added to the four default roots. ``native_packages`` are installed packages that may use
    ctypes and cffi internally while they work for a subject, which may then run native code. ``runtime_code`` are
    functions of the host's runtime that may merge contexts or bypass the guard while guarded code is running.
    """
    if _core.is_sealed() or _core.current_view() is not None:
        raise GuardSealedError("the guard is sealed: configure it before the first guard is entered")
    callbacks = {
        **_callback("decider", decider, Decider, "decide"),
        **_callback("recorder", recorder, DenialRecorder, "record"),
        **_callback("observer", observer, EndpointObserver, "observe"),
        **_callback("watcher", watcher, CandidateWatcher, "saw"),
        **({} if opener is None else _logged("opener", opener)),
    }
    shut = [entry(_checked_path(path), PROTECTED) for path in protected_paths]
    libraries = [entry(_checked_path(path, "/code_paths"), LIBRARY) for path in code_paths]
    fixed = [_checked_path(path, "/read_only_paths") for path in read_only_paths]
    roots = _checked_roots(sensitive_imports, "/sensitive_imports")
    packages = _checked_roots(native_packages, "/native_packages")
    codes = [_code_of(function) for function in runtime_code]
    _core.setup(**callbacks, runtime_code=codes, sensitive_roots=_core.sensitive_roots() | roots)
    if packages:
        _core.setup(native_packages=packages)
    _core.setup(protected=(*_core.protected_entries(), *shut))
    _core.setup(libraries=(*_core.library_entries(), *libraries))
    install_runtime_paths(fixed)


def _callback(name: str, given: object, kind: type, method: str) -> dict[str, Any]:
    """Return the setting of the core for a callback, with its failures logged; empty for one that is not given."""
    if given is None:
        return {}
    if not isinstance(given, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise InvalidInputError.of(f"not {article} {kind.__name__}: {type(given).__name__}", pointer=f"/{name}")
    return _logged(name, getattr(given, method))


def _logged(name: str, callback: Callable[..., Any]) -> dict[str, Any]:
    # Imported here, because it loads logging, which code that only opens guards does not need.
    from .callback_log import logged

    return {name: logged(name, callback)}


def install_defaults(child_environment: Callable[[tuple[Any, ...]], dict[str, str]], facade: frozenset[str]) -> None:
    """Set the core's defaults, before the host configures it."""
    native_refused = native_names() - allowed_modules()
    _core.setup(
        denial_factory=make_denial,
        usage_error=GuardUsageError,
        child_environment=child_environment,
        check_failed=ExternalAccessCheckFailed,
        handle_code=handle_code(),
        facade_files=facade,
        sensitive_roots=SENSITIVE_ROOTS | native_refused,
        protected=(),
        libraries=(),
        invalid_target=_invalid_target,
        decision_type=AccessDecision,
        default_ports=dict(DEFAULT_PORTS),
        # The canonical form of a non-ASCII URL or host, which the core parses again.
        parse_url=lambda text: parse_request_url(text).normalized,
        normalise_host=lambda text: parse_socket(text, None).host,
        adapters=ADAPTERS,
        diverted=DIVERTED,
        native_allowed=allowed_modules(),
        native_refused=native_refused,
        native_folder=native_folder(),
        native_packages=frozenset(),
    )
    install_runtime_paths()


def install_runtime_paths(read_only: Iterable[str] = ()) -> None:
    """Compute the runtime paths; repeated when the protected paths change, never per activation."""
    code = tuple(code_entries())
    libraries = (os.fsdecode(path) for path, _ in _core.library_entries())
    fixed = (*_core.read_only_entries(), *read_only_entries((*libraries, *read_only)))
    _core.setup(read_only=tuple(dict.fromkeys(fixed)))
    further = (*_core.library_entries(), *_core.protected_entries(), *_core.read_only_entries())
    _core.setup(
        code_policy=bare_policy("runtime", (*code, *further)),
        runtime_policy=bare_policy("runtime", (*code, *data_entries(), *further)),
    )


def bare_policy(subject: str, entries: tuple[Entry, ...]) -> _core.Policy:
    """Return a native policy that only has roots: no manifest rules, imports or children."""
    return _core.policy(
        subject=subject,
        kind="core",
        entries=entries,
        imports=frozenset(),
        allow_subprocess=False,
        include_runtime=False,
        declared="[]",
        ancestors=(),
        resolve=True,
        network=(),
        network_only=False,
        opened_by="",
        named_programs=False,
    )


def _invalid_target(why: str, pointer: str = "") -> Exception:
    """Return the error for an invalid target; an empty reason means that the target is missing."""
    return InvalidInputError.of(why, pointer=pointer) if why else NetworkTargetMissingError()


def _checked_roots(names: Iterable[str], pointer: str) -> frozenset[str]:
    roots = tuple(names)
    for name in roots:
        if type(name) is not str or not name.isidentifier():
            raise InvalidInputError.of(f"not the root name of an import: {name!r}", pointer=pointer)
    return frozenset(roots)


def _checked_path(path: str | os.PathLike[str], pointer: str = "/protected_paths") -> str:
    try:
        return normalise_path(os.fspath(path))
    except TypeError:
        raise InvalidInputError.of(f"not a path: {type(path).__name__}", pointer=pointer) from None


def _code_of(function: Callable[..., Any] | CodeType) -> CodeType:
    if isinstance(function, CodeType):
        return function
    if isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, FunctionType):
        return function.__code__
    raise InvalidInputError.of(f"not a Python function: {function!r}", pointer="/runtime_code")


# ---- native modules of the interpreter that guarded code may load; others do not load there
#
# Not listed:
# - modules for tests and debugging (_test*, xx*, _xxtestfuzz, _ctypes_test): they call parts of the interpreter that
#   the guard does not check, such as the variables of other frames and allocation failures;
# - interpreters (_interpreters, _xxsubinterpreters and their channels): code in another interpreter has no guard;
# - nis and ossaudiodev: they access the network and devices directly.

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
